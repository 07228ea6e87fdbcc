"""The rules of exactly once, each taken out of the code: for tests that show that the explorer notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import ProducerFencedError
from spark_kafka_sink.exactly_once import (
    decision_log,
    driver_ids,
    precommit_errors,
    query_transactions,
    transaction_aborts,
)
from spark_kafka_sink.exactly_once import driver as driver_module
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import decode_followed_offset, encode_entry
from spark_kafka_sink.exactly_once.log_writer import KeyValue, LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions, build_claim_records
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.requests.transaction_description import COMPLETE_COMMIT, TransactionDescription
from spark_kafka_sink.spark import exactly_once

TakenOut = Callable[[pytest.MonkeyPatch], None]


def the_log_is_read_after_the_epoch_was_given(patch: pytest.MonkeyPatch) -> None:
    """What the driver saw before it had its epoch is what it acts on."""
    read = QueryTransactions.read_entry
    hints: dict[int, Entry] = {}

    def entry(query: QueryTransactions) -> Entry:
        if id(query) not in hints:
            hints[id(query)] = read(query)
        return hints[id(query)]

    patch.setattr(QueryTransactions, "read_entry", entry)


def a_claim_is_read_back(patch: pytest.MonkeyPatch) -> None:
    def claim(query: QueryTransactions, driver: ProducerIdAndEpoch, found: Entry, entry: Entry) -> ProducerIdAndEpoch:
        writing = query._begin_transaction(WriterState(driver), build_claim_records(found, entry))
        writing.wait()
        held = writing.commit()
        return query.bump_epoch(held.id_and_epoch, entry.timeout_ms)

    patch.setattr(QueryTransactions, "claim", claim)


def a_decision_is_written_under_the_epoch_of_the_start(patch: pytest.MonkeyPatch) -> None:
    """A driver that was fenced gets itself another epoch."""
    begin_write = QueryTransactions.begin_write

    def anew(query: QueryTransactions, held: WriterState, entry: Entry | None) -> LogTransaction:
        if entry is not None and entry.state is EntryState.DECIDED:
            held = WriterState(init_producer_id(query.client, query.driver_id, 60_000, NO_PRODUCER_ID))
        return begin_write(query, held, entry)

    patch.setattr(QueryTransactions, "begin_write", anew)
    patch.setattr(BatchStart, "is_waiting_for_tasks", lambda start, known: True)


def what_is_decided_is_finished_by_the_next_driver(patch: pytest.MonkeyPatch) -> None:
    take_over = Driver._take_over

    def without(driver: Driver, entry: Entry, *rest: Any) -> BatchStart:
        return take_over(driver, entry.as_done() if entry.state is EntryState.DECIDED else entry, *rest)

    patch.setattr(Driver, "_take_over", without)


def a_batch_that_is_decided_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchStart, "is_committed", lambda start, batch: False)


def what_is_left_is_aborted_by_the_next_driver(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueryTransactions, "list_task_transactions", lambda query, *ahead: [])


def it_is_claimed_between_list_and_abort(patch: pytest.MonkeyPatch) -> None:
    """What was listed is ended, and then the prefix is claimed."""

    def take_over(query: QueryTransactions, *claimed: Any) -> tuple[ProducerIdAndEpoch, list[TransactionDescription]]:
        listed = query.list_task_transactions()
        query.abort_task_transactions(listed)
        return query.claim(*claimed), listed

    patch.setattr(QueryTransactions, "take_over", take_over)


def what_is_aborted_was_listed_before_the_claim(patch: pytest.MonkeyPatch) -> None:
    """The claim comes first, and then all that is open is ended."""

    def take_over(query: QueryTransactions, *claimed: Any) -> tuple[ProducerIdAndEpoch, list[TransactionDescription]]:
        driver = query.claim(*claimed)
        listed = query.list_task_transactions()
        query.abort_task_transactions(listed)
        return driver, listed

    patch.setattr(QueryTransactions, "take_over", take_over)


def an_id_shows_that_it_has_claimed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(driver_ids, "is_marked_claimed", lambda timeout_ms: False)


def an_id_shows_that_it_was_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_aborts, "is_marked_fenced", lambda timeout_ms: False)


def an_abort_claims(patch: pytest.MonkeyPatch) -> None:
    """It trusts the epoch that it has seen, and ends what it lists."""

    def abort_if(driver: Driver, is_ours: Any, seen: TransactionDescription | None) -> bool:
        query = driver._query
        if seen is None or not is_ours(query.read_entry()):
            return False
        listed, now = query.list_task_transactions(), query.describe_driver_id()
        if now is None or now.id_and_epoch != seen.id_and_epoch:
            return False
        query.abort_task_transactions(listed)
        return True

    patch.setattr(Driver, "_abort_if", abort_if)


def claims_have_a_key_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """Claims have the key of the decisions, and two records with it."""

    def records(found: Entry, entry: Entry) -> list[KeyValue]:
        return [(entry.prefix.encode(), encode_entry(entry, followed_offset=found.offset))] * 2

    def counts(record: decision_log.LogRecord, before: decision_log.LogRecord) -> bool:
        follows = None if record.value is None else decode_followed_offset(record.value)
        return follows is None or before.offset <= follows

    patch.setattr(query_transactions, "build_claim_records", records)
    patch.setattr(decision_log, "_is_valid", counts)


def a_claim_counts_only_after_what_it_has_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision_log, "_is_valid", lambda record, before: True)


def a_driver_that_is_fenced_goes_on_if_no_other_has_claimed_since(patch: pytest.MonkeyPatch) -> None:
    def regain(query: QueryTransactions, own: Sequence[Entry], error: ProducerFencedError) -> tuple[WriterState, Entry]:
        raise error

    patch.setattr(QueryTransactions, "_reclaim", regain)


def what_a_fenced_driver_writes_again_is_a_claim(patch: pytest.MonkeyPatch) -> None:
    """It believes what it has read, and decides."""

    def with_claim_identity(
        query: QueryTransactions, seen: Any, hint: Entry, own: Sequence[Entry]
    ) -> tuple[WriterState, Entry] | None:
        if hint not in own:
            return None
        driver, _ = query.fence(seen, (seen.timeout_ms,))
        return WriterState(driver), own[0]

    patch.setattr(QueryTransactions, "_try_reclaim", with_claim_identity)


def ids_are_listed_where_the_log_has_no_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision_log, "_may_have_other_driver_ids", lambda newest, ids: bool(newest))


def a_claim_stands_before_a_hand_over(patch: pytest.MonkeyPatch) -> None:
    """Who got one of the last epochs names the next id under that epoch."""

    def hand_over(query: QueryTransactions, driver: ProducerIdAndEpoch, granted_ms: int) -> None:
        found = query.read_entry()
        following = found.with_driver_number(query.driver_number + 1)
        query_transactions._wait_and_commit(
            query._begin_transaction(WriterState(driver), [(query.prefix.encode(), encode_entry(following))])
        )
        raise precommit_errors.fenced_error(query.driver_id)

    patch.setattr(QueryTransactions, "_hand_over", hand_over)


def a_hand_over_has_the_key_of_decisions(patch: pytest.MonkeyPatch) -> None:
    """It is a claim."""

    def hand_over(query: QueryTransactions, driver: ProducerIdAndEpoch, granted_ms: int) -> None:
        found = query.read_entry()
        following = found.with_driver_number(query.driver_number + 1)
        query_transactions._wait_and_commit(
            query._begin_transaction(WriterState(driver), build_claim_records(found, following))
        )
        raise precommit_errors.fenced_error(query.driver_id)

    patch.setattr(QueryTransactions, "_hand_over", hand_over)


def each_batch_of_a_start_without_a_number_has_a_driver_of_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "build_batch_driver_name", lambda start, number: start)


def a_late_attempt_looks_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "raise_if_late", lambda describe, start: None)


def an_attempt_that_is_fenced_asks_why(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "raise_if_fenced_late", lambda error, config, start, timeout_ms: None)


def the_rows_of_a_batch_that_is_passed_over_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchStart, "check_skipped_batch", lambda start, batch, content, tolerate_mismatch: None)


def a_driver_begins_when_the_log_says_how_its_ids_last_transaction_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueryTransactions, "describe_driver_id_when_ended", QueryTransactions.describe_driver_id)


def a_driver_goes_on_only_under_the_epoch_that_followed_what_it_wrote(patch: pytest.MonkeyPatch) -> None:
    def is_unused_since(entry: Entry, description: TransactionDescription, version: int) -> bool:
        return entry.state is EntryState.DONE and description.state == COMPLETE_COMMIT

    patch.setattr(driver_module, "is_unused_since", is_unused_since)


def a_driver_that_is_fenced_does_not_abort(patch: pytest.MonkeyPatch) -> None:
    """It aborts what its tasks have left, whatever became of its epoch and of the decision."""

    def abort(driver: Driver, start: BatchStart, batch: Batch) -> bool:
        driver._query.abort_task_transactions(driver._query.list_task_transactions())
        return True

    patch.setattr(Driver, "abort", abort)


def a_transaction_that_is_not_open_any_more_is_found_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Driver, "_find_commit_error", lambda driver, entry, found: None)
