"""The commit margin: a driver decides only while enough of the transactions' timeout is left to commit them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.commit_margin import compute_commit_margin_ms, compute_decision_timeout_ms
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.log_writer import LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.timeout_marks import (
    compute_driver_claimed_timeout_ms,
    compute_driver_fencing_timeout_ms,
)
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import Query, list_open_ids, open_query_transactions, read_values, rows
from tests.exactly_once.embedded_query import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_does_not_decide_with_too_little_time_left(query: Query) -> None:
    """If a batch is decided a tenth of a second before the timeout, some of its transactions can be lost."""
    query.timeout_ms = 60_000
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    transaction = query.broker.cluster.coordinator.transactions[start.build_task_id(1, 0)]
    transaction.started_at_wall_ms -= 51_000
    with pytest.raises(ExactlyOnceError, match=r"of the 60 s .* (8\.\d|9\.0) s were left for p-1-1-0"):
        query.commit(start, 0, prepared)
    assert query.abort(start, 0)
    assert (read_values(query.broker), list_open_ids(query.broker)) == ([], [])
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.broker.cluster.coordinator.transactions[start.build_task_id(1, 0)].started_at_wall_ms -= 30_000
    query.commit(start, 0, prepared)
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("offset_ms", [50_000, -50_000], ids=["ahead", "behind"])
def test_clock_difference_prevents_decision_or_permits_late_one(
    query: Query, offset_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver computes that 60 s of the timeout are left, and the second one 5 s."""
    query.timeout_ms = 60_000
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    wall_ms = BlockingClient.wall_ms
    monkeypatch.setattr(BlockingClient, "wall_ms", lambda client: wall_ms(client) + offset_ms)
    if offset_ms > 0:
        with pytest.raises(ExactlyOnceError, match="this machine's clock and the brokers' clocks"):
            query.commit(start, 0, prepared)
        assert read_values(query.broker) == []
    else:
        query.broker.cluster.coordinator.transactions[start.build_task_id(1, 0)].started_at_wall_ms -= 55_000
        query.commit(start, 0, prepared)
        assert read_values(query.broker) == rows(0)


def test_commit_margin_of_short_timeout_is_a_quarter(query: Query) -> None:
    query.timeout_ms = 8_000
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.broker.cluster.coordinator.transactions[start.build_task_id(0, 0)].started_at_wall_ms -= 6_500
    with pytest.raises(ExactlyOnceError, match=r"of the 8 s of the transaction timeout, only [01]\.\d s were left"):
        query.commit(start, 0, prepared)


@pytest.mark.parametrize("suspended_after", ["the record is written", "the record is sent"])
def test_decision_fails_if_too_much_time_passed_since_the_check(
    query: Query, suspended_after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause can be a suspended process, or a leader election of the log."""
    query.timeout_ms = 60_000
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    at = "wait" if suspended_after == "the record is written" else "begin_write"
    owner: type = LogTransaction if at == "wait" else QueryTransactions
    original = getattr(owner, at)

    def advance_clock(*arguments: Any) -> Any:
        found = original(*arguments)
        wall_ms = BlockingClient.wall_ms
        monkeypatch.setattr(BlockingClient, "wall_ms", lambda client: wall_ms(client) + 50_000)
        return found

    monkeypatch.setattr(owner, at, advance_clock)
    with pytest.raises(ExactlyOnceError, match="too little to commit it safely"):
        query.commit(start, 0, prepared)
    monkeypatch.undo()
    assert query.abort(start, 0)
    assert list_open_ids(query.broker) == []
    query.run(0)
    assert read_values(query.broker) == rows(0)


def time_out_before_commit(
    query: Query, start: BatchStart, monkeypatch: pytest.MonkeyPatch, *, tasks_too: bool
) -> None:
    """Suspend the driver before the commit of its decision, until the decision or all transactions have timed out."""
    coordinator, original = query.broker.cluster.coordinator, LogTransaction.commit

    def suspend_commit(writing: LogTransaction, *arguments: Any) -> WriterState:
        monkeypatch.undo()
        with query.broker.cluster.lock:
            now_ms = max(transaction.started_at_monotonic_ms for transaction in coordinator.transactions.values())
            assert coordinator.abort_timed_out_transactions(
                now_ms + compute_decision_timeout_ms(start.entry.timeout_ms)
            ) == [start.driver_id]
            if tasks_too:
                coordinator.abort_timed_out_transactions(1e12)
        return original(writing, *arguments)

    monkeypatch.setattr(LogTransaction, "commit", suspend_commit)


def test_driver_suspended_between_check_and_decision_decides_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's transaction times out before those of its tasks, which are aborted as late as brokers may do it."""
    query.run(0)
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    time_out_before_commit(query, start, monkeypatch, tasks_too=True)
    with pytest.raises(ExactlyOnceError, match="are no longer open"):
        query.commit(start, 1, prepared)
    query.with_new_driver().run(1)
    assert read_values(query.broker) == rows(0, 1)


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_start_that_dies_after_fencing_leaves_short_timeout(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka takes the request of a starting driver for a retry, so it replaces the timeout of the current driver."""
    query.run(0)
    with open_query_transactions(query.broker) as starting:
        description = starting.describe_driver_id()
        start = query.begin()
        prepared = query.write_tasks(start, 1)
        assert starting.fence(description) == start.driver_identity
    time_out_before_commit(query, start, monkeypatch, tasks_too=True)
    with pytest.raises(ExactlyOnceError, match="are no longer open"):
        query.commit(start, 1, prepared)
    query.with_new_driver().run(1)
    assert read_values(query.broker) == rows(0, 1)


def test_retries_decision_that_timed_out_before_the_tasks(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other driver has claimed the prefix, and time is left for the tasks' transactions."""
    query.run(0)
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    time_out_before_commit(query, start, monkeypatch, tasks_too=False)
    query.commit(start, 1, prepared)
    assert read_values(query.broker) == rows(0, 1)
    query.run(2)
    assert read_values(query.broker) == rows(0, 1, 2)


def test_aborts_batch_after_failed_retry_of_decision(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has claimed the prefix again, so the newest entry differs from that of the start."""
    query.run(0)
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    time_out_before_commit(query, start, monkeypatch, tasks_too=False)
    looks = patch.object(Driver, "_find_commit_error", side_effect=[None, ExactlyOnceError("too late")])
    with looks, pytest.raises(ExactlyOnceError, match="too late"):
        query.commit(start, 1, prepared)
    assert query.abort(start, 1)
    assert (read_values(query.broker), list_open_ids(query.broker)) == (rows(0), [])
    query.run(1)
    assert read_values(query.broker) == rows(0, 1)


def test_retries_commit_of_decision_only_within_the_decision_timeout(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.timeout_ms = 12_000
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(ExactlyOnceError, match=r"It is not known whether batch 0 .* timed out after 1000 ms"):
        query.commit(start, 0, prepared)
    query.broker.control.clear()
    query.with_new_driver().run(0)
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("granted_ms", [1_000, 5_000, 60_000, 900_000, 86_400_000])
def test_driver_transaction_times_out_within_the_commit_margin(granted_ms: int) -> None:
    assert compute_driver_claimed_timeout_ms(granted_ms) <= max(999, compute_commit_margin_ms(granted_ms) / 3)
    if granted_ms >= 60_000:
        for is_claimed in (True, False):
            assert compute_driver_fencing_timeout_ms(is_claimed=is_claimed) <= compute_commit_margin_ms(granted_ms) / 3
