"""Failures while a driver decides a batch, and what it has to end and to record afterwards."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import BrokerError, DisconnectedError, ExactlyOnceError, ProducerFencedError
from spark_kafka_sink.exactly_once import driver as driver_module
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch
from spark_kafka_sink.exactly_once.log_writer import LogTransaction
from spark_kafka_sink.exactly_once.precommit_errors import build_fenced_error
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    Query,
    list_open_ids,
    open_query_transactions,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker

DISCONNECTED = DisconnectedError("broker 1 closed the connection")


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_commits_no_task_if_the_leader_rejects_the_decision(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.broker.control.when(api=ApiKey.PRODUCE, topic=LOG).fail(error_codes.MESSAGE_TOO_LARGE)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
        query.commit(start, 0, prepared)
    assert read_values(query.broker) == []
    query.with_new_driver().run(0)
    assert read_values(query.broker) == rows(0)


def test_abandons_the_decision_if_the_tasks_cannot_be_described(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with (
        patch.object(driver_module, "describe_transactions", side_effect=DISCONNECTED),
        patch.object(LogTransaction, "abandon", autospec=True) as abandon,
        pytest.raises(DisconnectedError) as raised,
    ):
        query.commit(start, 0, prepared)
    assert raised.value is DISCONNECTED
    abandon.assert_called_once()
    assert not query.with_new_driver().begin().is_committed(query.batch(0))


@contextmanager
def failing_commits(*errors: Exception) -> Iterator[None]:
    """Let the first commits of the driver's records fail with these errors, before they are sent."""
    original, left = LogTransaction.commit, list(errors)

    def commit(transaction: LogTransaction, timeout_ms: float | None = None) -> Any:
        if left:
            raise left.pop(0)
        return original(transaction, timeout_ms)

    with patch.object(LogTransaction, "commit", commit):
        yield


def test_decision_is_in_doubt_if_its_commit_fails(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with failing_commits(DISCONNECTED), pytest.raises(ExactlyOnceError, match="It is not known whether batch 0"):
        query.commit(start, 0, prepared)


def test_decision_that_fails_after_a_fenced_try_is_not_in_doubt(query: Query) -> None:
    """The fenced try has certainly decided nothing, and the next one fails before its commit."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = driver_module.describe_transactions
    outcomes: list[Exception | None] = [None, DISCONNECTED]

    def describe(*arguments: Any) -> Any:
        error = outcomes.pop(0)
        if error is not None:
            raise error
        return original(*arguments)

    with (
        patch.object(driver_module, "describe_transactions", describe),
        failing_commits(build_fenced_error("p-driver")),
        pytest.raises(DisconnectedError),
    ):
        query.commit(start, 0, prepared)
    assert outcomes == []


def test_fenced_decision_is_not_in_doubt(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with (
        failing_commits(build_fenced_error("p-driver")),
        patch.object(driver_module.QueryTransactions, "_reclaim", side_effect=build_fenced_error("p-driver")),
        pytest.raises(ExactlyOnceError, match="batch 0 of query query-1 was not committed: a newer driver") as raised,
    ):
        query.commit(start, 0, prepared)
    assert isinstance(raised.value.__cause__, ProducerFencedError)


def test_failed_listing_of_superseded_attempts_is_a_warning(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.write(start, 0, "of a superseded attempt", attempt=1)
    error = patch.object(driver_module.QueryTransactions, "list_task_transactions", side_effect=DISCONNECTED)
    with error, caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        query.commit(start, 0, prepared)
    assert "may still be open" in caplog.text
    assert read_values(query.broker) == rows(0)
    assert query.with_new_driver().begin().is_committed(query.batch(0)), "the batch is recorded as done"
    assert list_open_ids(query.broker) == []


def test_unnamed_job_without_rows_leaves_no_entry(query: Query) -> None:
    delivery = dataclasses.replace(query.delivery, is_single_use=True, writer_kind=None)
    with Driver(delivery) as driver:
        start = driver.begin("job")
        assert start.entry.generation == 1
        driver.commit(start, Batch(), [], BOTH_TASKS)
    with open_query_transactions(query.broker) as transactions:
        transactions.describe_driver_id()
        assert transactions.read_entry().generation == 0, "the log has no entry"
