"""Errors of a driver that cannot commit a decided batch yet, or can no longer commit it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError, NetworkError
from spark_kafka_sink.exactly_once import commit_errors, operations
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.engine import RequestEngine
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Query,
    client_options,
    connect_client,
    death_before,
    list_open_ids,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker

REVOKED = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def fail_commit(
    query: Query, start: BatchStart, prepared: list[TransactionIdentity], fault: Callable[[], object]
) -> ExactlyOnceError:
    """Call `fault` once the batch is decided, and return the error of the commit. The driver gives up after 1.5 s."""
    commit_all = Driver._commit_transactions

    def commit_after_fault(driver: Driver, *arguments: Any, **named: Any) -> None:
        driver._client._timeout_ms = 1_500
        fault()
        commit_all(driver, *arguments, **named)

    with patch.object(Driver, "_commit_transactions", commit_after_fault), pytest.raises(ExactlyOnceError) as failed:
        query.commit(start, 0, prepared)
    query.broker.control.clear()
    return failed.value


def drop_end_requests(broker: EmbeddedBroker) -> None:
    broker.control.when(api=ApiKey.END_TXN, times=None).drop()


def return_unknown_errors(broker: EmbeddedBroker) -> None:
    broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.UNKNOWN_SERVER_ERROR)


def deny_coordinator_lookup(broker: EmbeddedBroker) -> None:
    broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.NOT_COORDINATOR)
    broker.control.when(api=ApiKey.FIND_COORDINATOR, times=None).fail(REVOKED)


@pytest.mark.parametrize("fault", [drop_end_requests, return_unknown_errors, deny_coordinator_lookup])
def test_unfinished_commit_reports_decided_batch_and_remedy(
    query: Query, fault: Callable[[EmbeddedBroker], None]
) -> None:
    start = query.begin()
    message = str(fail_commit(query, start, query.write_tasks(start, 0), lambda: fault(query.broker)))
    assert "batch 0 of query query-1 is decided (prefix p)" in message
    assert "Nothing is lost unless their transaction timeout has passed." in message
    assert "start again, or commit the open transactions with `pykafka transactions finish`" in message
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0)


def test_transaction_possibly_committed_by_newer_driver_is_not_lost(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    commit_all, newer = Driver._commit_transactions, query.with_new_driver()

    def commit_later(driver: Driver, *arguments: Any, **named: Any) -> Any:
        """First let the newer driver finish the batch, and its tasks use the same transactional ids."""
        with patch.object(Driver, "_commit_transactions", commit_all):
            newer.begin()
        with connect_client(query.broker) as client:
            for transaction in prepared:
                init_producer_id(client, transaction.transactional_id, 60_000)
        return commit_all(driver, *arguments, **named)

    no_response = patch.object(QueryTransactions, "has_lost_epoch", side_effect=NetworkError("no response."))
    with (
        patch.object(Driver, "_commit_transactions", commit_later),
        no_response,
        pytest.raises(ExactlyOnceError, match="They are lost unless another driver has committed them") as failed,
    ):
        query.commit(start, 0, prepared)
    assert not isinstance(failed.value, CommitLostError)
    assert read_values(query.broker) == rows(0)


def test_start_that_cannot_finish_earlier_job_reports_nothing_written(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("commit"), Driver(query.settings) as driver:
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    error = NetworkError("the coordinator did not respond.")
    with (
        patch.object(QueryTransactions, "commit", side_effect=error),
        pytest.raises(ExactlyOnceError, match=r"This run has written nothing.* earlier job .* the decided job again"),
    ):
        query.with_new_driver().begin()
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0), "the next start has finished the earlier job"


def test_error_separates_lost_from_rejected_transactions() -> None:
    tasks = tuple(TransactionIdentity(f"p-1-{partition}-0", 4711, 12, 2) for partition in range(3))
    entry = Entry(PREFIX, timeout_ms=60_000).with_decision(Batch("q", 0), BOTH_TASKS, tasks)
    rejections = {
        "p-1-0-0": build_broker_error(error_codes.PRODUCER_FENCED, "lost"),
        "p-1-1-0": build_broker_error(REVOKED, "revoked"),
    }
    lost = commit_errors.build_not_committed_error(entry, rejections)
    assert isinstance(lost, CommitLostError)
    assert "1 of its 3 transactions can no longer be committed:\n- p-1-0-0" in str(lost)
    assert "these could not be committed yet, and are still open:\n- p-1-1-0" in str(lost)
    waiting = str(commit_errors.build_uncommitted_batch_error(entry, rejections))
    assert "1 of its 3 transactions could not be committed yet:\n- p-1-1-0" in waiting
    assert "still open. Can no longer be committed:\n- p-1-0-0\nNone of them has been given up yet." in waiting


def test_forgotten_transactions_are_reported_as_unknown(query: Query) -> None:
    """The transactions may have been committed before the driver died, so writing the batch again may duplicate it."""
    start = query.begin()

    def expire_transactional_ids() -> None:
        for partition in range(2):
            del query.broker.cluster.coordinator.transactions[start.build_task_id(partition, 0)]

    message = str(fail_commit(query, start, query.write_tasks(start, 0), expire_transactional_ids))
    assert "the brokers no longer know 2 of its 2 transactions" in message
    assert "it is not known whether the rows of these transactions were committed" in message
    assert "lost to read_committed readers" not in message


def test_rows_compared_before_give_up_are_not_all_visible(query: Query) -> None:
    """The transaction of a superseded attempt hides committed rows until the batch is given up."""
    start = query.begin()
    query.write(start, 1, "of an attempt that lost", attempt=1)
    prepared = query.write_tasks(start, 0)
    with death_before("commit"):
        query.commit(start, 0, prepared)
    with connect_client(query.broker) as client:
        init_producer_id(client, prepared[0].transactional_id, 60_000)
    with pytest.raises(
        CommitLostError, match=r"Record the batch as done .* After give-up, compare the batch with the records"
    ):
        query.with_new_driver().begin()
    assert read_values(query.broker) == []
    operations.give_up(client_options(query.broker), PREFIX, LOG)
    assert read_values(query.broker) == ["0/1"]


def test_commit_lost_error_does_not_exclude_that_rows_are_visible(query: Query) -> None:
    """A late request for a task's producer id reaches the coordinator when the transaction is committed."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("done"):
        query.commit(start, 0, prepared)
    assert read_values(query.broker) == rows(0)
    with connect_client(query.broker) as client:
        init_producer_id(client, prepared[1].transactional_id, 60_000)
    with pytest.raises(
        CommitLostError,
        match=r"lost .*, unless .* only the response was lost, which is rare; .* After give-up, compare",
    ):
        query.with_new_driver().begin()


def test_abort_waits_for_the_outcome_of_the_decision(query: Query) -> None:
    """Brokers respond to EndTxn before they write the markers, so an abort could be taken for a decision."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.broker.cluster.coordinator.transactions[start.build_task_id(0, 0)].started_at_wall_ms -= 10**9
    with pytest.raises(ExactlyOnceError, match="too little to commit it safely"):
        query.commit(start, 0, prepared)
    driver = query.broker.cluster.coordinator.transactions[start.driver_id]
    complete, driver.state = driver.state, TransactionState.PREPARE_ABORT
    original = RequestEngine.compute_backoff_ms

    def complete_markers_then_back_off(*arguments: Any) -> float:
        driver.state = complete if driver.state is TransactionState.PREPARE_ABORT else driver.state
        return original(*arguments)

    with patch.object(RequestEngine, "compute_backoff_ms", complete_markers_then_back_off):
        assert query.abort(start, 0)
    assert list_open_ids(query.broker) == []
