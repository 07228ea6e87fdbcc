"""Drivers of a query that die, start concurrently or are rejected, in both versions of transactions."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY, ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    BrokerError,
    CommitLostError,
    ExactlyOnceError,
    PreflightError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import (
    Batch,
    Entry,
    EntryState,
    WriterKind,
    build_batch_driver_name,
)
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Query,
    assert_no_new_epoch,
    connect_client,
    death_before,
    list_open_ids,
    read_values,
    register_id_without_epoch,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.scenarios.test_stale_log_reads import log_end_offset


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


# --- without faults


def _job_settings(query: Query) -> ExactlyOnceSettings:
    """Return the delivery of a job under the prefix of the query."""
    options = dataclasses.replace(query.settings.options, idempotency_key="today")
    return dataclasses.replace(query.settings, options=options, checkpoint="", writer_kind=WriterKind.JOB)


def test_batch_is_visible_only_after_commit(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    assert read_values(query.broker) == []
    query.commit(start, 0, prepared)
    assert read_values(query.broker) == rows(0)


def test_consecutive_batches_reuse_task_ids(query: Query) -> None:
    first, second = query.run(0), query.run(1)
    assert read_values(query.broker) == rows(0, 1)
    assert first.build_task_id(0, 0) == second.build_task_id(0, 0)
    assert first.driver_identity != second.driver_identity, "each batch has an epoch of its own"


def test_begins_with_driver_id_that_has_no_epoch(query: Query) -> None:
    """A coordinator that cannot write its log keeps a producer id without an epoch until it is restarted."""
    register_id_without_epoch(query.broker, build_driver_id(PREFIX))
    query.run(0)
    assert read_values(query.broker) == rows(0)


def test_batch_without_rows_is_not_decided(query: Query) -> None:
    query.commit(query.begin(), 0, [])
    assert query.begin().entry.state is EntryState.OPEN


# --- the driver dies


def test_driver_that_dies_before_its_decision_leaves_nothing_visible(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("decision"):
        query.commit(start, 0, prepared)
    successor = query.with_new_driver()
    start = successor.begin()
    assert list_open_ids(query.broker) == [], "no reader has to wait for what it left"
    assert not start.is_decided(successor.batch(0))
    successor.commit(start, 0, successor.write_tasks(start, 0))
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("step", ["commit", "done", "superseded"])
def test_next_driver_finishes_decided_batch_without_writing_it_again(
    query: Query, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    loser = query.write(start, 0, "lost", attempt=1)
    with death_before(step):
        query.commit(start, 0, prepared)
    successor = query.with_new_driver()
    start = successor.begin()
    assert read_values(query.broker) == rows(0)
    assert start.is_decided(successor.batch(0))
    assert not start.is_decided(successor.batch(1))
    successor.run(1)
    assert read_values(query.broker) == rows(0, 1)
    assert loser.transactional_id not in list_open_ids(query.broker)
    message = "Finishing batch 0 of query query-1, which is decided but not done (prefix p)" in caplog.text
    assert message == (step != "superseded")


def test_batch_is_committed_once_despite_repeated_deaths(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("commit"):
        query.commit(start, 0, prepared)
    for number in range(3):
        with death_before("done"):
            query.with_new_driver(name=f"driver-{number + 2}").begin()
    query.with_new_driver(name="driver-9").begin()
    assert read_values(query.broker) == rows(0)
    assert read_values(query.broker, "read_uncommitted") == rows(0)


def test_records_batch_that_another_driver_has_finished(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("commit"):
        query.commit(start, 0, prepared)
    entry = query.with_new_driver().begin().entry
    assert (entry.state, entry.transactions) == (EntryState.DONE, ())


# --- concurrent starts


@pytest.mark.parametrize("fenced_starts", [1, 4])
def test_driver_fenced_during_start_retries(query: Query, fenced_starts: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    query.run(0)
    successor, left, original = query.with_new_driver(), list(range(fenced_starts)), QueryTransactions.fence

    def fence(transactions: QueryTransactions, description: TransactionDescription | None) -> ProducerIdAndEpoch:
        if left:  # Another driver gets two epochs and dies.
            left.pop()
            transactions.bump_epoch(original(transactions, description), 60_000)
        return original(transactions, description)

    with (
        patch.object(QueryTransactions, "fence", fence),
        patch.object(QueryTransactions, "find_longest_timeout_ms", return_value=60_000) as find_timeout,
    ):
        successor.begin()
    assert caplog.text.count("The driver was fenced and starts again (prefix p)") == fenced_starts
    assert find_timeout.call_count == 1, "the brokers are asked only once which timeout they grant"
    successor.run(1)
    assert read_values(query.broker) == rows(0, 1)


@contextmanager
def entry_replaced_before_next_epoch(replace_entry: Callable[[Entry], Entry]) -> Iterator[None]:
    """Let the first read of the log under the first new epoch return another entry, as if it was written before."""
    original_read, is_next_read = QueryTransactions.read_entry, iter([True])

    def read_entry(transactions: QueryTransactions) -> Entry:
        entry = original_read(transactions)
        return replace_entry(entry) if next(is_next_read, False) else entry

    with patch.object(QueryTransactions, "read_entry", read_entry):
        yield


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_driver_that_begins_again_gives_up_if_another_driver_has_claimed_the_prefix(query: Query) -> None:
    """With version 1, a driver requests an epoch for its next batch. Another driver can write before."""
    query.run(0)
    end_offset = log_end_offset(query)
    with (
        entry_replaced_before_next_epoch(lambda entry: entry.with_claim("driver-2", checkpoint="", timeout_ms=60_000)),
        pytest.raises(ExactlyOnceError, match="driver-2"),
    ):
        query.begin()
    assert log_end_offset(query) == end_offset


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_driver_that_begins_again_claims_the_prefix_if_its_start_has_written_since(query: Query) -> None:
    """For example, Spark has stopped a query without a registered name, and its next start has the same driver name."""
    entry = query.run(0).entry
    with entry_replaced_before_next_epoch(lambda entry: entry.with_claim_identity(UNUSED_IDENTITY)):
        start = query.begin()
    assert start.entry.claim_identity not in (UNUSED_IDENTITY, entry.claim_identity)


def test_driver_that_is_always_fenced_reports_concurrent_starts(query: Query) -> None:
    fenced_starts = patch.object(
        QueryTransactions, "fence", side_effect=ProducerFencedError("another", code=0, name="")
    )
    with fenced_starts, pytest.raises(ExactlyOnceError, match="Several drivers started under the prefix p at the same"):
        query.begin()


# --- a transaction times out


def time_out(query: Query, *transactions: str) -> None:
    """Abort the transaction under a fencing epoch, as brokers do when it has timed out."""
    with connect_client(query.broker) as client:
        for transactional_id in transactions:
            init_producer_id(client, transactional_id, 60_000)


def test_detects_ended_transaction_before_the_decision(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    time_out(query, start.build_task_id(1, 0))
    with pytest.raises(ExactlyOnceError, match=r"(?s)p-1-1-0: .*more than the transaction timeout \(900 s"):
        query.commit(start, 0, prepared)
    assert query.abort(start, 0)
    assert read_values(query.broker) == []
    query.run(0)
    assert read_values(query.broker) == rows(0)


def test_detects_forgotten_transaction_before_the_decision(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    del query.broker.cluster.coordinator.transactions[start.build_task_id(1, 0)]
    with pytest.raises(ExactlyOnceError, match="p-1-1-0: unknown to the brokers"):
        query.commit(start, 0, prepared)
    of_driver = query.broker.cluster.coordinator.transactions[build_driver_id(query.prefix)]
    assert of_driver.state is not TransactionState.ONGOING, "readers of the log would wait for it"
    assert query.begin().entry.state is EntryState.OPEN, "nothing was decided"


def test_names_transactions_lost_between_decision_and_commit(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("commit"):
        query.commit(start, 0, prepared)
    time_out(query, start.build_task_id(1, 0))
    for driver in ("driver-2", "driver-3"):
        with pytest.raises(CommitLostError) as error:
            query.with_new_driver(name=driver).begin()
        message = str(error.value)
        assert message.startswith("This run has written nothing, because the last batch under its prefix must be")
        assert "batch 0 of query query-1 is decided (prefix p), but 1 of its 2 transactions can no longer" in message
        assert "p-1-1-0 (rows of Spark's partition 1, producer id" in message
        assert "p-1-0-0" not in message
    assert read_values(query.broker) == ["0/0"]


# --- rejections


def test_rejects_batch_older_than_the_last_one(query: Query) -> None:
    query.run(7)
    start = query.begin()
    with pytest.raises(
        ExactlyOnceError, match="batch 6 of query query-1 must not be written: batch 7 of query query-1"
    ):
        start.is_decided(query.batch(6))


def test_rejects_prefix_of_another_query(query: Query) -> None:
    query.run(7)
    start = query.begin()
    with pytest.raises(ExactlyOnceError, match=r"belongs to another query.*the checkpoint was deleted"):
        start.is_decided(Batch("query-2", 0))


def test_derived_prefix_of_deleted_checkpoint_starts_again(query: Query) -> None:
    query.has_user_prefix = False
    query.run(7)
    other = query.with_new_driver(query="query-2")
    other.run(0)
    assert read_values(query.broker) == rows(0, 7)


def test_rejects_prefix_in_use_with_another_checkpoint_without_affecting_its_owner(query: Query) -> None:
    query.run(0)
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    with (
        assert_no_new_epoch(query.broker),
        pytest.raises(
            ExactlyOnceError, match=r"(?s)in use by a query with the checkpoint /checkpoint.*specify it as before"
        ),
    ):
        query.with_new_driver(checkpoint="/other").begin()
    query.commit(start, 1, prepared)
    assert read_values(query.broker) == rows(0, 1)


@pytest.mark.parametrize("has_decided", [False, True])
def test_rejects_job_with_prefix_of_stream_without_affecting_the_stream(query: Query, *, has_decided: bool) -> None:
    if has_decided:
        query.run(0)
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    job = _job_settings(query)
    owner = r"belongs to a stream with the checkpoint /checkpoint \(newest driver: driver-1"
    with (
        assert_no_new_epoch(query.broker),
        Driver(job) as driver,
        pytest.raises(ExactlyOnceError, match=rf"{owner}.*this is a batch job.*its own transactionalIdPrefix"),
    ):
        driver.begin("job-1")
    query.commit(start, 1, prepared)
    assert read_values(query.broker) == (rows(0, 1) if has_decided else rows(1))


@pytest.mark.parametrize("has_decided", [False, True])
def test_rejects_stream_with_prefix_of_jobs_without_affecting_the_jobs(query: Query, *, has_decided: bool) -> None:
    batch = Batch(key="today", scope="t")
    settings = _job_settings(query)
    with Driver(settings) as job:
        start = job.begin("job-1")
        prepared = query.write_tasks(start, 0)
        if has_decided:
            job.commit(start, batch, prepared, BOTH_TASKS)
        with (
            assert_no_new_epoch(query.broker),
            pytest.raises(ExactlyOnceError, match=r"belongs to batch jobs \(newest driver: job-1.*this is a stream"),
        ):
            query.begin()
        if not has_decided:
            job.commit(start, batch, prepared, BOTH_TASKS)
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize(
    ("api", "code", "message"),
    [
        (ApiKey.CREATE_TOPICS, error_codes.TOPIC_AUTHORIZATION_FAILED, "decisions.*could not be created.*Grant this"),
        (
            ApiKey.FIND_COORDINATOR,
            error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactional id p-driver.*Grant",
        ),
        (
            ApiKey.INIT_PRODUCER_ID,
            error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactional id p-driver.*Grant",
        ),
    ],
)
def test_missing_permission_is_reported_before_the_first_row(
    query: Query, api: ApiKey, code: int, message: str
) -> None:
    query.broker.control.when(api=api, times=None).fail(code)
    with pytest.raises(PreflightError, match=f"(?s)nothing was written.*{message}"):
        query.begin()


@pytest.mark.parametrize(("before_ms", "after_ms"), [(900_000, 300_000), (300_000, 900_000)])
def test_each_driver_of_a_start_gets_currently_granted_timeout(query: Query, before_ms: int, after_ms: int) -> None:
    query.broker.cluster.coordinator.max_timeout_ms = before_ms
    assert query.with_new_driver(name=build_batch_driver_name("start", "1")).run(0).entry.timeout_ms == before_ms
    query.broker.cluster.coordinator.max_timeout_ms = after_ms
    assert query.with_new_driver(name=build_batch_driver_name("start", "2")).run(1).entry.timeout_ms == after_ms


def test_changed_timeout_applies_from_next_start_without_register(query: Query) -> None:
    """Without `register`, all of these drivers belong to one start."""
    assert (
        query.with_new_driver(name=build_batch_driver_name("spark", "1"), timeout_ms=70_000).run(0).entry.timeout_ms
        == 70_000
    )
    assert (
        query.with_new_driver(name=build_batch_driver_name("spark", "2"), timeout_ms=50_000).run(1).entry.timeout_ms
        == 50_000
    )
    assert query.with_new_driver(name=build_batch_driver_name("spark", "3")).run(2).entry.timeout_ms == 900_000


@pytest.mark.parametrize("user_timeout_ms", [None, 3_000])
def test_start_fails_if_brokers_do_not_grant_the_timeout_that_fencing_needs(
    query: Query, user_timeout_ms: int | None
) -> None:
    """The message has one remedy, for the brokers: the user's own timeout is shorter."""
    query.broker.cluster.coordinator.max_timeout_ms = 4_998
    with pytest.raises(PreflightError) as error:
        query.with_new_driver(timeout_ms=user_timeout_ms).begin()
    assert str(error.value).endswith(f"The broker's transaction.max.timeout.ms is less than the 5000 ms {SINK_REMEDY}")


def test_restart_fails_if_brokers_no_longer_grant_the_shortest_timeout(query: Query) -> None:
    query.run(0)
    query.broker.cluster.coordinator.max_timeout_ms = 4_998
    with pytest.raises(PreflightError) as error:
        query.with_new_driver().begin()
    assert str(error.value).endswith(f"The broker's transaction.max.timeout.ms is less than the 5000 ms {SINK_REMEDY}")


SINK_REMEDY = (
    "that the sink has requested. The sink needs this timeout for its own transactions. Increase "
    "transaction.max.timeout.ms on all brokers to at least this value."
)


def test_manual_abort_names_timeout_that_brokers_reject(query: Query) -> None:
    query.begin()
    query.broker.cluster.coordinator.max_timeout_ms = 4_998
    with pytest.raises(BrokerError) as error:
        operations.abort(query.options, PREFIX, LOG)
    assert str(error.value) == (
        "transactional id p-driver: INVALID_TRANSACTION_TIMEOUT (50). The broker's transaction.max.timeout.ms is less "
        f"than the 4999 ms {SINK_REMEDY}"
    )


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_batch_fails_after_timeout_limit_was_decreased_and_restart_continues(query: Query) -> None:
    """With version 1, the driver requests an epoch for each batch, with a timeout derived from that of its tasks."""
    query.run(0)
    query.broker.cluster.coordinator.max_timeout_ms = 10_000
    with pytest.raises(PreflightError) as error:
        query.begin()
    assert str(error.value).endswith(
        "is less than the 19999 ms that the sink has requested. The limit was decreased after this driver had started. "
        "If kafka.transaction.timeout.ms is set, decrease it; otherwise, the next start requests a shorter timeout."
    )
    query.with_new_driver().run(1)
    assert read_values(query.broker) == rows(0, 1)


def test_start_whose_timeout_brokers_reject_does_not_fence_the_running_driver(query: Query) -> None:
    query.run(0)
    start = query.begin()
    with pytest.raises(PreflightError, match="INVALID_TRANSACTION_TIMEOUT"):
        query.with_new_driver(timeout_ms=900_001).begin()
    with connect_client(query.broker) as client:
        description = describe_transactions(client, [start.driver_id])[start.driver_id]
    assert start.is_waiting_for_tasks(description)
    query.commit(start, 1, query.write_tasks(start, 1))
    assert read_values(query.broker) == rows(0, 1)


def test_start_fails_with_error_of_broker_that_rejects_every_timeout(query: Query) -> None:
    """Unlike INVALID_TRANSACTION_TIMEOUT, this error has nothing to do with the requested timeouts."""
    error = build_broker_error(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id p-timeout")
    with (
        patch.object(QueryTransactions, "find_longest_timeout_ms", side_effect=error),
        pytest.raises(PreflightError, match="p-timeout: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        query.begin()
    assert list_open_ids(query.broker) == []


def test_transactions_of_unnamed_job_last_at_most_an_hour(query: Query) -> None:
    query.broker.cluster.coordinator.max_timeout_ms = 12 * 60 * 60_000
    with Driver(dataclasses.replace(query.settings, prefix="job", is_single_use=True)) as driver:
        assert driver.begin("driver-1").entry.timeout_ms == 60 * 60_000
    assert query.begin().entry.timeout_ms == 12 * 60 * 60_000


def test_uses_longest_transaction_timeout_that_brokers_grant(query: Query) -> None:
    assert query.begin().entry.timeout_ms == 900_000
    assert query.with_new_driver(timeout_ms=70_000).begin().entry.timeout_ms == 70_000
    with pytest.raises(PreflightError, match=r"INVALID_TRANSACTION_TIMEOUT.*Decrease kafka\.transaction\.timeout\.ms"):
        query.with_new_driver(name="driver-3", timeout_ms=900_001).begin()
