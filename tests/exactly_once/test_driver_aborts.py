"""Aborts of a driver: they end its own tasks' transactions, and none of a decided batch."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import ExactlyOnceError, KafkaSinkError, NetworkError, ProducerFencedError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.driver import SUPERSEDED_ABORT_TIMEOUT_MS, Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.log_writer import LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    Query,
    death_before,
    list_open_ids,
    open_query_transactions,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_aborted_batch_stays_invisible_and_blocks_no_reader(query: Query) -> None:
    start = query.begin()
    query.write(start, 0, "a")
    query.write(start, 1, "of an attempt that failed", attempt=1)
    assert query.abort(start, 0)
    assert list_open_ids(query.broker) == []
    assert read_values(query.broker) == []
    query.run(0)
    assert read_values(query.broker) == rows(0)


def test_abort_of_committed_batch_returns_false(query: Query) -> None:
    query.run(0)
    successor = query.with_new_driver()
    start = successor.begin()
    assert start.is_decided(successor.batch(0))
    assert not successor.abort(start, 0)


def test_aborted_unnamed_job_is_deleted_from_the_log(query: Query) -> None:
    settings = dataclasses.replace(query.settings, is_single_use=True, options=ExactlyOnceOptions(log_topic=LOG))
    with Driver(settings) as driver:
        start = driver.begin("job")
        query.write_tasks(start, 0)
        assert driver.abort(start, Batch())
    assert operations.list_prefixes(query.options, LOG) == []


def test_aborts_nothing_if_no_driver_has_begun(query: Query) -> None:
    query.begin()
    assert not query.with_new_driver(prefix="another").abort_unreported()


def test_aborts_open_transactions_of_tasks_without_reports(query: Query) -> None:
    query.run(0)
    query.write_tasks(query.begin(), 1)
    assert query.abort_unreported()
    assert list_open_ids(query.broker) == []
    query.run(1)
    assert read_values(query.broker) == rows(0, 1)


def test_older_driver_aborts_nothing_without_reports(query: Query) -> None:
    query.begin()
    newer = query.with_new_driver()
    newer_start = newer.begin()
    prepared = newer.write_tasks(newer_start, 0)
    assert not query.abort_unreported()
    newer.commit(newer_start, 0, prepared)
    assert read_values(query.broker) == rows(0)


def test_take_over_during_abort_without_reports_keeps_its_transactions(query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    newer = query.with_new_driver()
    newer_start: list[tuple[BatchStart, list[TransactionIdentity]]] = []
    original = QueryTransactions.list_task_transactions

    def list_and_begin(prefix: QueryTransactions) -> list[TransactionDescription]:
        if not newer_start:
            with patch.object(QueryTransactions, "list_task_transactions", original):
                start = newer.begin()
                newer_start.append((start, newer.write_tasks(start, 0)))
        return original(prefix)

    with patch.object(QueryTransactions, "list_task_transactions", list_and_begin):
        query.abort_unreported()
    newer.commit(newer_start[0][0], 0, newer_start[0][1])
    assert read_values(query.broker) == rows(0)


def test_aborts_nothing_while_a_decision_is_written(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark abandons a batch during its commit. The process that aborts does not know that tasks have reported."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original, aborted = LogTransaction.commit, []

    def commit(*arguments: Any) -> WriterState:
        monkeypatch.undo()
        aborted.append(query.abort_unreported())
        return original(*arguments)

    monkeypatch.setattr(LogTransaction, "commit", commit)
    query.commit(start, 0, prepared)
    assert aborted == [False]
    assert read_values(query.broker) == rows(0)


def test_abort_concurrent_with_begin_succeeds_and_begin_retries(
    query: Query,
) -> None:
    """The newer driver has its epoch and has not claimed the prefix yet."""
    start, newer, original = query.begin(), query.with_new_driver(), QueryTransactions.take_over
    query.write_tasks(start, 0)
    aborted: list[bool] = []

    def take_over(transactions: QueryTransactions, *arguments: Any) -> Any:
        if not aborted:
            aborted.append(False)
            aborted[0] = query.abort(start, 0)
        return original(transactions, *arguments)

    with patch.object(QueryTransactions, "take_over", take_over):
        newer_start = newer.begin()
    assert aborted == [True]
    newer.commit(newer_start, 0, newer.write_tasks(newer_start, 0))
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("step", ["commit", "done"])
def test_does_not_abort_decided_batch(query: Query, step: str, *, reported: bool) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before(step):
        query.commit(start, 0, prepared)
    assert not (query.abort(start, 0) if reported else query.abort_unreported())
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0)


def test_aborts_stuck_decision_with_its_batch(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.INVALID_REQUEST)
    with pytest.raises(Exception, match="INVALID_REQUEST"):
        query.commit(start, 0, prepared)
    query.broker.control.clear()
    assert query.abort(start, 0)
    assert read_values(query.broker) == []
    query.run(0)
    assert read_values(query.broker) == rows(0)


def test_aborts_superseded_attempts_after_the_commit(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.write(start, 1, "of an attempt that lost", attempt=1)
    query.commit(start, 0, prepared)
    assert list_open_ids(query.broker) == []
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("step", ["list_task_transactions", "abort_task_transactions"])
def test_commits_batch_although_superseded_attempts_cannot_be_aborted(
    query: Query, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their transactions time out. If the commit failed, the job would run again and write its rows twice."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.write(start, 1, "of an attempt that lost", attempt=1)
    with patch.object(QueryTransactions, step, side_effect=NetworkError("no broker responds")):
        query.commit(start, 0, prepared)
    assert read_values(query.broker) == rows(0)
    assert "batch 0 of query query-1 is committed" in caplog.text
    assert "superseded task attempts may still be open. They end when they time out" in caplog.text
    assert "no broker responds" in caplog.text
    query.run(1)
    assert read_values(query.broker) == rows(0, 1)


def test_commit_limits_the_wait_for_superseded_attempts(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.write(start, 1, "of an attempt that lost", attempt=1)
    aborts = patch.object(QueryTransactions, "abort_task_transactions", autospec=True, return_value={})
    with aborts as abort_task_transactions:
        query.commit(start, 0, prepared)
    ((_, listed_transactions, abort_timeout_ms), _) = abort_task_transactions.call_args
    assert len(listed_transactions) == 1
    assert abort_timeout_ms == SUPERSEDED_ABORT_TIMEOUT_MS


@pytest.mark.parametrize("has_superseded_attempt", [False, True])
@pytest.mark.parametrize("failing_method", ["write", "delete_entry"])
def test_commits_job_with_warning_although_log_is_not_writable(
    query: Query, failing_method: str, caplog: pytest.LogCaptureFixture, *, has_superseded_attempt: bool
) -> None:
    settings = dataclasses.replace(query.settings, is_single_use=True, options=ExactlyOnceOptions(log_topic=LOG))
    with Driver(settings) as driver:
        start = driver.begin("job")
        prepared = query.write_tasks(start, 0)
        if has_superseded_attempt:
            query.write(start, 1, "of an attempt that lost", attempt=1)
        with patch.object(QueryTransactions, failing_method, side_effect=NetworkError("it is gone")):
            driver.commit(start, Batch(), prepared, BOTH_TASKS)
    assert read_values(query.broker) == rows(0)
    assert list_open_ids(query.broker) == []
    # Without superseded attempts, the entry is deleted at once, and not written before.
    is_called = failing_method == "delete_entry" or has_superseded_attempt
    assert caplog.text.count("job number 1 is committed (prefix p), but this could not be recorded") == is_called
    assert caplog.text.count("so `pykafka transactions` may continue to show the job") == is_called
    assert "readers wait for them" not in caplog.text


def fail_when_done(error: KafkaSinkError) -> Any:
    """Let the write of a "done" record fail."""
    original = QueryTransactions.write

    def write(transactions: QueryTransactions, state: WriterState, entry: Entry) -> WriterState:
        if entry.state is EntryState.DONE:
            raise error
        return original(transactions, state, entry)

    return patch.object(QueryTransactions, "write", write)


def test_advice_for_lost_done_response_ends_open_transaction(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.write(start, 1, "of an attempt that lost", attempt=1)
    original = QueryTransactions.write

    def write_without_response(transactions: QueryTransactions, state: WriterState, entry: Entry) -> WriterState:
        original(transactions, state, entry)
        raise NetworkError("no broker responds")

    with patch.object(QueryTransactions, "write", write_without_response), Driver(query.settings) as driver:
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    assert "If there is nothing to finish, and no query or job with this prefix is running, end it with" in caplog.text
    assert operations.finish(query.options, query.prefix, LOG) is None
    operations.abort(query.options, query.prefix, LOG)
    assert list_open_ids(query.broker) == []
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("batch", [Batch(), Batch(key="today", scope="t")], ids=["without a key", "with a key"])
def test_job_succeeds_with_warning_if_done_record_cannot_be_written(
    query: Query, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with (
        fail_when_done(build_broker_error(error_codes.NOT_ENOUGH_REPLICAS, "the decision log")),
        Driver(query.settings) as driver,
    ):
        driver.commit(start, batch, prepared, BOTH_TASKS)
    assert read_values(query.broker) == rows(0)
    successor = query.with_new_driver().begin()
    assert f"{successor.entry.batch} is committed (prefix p), but this could not be recorded" in caplog.text
    assert (successor.entry.state, successor.is_decided(batch)) == (EntryState.DONE, batch.key is not None)
    assert read_values(query.broker) == rows(0)


def test_stream_reports_visible_rows_if_done_record_cannot_be_written(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with (
        fail_when_done(build_broker_error(error_codes.NOT_ENOUGH_REPLICAS, "the decision log")),
        pytest.raises(ExactlyOnceError, match=r"batch 0 .* is committed .*all of its rows are visible.*Start again"),
    ):
        query.commit(start, 0, prepared)
    assert read_values(query.broker) == rows(0)
    assert query.with_new_driver().begin().is_decided(query.batch(0))


@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.DESCRIBE_TRANSACTIONS], ids=["commit", "look after a fence"])
def test_error_warns_against_rerun_of_job_without_key_if_decision_is_in_doubt(
    query: Query, api: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fenced commit the driver describes its id, and that request may get no response either."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = LogTransaction.commit

    def commit(writing: LogTransaction, timeout_ms: float | None = None) -> WriterState:
        original(writing, timeout_ms)
        query.broker.control.when(api=api, times=None).fail(error_codes.UNSUPPORTED_VERSION)
        if api is ApiKey.END_TXN:
            raise NetworkError("no response.")
        raise ProducerFencedError("fenced", code=error_codes.PRODUCER_FENCED, name="PRODUCER_FENCED")

    monkeypatch.setattr(LogTransaction, "commit", commit)
    with (
        Driver(query.settings) as driver,
        pytest.raises(
            ExactlyOnceError, match=r"It is not known whether job number 1 is decided.*Do not run the job again"
        ),
    ):
        driver.commit(start, Batch(), prepared, BOTH_TASKS)


@pytest.mark.parametrize("code", [error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, error_codes.POLICY_VIOLATION])
def test_error_forbids_rerun_of_decided_job_without_key(query: Query, code: int) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = LogTransaction.commit

    def commit(writing: LogTransaction, timeout_ms: float | None = None) -> WriterState:
        state = original(writing, timeout_ms)
        query.broker.control.when(api=ApiKey.END_TXN, times=None).fail(code)
        return state

    with (
        patch.object(LogTransaction, "commit", commit),
        Driver(query.settings) as driver,
        pytest.raises(
            ExactlyOnceError, match=r"(?s)job number 1 is decided.*Do not run the decided job again.*finish"
        ) as error,
    ):
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    assert "start again" not in str(error.value)
    query.broker.control.clear()
    assert operations.finish(query.options, "p", LOG) is not None
    assert read_values(query.broker) == rows(0)


def test_driver_fenced_during_abort_aborts_nothing(query: Query) -> None:
    start = query.begin()
    fenced = ProducerFencedError("it is another's", code=error_codes.PRODUCER_FENCED, name="PRODUCER_FENCED")
    with patch.object(QueryTransactions, "fence", side_effect=fenced), Driver(query.settings) as driver:
        assert driver.abort(start, query.batch(0)) is False
        assert driver.abort_unreported(query.name) is False


def test_suspended_abort_does_not_affect_reused_ids_of_newer_driver(
    query: Query,
) -> None:
    """Generations repeat. When the abort listed the ids, one had no transaction; now a decided transaction has it."""
    start = query.begin()
    query.attempt(start, 1, attempt=0).close(timeout=0)
    original = QueryTransactions.abort_task_transactions

    def abort_task_transactions(
        transactions: QueryTransactions, listed_transactions: list[TransactionDescription], abort_timeout_ms: Any = None
    ) -> None:
        with patch.object(QueryTransactions, "abort_task_transactions", original):
            query.decide_with_reused_ids(start)
        original(transactions, listed_transactions, abort_timeout_ms)

    with patch.object(QueryTransactions, "abort_task_transactions", abort_task_transactions):
        query.abort(start, 0)
    query.with_new_driver(name="last").begin()
    assert read_values(query.broker) == rows(0)


def test_abort_fenced_after_its_claim_ends_open_transactions(query: Query) -> None:
    """Another start gets its epoch after the claim, and dies."""
    start = query.begin()
    query.write_tasks(start, 0)
    original, fenced = QueryTransactions.bump_epoch, list[bool]()

    def bump_epoch(transactions: QueryTransactions, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        if not fenced and transactions.read_entry().generation > start.entry.generation:
            fenced.append(True)
            with open_query_transactions(query.broker) as other:
                other.fence(other.describe_driver_id())
        return original(transactions, driver, granted_ms)

    with patch.object(QueryTransactions, "bump_epoch", bump_epoch):
        assert query.abort(start, 0)
    assert fenced
    assert not list_open_ids(query.broker)


def test_abort_of_committed_job_reports_no_abort(query: Query) -> None:
    """The previous job under the prefix had the same rows, and neither job has an idempotency key."""
    for name in ("job-1", "job-2"):
        job = query.with_new_driver(name=name)
        start = job.begin()
        job.write_and_commit(start, Batch(scope="t"))
        with Driver(job.settings) as driver:
            assert not driver.abort(start, Batch(scope="t"))
    assert read_values(query.broker) == rows(0, 0)
