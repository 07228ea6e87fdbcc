"""The rules of exactly once, each taken out of the code: for tests that show that the explorer notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState, encoded
from spark_kafka_sink.exactly_once.query_transactions import Held, QueryTransactions
from spark_kafka_sink.producer.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_description import COMPLETE_COMMIT, TransactionDescription
from tests.exactly_once import lives

TakenOut = Callable[[pytest.MonkeyPatch], None]


def the_log_is_read_after_the_epoch_was_given(patch: pytest.MonkeyPatch) -> None:
    """What the driver saw before it had its epoch is what it acts on."""
    read = QueryTransactions.entry
    hints: dict[int, Entry] = {}

    def entry(query: QueryTransactions, producer_id: int | None) -> Entry:
        if id(query) not in hints:
            hints[id(query)] = read(query, producer_id)
        return hints[id(query)]

    patch.setattr(QueryTransactions, "entry", entry)


def a_claim_is_read_back(patch: pytest.MonkeyPatch) -> None:
    def claim(query: QueryTransactions, driver: ProducerIdAndEpoch, found: Entry, claim: Entry) -> ProducerIdAndEpoch:
        held = query._write(Held(driver), (encoded(found), encoded(claim)))
        return query.renew(held.driver, claim.timeout_ms)

    patch.setattr(QueryTransactions, "claim", claim)


def a_decision_is_written_under_the_epoch_of_the_start(patch: pytest.MonkeyPatch) -> None:
    """A driver that was fenced gets itself another epoch."""
    write = QueryTransactions.write

    def anew(query: QueryTransactions, held: Held, entry: Entry | None) -> Held:
        if entry is not None and entry.state is EntryState.DECIDED:
            held = Held(query.client.init_producer_id(query.driver_id, 60_000, NO_PRODUCER_ID))
        return write(query, held, entry)

    patch.setattr(QueryTransactions, "write", anew)
    patch.setattr(QueryTransactions, "is_newest", lambda query, *driver: True)
    patch.setattr(BatchStart, "awaits_tasks", lambda start, known: True)


def what_is_decided_is_finished_by_the_next_driver(patch: pytest.MonkeyPatch) -> None:
    take_over = Driver._take_over

    def without(driver: Driver, entry: Entry, *rest: Any) -> BatchStart:
        return take_over(driver, entry.done() if entry.state is EntryState.DECIDED else entry, *rest)

    patch.setattr(Driver, "_take_over", without)


def a_batch_that_is_decided_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchStart, "is_committed", lambda start, batch: False)


def what_is_left_is_aborted_by_the_next_driver(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueryTransactions, "leftovers", lambda query, *ahead: [])


def it_is_looked_for_a_newer_driver_between_list_and_abort(patch: pytest.MonkeyPatch) -> None:
    def abort(query: QueryTransactions, listed: Sequence[TransactionDescription], *driver: Any) -> None:
        query.end_listed(listed)

    patch.setattr(QueryTransactions, "abort", abort)


def exactly_what_was_listed_is_aborted(patch: pytest.MonkeyPatch) -> None:
    """The look comes first, and then all that is open is ended."""

    def listed_anew(query: QueryTransactions, listed: Sequence[Any], *driver: Any) -> None:
        if listed:
            if not query.is_newest(*driver):
                raise refusals.fenced(query.driver_id)
            query.end_listed(query.leftovers())

    patch.setattr(QueryTransactions, "abort", listed_anew)


def a_late_attempt_looks_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lives, "refuse_if_late", lambda describe, start: None)


def the_rows_of_a_batch_that_is_passed_over_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchStart, "check_passed_over", lambda start, batch, counted, tolerant: None)


def a_driver_begins_when_the_log_says_how_its_ids_last_transaction_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueryTransactions, "look_when_ended", QueryTransactions.look)


def a_driver_goes_on_only_under_the_epoch_that_followed_what_it_wrote(patch: pytest.MonkeyPatch) -> None:
    def may_go_on(driver: Driver, seen: TransactionDescription, entry: Entry) -> bool:
        return entry.state is EntryState.DONE and seen.state == COMPLETE_COMMIT

    patch.setattr(Driver, "_may_go_on", may_go_on)


def a_driver_that_is_fenced_does_not_abort(patch: pytest.MonkeyPatch) -> None:
    """It aborts what its tasks have left, whatever became of its epoch and of the decision."""

    def abort(driver: Driver, start: BatchStart, batch: Batch) -> bool:
        driver._query.end_listed(driver._of_generation(start.entry))
        return True

    patch.setattr(Driver, "_abort", abort)


def a_transaction_that_is_not_open_any_more_is_found_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Driver, "_ensure_open", lambda driver, start, entry: None)
