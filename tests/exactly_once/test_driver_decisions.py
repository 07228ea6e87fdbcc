"""Failures while a driver decides a batch, and the transactions and records that it must then complete."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import BrokerError, DisconnectedError, ExactlyOnceError, ProducerFencedError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.log_writer import LogTransaction, WriterState
from spark_kafka_sink.exactly_once.precommit_errors import build_other_driver_error
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests import transaction_admin
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    Query,
    assert_no_new_epoch,
    list_open_ids,
    open_query_transactions,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker

DESCRIBE_FUNCTION = "spark_kafka_sink.exactly_once.driver.describe_transactions"
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
        patch(DESCRIBE_FUNCTION, side_effect=DISCONNECTED),
        patch.object(LogTransaction, "abandon", autospec=True) as abandon,
        pytest.raises(DisconnectedError) as raised,
    ):
        query.commit(start, 0, prepared)
    assert raised.value is DISCONNECTED
    abandon.assert_called_once()
    assert not query.with_new_driver().begin().is_decided(query.batch(0))


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


def test_decision_that_fails_after_a_fenced_attempt_is_not_in_doubt(query: Query) -> None:
    """The fenced try has certainly decided nothing, and the next one fails before its commit."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = transaction_admin.describe_transactions
    outcomes: list[Exception | None] = [None, DISCONNECTED]

    def describe(*arguments: Any) -> Any:
        error = outcomes.pop(0)
        if error is not None:
            raise error
        return original(*arguments)

    with (
        patch(DESCRIBE_FUNCTION, describe),
        failing_commits(build_other_driver_error("p-driver")),
        pytest.raises(DisconnectedError),
    ):
        query.commit(start, 0, prepared)
    assert outcomes == []


def test_decision_fenced_before_its_commit_is_not_in_doubt(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with (
        patch.object(LogTransaction, "wait", side_effect=build_other_driver_error("p-driver")),
        patch.object(QueryTransactions, "_reclaim_prefix", side_effect=build_other_driver_error("p-driver")),
        pytest.raises(ExactlyOnceError, match="batch 0 of query query-1 was not committed: a newer driver") as raised,
    ):
        query.commit(start, 0, prepared)
    assert isinstance(raised.value.__cause__, ProducerFencedError)


def test_decision_is_in_doubt_if_the_retry_of_its_commit_is_fenced(query: Query) -> None:
    """The first response is lost, and another job finishes the batch before the retry."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original, newer = LogTransaction.commit, query.with_new_driver()

    def commit_twice(transaction: LogTransaction, timeout_ms: float | None = None) -> WriterState:
        original(transaction, timeout_ms)
        with patch.object(LogTransaction, "commit", original):
            newer.write_and_commit(newer.begin(), Batch(key="next", scope="t"))
        return original(transaction, timeout_ms)

    with (
        patch.object(LogTransaction, "commit", commit_twice),
        Driver(query.settings) as driver,
        pytest.raises(
            ExactlyOnceError, match="It is not known whether job number 1 is committed: a newer driver"
        ) as raised,
    ):
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    assert isinstance(raised.value.__cause__, ProducerFencedError)
    assert read_values(query.broker) == sorted(rows(0) * 2), "the rows of both jobs are visible"


def test_failed_listing_of_superseded_attempts_is_a_warning(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.write(start, 0, "of a superseded attempt", attempt=1)
    error = patch.object(QueryTransactions, "list_task_transactions", side_effect=DISCONNECTED)
    with error, caplog.at_level(logging.WARNING, "spark_kafka_sink"):
        query.commit(start, 0, prepared)
    assert "may still be open" in caplog.text
    assert read_values(query.broker) == rows(0)
    assert query.with_new_driver().begin().is_decided(query.batch(0)), "the batch is recorded as done"
    assert list_open_ids(query.broker) == []


def test_unnamed_job_without_rows_leaves_no_entry(query: Query) -> None:
    settings = dataclasses.replace(query.settings, is_single_use=True)
    with Driver(settings) as driver:
        start = driver.begin("job")
        assert start.entry.generation == 1
        driver.commit(start, Batch(), [], BOTH_TASKS)
    with open_query_transactions(query.broker) as transactions:
        transactions.describe_driver_id()
        assert transactions.read_entry().generation == 0, "the log has no entry"


def test_unnamed_job_without_rows_warns_of_open_transactions(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    settings = dataclasses.replace(query.settings, is_single_use=True)
    with Driver(settings) as driver:
        start = driver.begin("job")
        query.write(start, 0, "of a superseded attempt")
        with patch.object(QueryTransactions, "list_task_transactions", side_effect=DISCONNECTED):
            driver.commit(start, Batch(), [], BOTH_TASKS)
    assert len(list_open_ids(query.broker)) == 1
    assert "the job is committed (prefix p), but transactions of superseded task attempts may still be open" in (
        caplog.text
    )


def test_decision_whose_commit_was_reported_as_fenced_is_not_written_again(query: Query) -> None:
    """An older driver can fence a newer one after its decision."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original_commit, original_write, fences, states = LogTransaction.commit, QueryTransactions.begin_write, [1], []

    def commit_and_be_fenced(transaction: LogTransaction, timeout_ms: float | None = None) -> WriterState:
        state = original_commit(transaction, timeout_ms)
        if fences:
            fences.pop()
            raise build_other_driver_error("p-driver")
        return state

    def begin_write(transactions: QueryTransactions, state: WriterState, entry: Entry) -> LogTransaction:
        states.append(entry.state)
        return original_write(transactions, state, entry)

    with (
        patch.object(LogTransaction, "commit", commit_and_be_fenced),
        patch.object(QueryTransactions, "begin_write", begin_write),
    ):
        query.commit(start, 0, prepared)
    assert states == [EntryState.DECIDED, EntryState.DONE]
    assert read_values(query.broker) == rows(0)


# --- other drivers between two steps


@pytest.mark.parametrize("has_predecessor", [False, True])
def test_driver_is_fenced_by_start_after_description_of_driver_id(
    query: Query, monkeypatch: pytest.MonkeyPatch, *, has_predecessor: bool
) -> None:
    if has_predecessor:
        query.with_new_driver(name="driver-0").run(0)
    newer, starts, original = query.with_new_driver(), list[BatchStart](), DecisionLog.create_if_missing

    def begin_other_driver(log: DecisionLog, replication: int) -> None:
        monkeypatch.undo()
        original(log, replication)
        starts.append(newer.begin())

    monkeypatch.setattr(DecisionLog, "create_if_missing", begin_other_driver)
    with pytest.raises(ExactlyOnceError, match="A newer driver has taken over"):
        query.begin()
    newer.commit(starts[0], 1, newer.write_tasks(starts[0], 1))
    assert read_values(query.broker) == (rows(0, 1) if has_predecessor else rows(1))


def test_driver_continues_after_an_outdated_description_of_its_driver_id(query: Query) -> None:
    """A broker that was suspended may describe the driver id as it was before this driver's claim."""
    query.run(0)
    with open_query_transactions(query.broker) as transactions:
        descriptions = [transactions.describe_driver_id()]
    successor = query.with_new_driver()
    successor.begin()
    original = QueryTransactions.wait_and_describe_driver_id

    def describe(transactions: QueryTransactions) -> TransactionDescription | None:
        return descriptions.pop() if descriptions else original(transactions)

    with patch.object(QueryTransactions, "wait_and_describe_driver_id", describe):
        start = successor.begin()
    assert descriptions == []
    successor.commit(start, 1, successor.write_tasks(start, 1))
    assert read_values(query.broker) == rows(0, 1)


def test_only_a_new_driver_checks_for_a_concurrent_one(query: Query) -> None:
    """A driver that continues has an epoch that no other driver has."""
    original = QueryTransactions.check_unchanged
    with patch.object(QueryTransactions, "check_unchanged", autospec=True, side_effect=original) as check:
        query.run(0)
        query.run(1)
        assert check.call_count == 1
        query.with_new_driver().begin()
        assert check.call_count == 2


def test_late_abort_does_not_fence_a_newer_driver(query: Query) -> None:
    start = query.begin()
    query.with_new_driver().begin()
    with assert_no_new_epoch(query.broker):
        assert not query.abort(start, 0)


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_batch_that_is_decided_while_its_abort_begins_is_not_aborted(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In version 1, the epoch after a decision is the one that the abort has read before."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = QueryTransactions.fence

    def commit_and_fence(transactions: QueryTransactions, *arguments: Any) -> Any:
        monkeypatch.undo()
        query.commit(start, 0, prepared)
        return original(transactions, *arguments)

    monkeypatch.setattr(QueryTransactions, "fence", commit_and_fence)
    assert not query.abort(start, 0)
    assert read_values(query.broker) == rows(0)
    assert query.with_new_driver().begin().is_decided(query.batch(0))
