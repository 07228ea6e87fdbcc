"""Patches that each remove one rule of exactly-once delivery from the code.

Tests apply a patch and show that an invariant fails without the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import ProducerFencedError
from spark_kafka_sink.exactly_once import (
    decision_log,
    driver_ids,
    log_partition,
    precommit_errors,
    query_transactions,
    transaction_aborts,
)
from spark_kafka_sink.exactly_once import driver as driver_module
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import decode_followed_offset, encode_entry
from spark_kafka_sink.exactly_once.log_records import build_claim_records
from spark_kafka_sink.exactly_once.log_writer import KeyValue, LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions, TakeOver
from spark_kafka_sink.exactly_once.transaction_aborts import choose_expected_identity
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.requests.transaction_description import COMPLETE_COMMIT, TransactionDescription
from spark_kafka_sink.spark import exactly_once
from tests.exactly_once.workloads import TIMEOUT_MS

RemovedRule = Callable[[pytest.MonkeyPatch], None]


def skip_read_after_fence(patch: pytest.MonkeyPatch) -> None:
    """Let the driver act on the entry that it read before it got its epoch."""
    read = QueryTransactions.read_entry
    hints: dict[int, Entry] = {}

    def entry(query: QueryTransactions) -> Entry:
        if id(query) not in hints:
            hints[id(query)] = read(query)
        return hints[id(query)]

    patch.setattr(QueryTransactions, "read_entry", entry)


def skip_reading_claim_back(patch: pytest.MonkeyPatch) -> None:
    def claim(
        query: QueryTransactions, driver: ProducerIdAndEpoch, found: Entry, entry: Entry, **named: Any
    ) -> ProducerIdAndEpoch:
        writing = query._begin_transaction(WriterState(driver), build_claim_records(found, entry))
        writing.wait()
        state = writing.commit()
        return query.bump_epoch(state.id_and_epoch, entry.timeout_ms)

    patch.setattr(QueryTransactions, "claim", claim)


def decide_under_new_epoch(patch: pytest.MonkeyPatch) -> None:
    """Let a fenced driver request another epoch and decide under it."""
    begin_write = QueryTransactions.begin_write

    def begin_under_new_epoch(query: QueryTransactions, state: WriterState, entry: Entry) -> LogTransaction:
        if entry.state is EntryState.DECIDED:
            state = WriterState(init_producer_id(query.client, query.driver_id, 60_000, NO_PRODUCER_ID))
        return begin_write(query, state, entry)

    patch.setattr(QueryTransactions, "begin_write", begin_under_new_epoch)
    patch.setattr(BatchStart, "is_waiting_for_tasks", lambda start, known: True)


def skip_finishing_decided_batch(patch: pytest.MonkeyPatch) -> None:
    take_over = Driver._take_over

    def take_over_without_commit(driver: Driver, entry: Entry, *rest: Any) -> BatchStart:
        return take_over(driver, entry.as_done() if entry.state is EntryState.DECIDED else entry, *rest)

    patch.setattr(Driver, "_take_over", take_over_without_commit)


def ignore_decided_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchStart, "is_decided", lambda start, batch: False)


def skip_aborting_open_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueryTransactions, "list_task_transactions", lambda query, *ahead: [])


def abort_before_claim(patch: pytest.MonkeyPatch) -> None:
    """Let the driver abort the listed transactions before it claims the prefix."""

    def take_over(query: QueryTransactions, *claimed: Any) -> TakeOver:
        open_transactions = query.list_task_transactions()
        abort_errors = query.abort_task_transactions(open_transactions)
        return TakeOver(query.claim(*claimed), open_transactions, abort_errors)

    patch.setattr(QueryTransactions, "take_over", take_over)


def list_after_claim(patch: pytest.MonkeyPatch) -> None:
    """Let the driver claim the prefix first, and then list and abort all open transactions."""

    def take_over(query: QueryTransactions, *claimed: Any) -> TakeOver:
        driver = query.claim(*claimed)
        open_transactions = query.list_task_transactions()
        return TakeOver(driver, open_transactions, query.abort_task_transactions(open_transactions))

    patch.setattr(QueryTransactions, "take_over", take_over)


def restore_short_timeout_late(patch: pytest.MonkeyPatch) -> None:
    """Let a starting driver first request the tasks' timeout for the driver id, and then a short one."""
    request_epoch = QueryTransactions._request_epoch

    def fence(query: QueryTransactions, description: TransactionDescription | None) -> ProducerIdAndEpoch:
        identity = request_epoch(query, choose_expected_identity(description), TIMEOUT_MS)
        return query.bump_epoch(identity, TIMEOUT_MS)

    patch.setattr(QueryTransactions, "fence", fence)


def ignore_claimed_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(driver_ids, "is_marked_claimed", lambda timeout_ms: False)


def ignore_fenced_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_aborts, "is_marked_fenced", lambda timeout_ms: False)


def abort_without_claim(patch: pytest.MonkeyPatch) -> None:
    """Let an abort compare epochs instead of writing a claim."""

    def abort_if_current(driver: Driver, is_own_entry: Any, description: TransactionDescription | None) -> bool:
        query = driver._transactions
        if description is None or not is_own_entry(query.read_entry()):
            return False
        open_transactions, now_ms = query.list_task_transactions(), query.describe_driver_id()
        if now_ms is None or now_ms.id_and_epoch != description.id_and_epoch:
            return False
        query.abort_task_transactions(open_transactions)
        return True

    patch.setattr(Driver, "_abort_if_current", abort_if_current)


def write_claims_with_decision_key(patch: pytest.MonkeyPatch) -> None:
    """Write each claim as two records with the key of decisions."""

    def records(found: Entry, entry: Entry) -> list[KeyValue]:
        return [(entry.prefix.encode(), encode_entry(entry, followed_offset=found.offset))] * 2

    def counts(record: log_partition.LogRecord, before: log_partition.LogRecord) -> bool:
        follows = None if record.value is None else decode_followed_offset(record.value)
        return follows is None or before.offset <= follows

    patch.setattr(query_transactions, "build_claim_records", records)
    patch.setattr(log_partition, "_is_valid", counts)


def accept_invalid_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_partition, "_is_valid", lambda record, before: True)


def skip_reclaim(patch: pytest.MonkeyPatch) -> None:
    def regain(query: QueryTransactions, own: Sequence[Entry], error: ProducerFencedError) -> tuple[WriterState, Entry]:
        raise error

    patch.setattr(QueryTransactions, "_reclaim_prefix", regain)


def retry_without_reclaim(patch: pytest.MonkeyPatch) -> None:
    """Let a fenced driver trust the entry that it reads, and decide again without a claim."""

    def with_claim_identity(
        query: QueryTransactions, description: Any, hint: Entry, own: Sequence[Entry]
    ) -> tuple[WriterState, Entry] | None:
        if hint not in own:
            return None
        driver = query.fence(description)
        return WriterState(driver), own[0]

    patch.setattr(QueryTransactions, "_try_reclaim", with_claim_identity)


def skip_listing_driver_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision_log, "_may_have_other_driver_ids", lambda newest, ids: bool(newest))


def hand_over_without_claim(patch: pytest.MonkeyPatch) -> None:
    """Let the driver name the next driver id without a claim before it."""

    def hand_over(query: QueryTransactions, driver: ProducerIdAndEpoch) -> None:
        found = query.read_entry()
        following = found.with_driver_number(query.driver_number + 1)
        records = [(query.prefix.encode(), encode_entry(following))]
        query._begin_transaction(WriterState(driver), records).wait_and_commit()
        raise precommit_errors.build_other_driver_error(query.driver_id)

    patch.setattr(QueryTransactions, "_hand_over", hand_over)


def hand_over_by_claim(patch: pytest.MonkeyPatch) -> None:
    """Write the record that names the next driver id with the key of claims."""

    def hand_over(query: QueryTransactions, driver: ProducerIdAndEpoch) -> None:
        found = query.read_entry()
        following = found.with_driver_number(query.driver_number + 1)
        query._begin_transaction(WriterState(driver), build_claim_records(found, following)).wait_and_commit()
        raise precommit_errors.build_other_driver_error(query.driver_id)

    patch.setattr(QueryTransactions, "_hand_over", hand_over)


def share_driver_name_between_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "build_batch_driver_name", lambda start, number: start)


def skip_late_attempt_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "raise_if_late", lambda describe, start: None)


def skip_fenced_attempt_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(exactly_once, "raise_if_late_attempt_was_fenced", lambda error, config, start, timeout_ms: None)


def skip_content_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchStart, "check_skipped_batch", lambda start, batch, summary, tolerate_mismatch: None)


def skip_wait_for_ending_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueryTransactions, "wait_and_describe_driver_id", QueryTransactions.describe_driver_id)


def ignore_last_entry_epoch(patch: pytest.MonkeyPatch) -> None:
    def has_been_idle_since(entry: Entry, description: TransactionDescription, version: int) -> bool:
        return entry.state is EntryState.DONE and description.state == COMPLETE_COMMIT

    patch.setattr(driver_module, "has_been_idle_since", has_been_idle_since)


def abort_despite_fencing(patch: pytest.MonkeyPatch) -> None:
    """Let a driver abort its tasks' transactions without checking its epoch or the decision."""

    def abort(driver: Driver, start: BatchStart, batch: Batch) -> bool:
        driver._transactions.abort_task_transactions(driver._transactions.list_task_transactions())
        return True

    patch.setattr(Driver, "abort", abort)


def delete_entry_without_aborts(patch: pytest.MonkeyPatch) -> None:
    """Let a job without a name delete its entry although transactions of superseded attempts are open."""

    def delete_entry(driver: Driver, committed_batch: Any, entry: Entry) -> None:
        if driver._settings.is_single_use:
            driver._transactions.delete_entry(committed_batch.writer_state)

    patch.setattr(Driver, "_abort_superseded_attempts", delete_entry)


def skip_open_transaction_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Driver, "_find_commit_error", lambda driver, entry, found: None)
