"""Two drivers of one query: the newer one continues, and the older one changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import BrokerError, CommitLostError, ExactlyOnceError, NetworkError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Query,
    assert_no_new_epoch,
    connect_client,
    death_before,
    fence_driver_id,
    list_open_ids,
    open_query_transactions,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_retried_start_aborts_transactions_left_open_after_its_claim(query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    successor = query.with_new_driver()
    failing = patch.object(QueryTransactions, "abort_task_transactions", side_effect=NetworkError("no broker responds"))
    with failing, pytest.raises(NetworkError):
        successor.begin()
    assert len(list_open_ids(query.broker)) == 2
    start = successor.begin()
    assert list_open_ids(query.broker) == []
    successor.commit(start, 0, successor.write_tasks(start, 0))
    assert read_values(query.broker) == rows(0)


def test_suspended_job_does_not_abort_transactions_of_next_job(query: Query) -> None:
    """The older job is suspended before it commits the tasks' transactions. It cannot record then that it is done."""
    older, newer = query, query.with_new_driver()
    older_batch, newer_batch = Batch(key="0", scope="t"), Batch(key="1", scope="t")
    older_start = older.begin()
    older_transactions = older.write_tasks(older_start, 0)
    resume = QueryTransactions.commit
    newer_job: list[tuple[BatchStart, list[TransactionIdentity]]] = []

    def run_newer_job(*arguments: Any, **named: Any) -> dict[str, BrokerError]:
        with patch.object(QueryTransactions, "commit", resume):
            newer_start = newer.begin()
            newer_job.append((newer_start, newer.write_tasks(newer_start, 1)))
        return resume(*arguments, **named)

    with patch.object(QueryTransactions, "commit", run_newer_job), Driver(older.settings) as driver:
        driver.commit(older_start, older_batch, older_transactions, BOTH_TASKS)
    ((newer_start, newer_transactions),) = newer_job
    with Driver(newer.settings) as driver:
        driver.commit(newer_start, newer_batch, newer_transactions, BOTH_TASKS)
    assert read_values(query.broker) == rows(0, 1)


def test_commit_of_older_driver_fails_when_fenced(query: Query) -> None:
    older, newer = query, query.with_new_driver()
    start = older.begin()
    prepared = older.write_tasks(start, 0)
    newer_start = newer.begin()
    with (
        assert_no_new_epoch(query.broker),
        pytest.raises(
            ExactlyOnceError, match="batch 0 of query query-1 was not committed: a newer driver has taken over"
        ),
    ):
        older.commit(start, 0, prepared)
    newer.commit(newer_start, 0, newer.write_tasks(newer_start, 0))
    assert read_values(query.broker) == rows(0)


def reuse_ids(query: Query, *transactional_ids: str) -> None:
    """Request these ids, as tasks of later drivers do: ids are reused after some generations."""
    with connect_client(query.broker) as client:
        for transactional_id in transactional_ids:
            init_producer_id(client, transactional_id, 60_000)


@contextmanager
def before_the_commit(act: Callable[[], object]) -> Iterator[None]:
    """Call a function when the next driver has read or written a decision and is about to commit it."""
    original, acted = QueryTransactions.commit, list[object]()

    def commit(query: QueryTransactions, *arguments: Any, **named: Any) -> dict[str, BrokerError]:
        if not acted:
            acted.append(None)
            act()
        return original(query, *arguments, **named)

    with patch.object(QueryTransactions, "commit", commit):
        yield


def test_fenced_driver_gives_up_if_newer_driver_claims_during_fence(query: Query) -> None:
    """A newer driver has fenced it, and claims after it has read the log. In version 1 that changes no epoch."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    original = QueryTransactions.fence
    with open_query_transactions(query.broker) as newer:
        state = fence_driver_id(newer)
        claim = newer.read_entry().with_claim("driver-2", "/checkpoint", 60_000, state.id_and_epoch)

        def fence_late(older: QueryTransactions, *arguments: Any) -> Any:
            if claims:
                newer.write(state, claims.pop())
            return original(older, *arguments)

        claims = [claim]
        with (
            patch.object(QueryTransactions, "fence", fence_late),
            pytest.raises(ExactlyOnceError, match="newer driver"),
        ):
            query.commit(start, 0, prepared)
    assert claims == []
    assert read_values(query.broker) == []


def test_driver_fenced_after_decision_without_new_claim_records_batch_as_done(
    query: Query,
) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with before_the_commit(lambda: reuse_ids(query, build_driver_id(PREFIX))):
        query.commit(start, 0, prepared)
    with open_query_transactions(query.broker) as transactions:
        description = transactions.describe_driver_id()
        assert description is not None
        assert transactions.read_entry().state is EntryState.DONE
    assert read_values(query.broker) == rows(0)


def test_older_driver_suspended_after_decision_reports_no_lost_rows(query: Query) -> None:
    newer = query.with_new_driver()
    start = query.begin()
    prepared = query.write_tasks(start, 0)

    def overtake() -> None:
        newer.begin()
        reuse_ids(query, *(identity.transactional_id for identity in prepared))

    with (
        before_the_commit(overtake),
        pytest.raises(ExactlyOnceError, match=r"is decided, but a newer driver has taken over .* prefix p,") as error,
    ):
        query.commit(start, 0, prepared)
    assert not isinstance(error.value, CommitLostError)
    assert read_values(query.broker) == rows(0)


def test_job_superseded_only_by_an_operator_names_its_lost_transaction(query: Query) -> None:
    """The operator's `finish` has fenced the driver and found the loss. No newer driver will report it."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    lost = prepared[1].transactional_id

    def lose_transaction_and_run_finish() -> None:
        reuse_ids(query, lost)
        finished = operations.finish(query.options, PREFIX, LOG)
        assert finished is not None
        assert list(finished.lost_transaction_errors) == [lost]

    with (
        before_the_commit(lose_transaction_and_run_finish),
        Driver(query.settings) as driver,
        pytest.raises(
            ExactlyOnceError, match=r"(?s)`pykafka transactions` has, .*If no newer driver is running"
        ) as error,
    ):
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    assert f"- {lost} (rows of Spark's partition 1, producer id" in str(error.value)
    assert "Do not run the job again" in str(error.value)
    assert read_values(query.broker) == ["0/0"]


@pytest.mark.parametrize("finish", [Query.begin, lambda query: operations.finish(query.options, PREFIX, LOG)])
def test_finish_after_suspension_reports_no_lost_rows(query: Query, finish: Callable[[Query], object]) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("commit"):
        query.commit(start, 0, prepared)

    def overtake() -> None:
        query.with_new_driver(name="driver-3").begin()
        reuse_ids(query, *(identity.transactional_id for identity in prepared))

    with (
        before_the_commit(overtake),
        pytest.raises(ExactlyOnceError, match="A newer driver has taken over the prefix p") as error,
    ):
        finish(query.with_new_driver())
    assert not isinstance(error.value, CommitLostError)
    assert read_values(query.broker) == rows(0)


def test_manual_abort_reports_concurrent_newer_driver_and_aborts_nothing_of_it(query: Query) -> None:
    newer, newer_start = query.with_new_driver(name="driver-3"), list[BatchStart]()
    query.write_tasks(query.begin(), 0)
    original = QueryTransactions.list_task_transactions

    def leftovers(transactions: QueryTransactions) -> list[TransactionDescription]:
        found = original(transactions)
        with patch.object(QueryTransactions, "list_task_transactions", original):
            newer_start.append(newer.begin())
        return found

    with (
        patch.object(QueryTransactions, "list_task_transactions", leftovers),
        pytest.raises(ExactlyOnceError, match="A newer driver has taken over the prefix p in the meantime"),
    ):
        operations.abort(query.options, PREFIX, LOG)
    newer.commit(newer_start[0], 0, newer.write_tasks(newer_start[0], 0))
    assert read_values(query.broker) == rows(0)


def test_names_rejected_transactions_although_driver_id_cannot_be_described(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    unresponsive = patch.object(
        QueryTransactions, "wait_and_describe_driver_id", side_effect=NetworkError("no broker responds")
    )
    with (
        before_the_commit(lambda: reuse_ids(query, prepared[1].transactional_id)),
        unresponsive,
        pytest.raises(
            ExactlyOnceError, match=r"(?s)p-1-1-0 \(.* are lost unless another driver has committed"
        ) as failed,
    ):
        query.commit(start, 0, prepared)
    assert not isinstance(failed.value, CommitLostError)
    assert read_values(query.broker) == ["0/0"]


def test_rejects_restart_of_older_driver_and_newer_one_continues(query: Query) -> None:
    older, newer = query, query.with_new_driver()
    older.run(0)
    start = newer.begin()
    prepared = newer.write_tasks(start, 1)
    with (
        assert_no_new_epoch(query.broker),
        pytest.raises(ExactlyOnceError, match="A newer driver has taken over the query with the prefix p: driver-2"),
    ):
        older.begin()
    newer.commit(start, 1, prepared)
    assert read_values(query.broker) == rows(0, 1)


@pytest.mark.parametrize("is_first", [True, False])
def test_driver_suspended_after_describing_its_id_is_rejected_after_newer_start(
    query: Query, *, is_first: bool
) -> None:
    if not is_first:
        query.with_new_driver(name="driver-0").run(0)
    newer, newer_start = query.with_new_driver(), list[BatchStart]()
    original = QueryTransactions.describe_driver_id

    def look(transactions: QueryTransactions, **named: bool) -> TransactionDescription | None:
        found = original(transactions, **named)
        if not newer_start:
            with patch.object(QueryTransactions, "describe_driver_id", original):
                newer_start.append(newer.begin())
        return found

    with (
        patch.object(QueryTransactions, "describe_driver_id", look),
        pytest.raises(
            ExactlyOnceError, match=r"driver-2. It did so after this driver, driver-1, had read.*may have ended"
        ),
    ):
        query.begin()
    newer.commit(newer_start[0], 1, newer.write_tasks(newer_start[0], 1))
    assert read_values(query.broker) == (rows(1) if is_first else rows(0, 1))


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        (Query.begin, "driver-2. It did so after this driver, driver-1, had read.*may have ended"),
        (lambda query: operations.abort(query.options, PREFIX, LOG), "A newer driver has taken over"),
    ],
    ids=["a driver", "a person who aborts"],
)
def test_driver_suspended_after_log_read_does_not_end_decision_of_newer_driver(
    query: Query, resume: Callable[[Query], object], message: str
) -> None:
    """Brokers abort the open transaction of an id for any client that requests its next epoch."""
    query.with_new_driver(name="driver-0").run(0)
    newer, original, newer_start = query.with_new_driver(), QueryTransactions.read_entry, list[BatchStart]()

    def entry(transactions: QueryTransactions) -> Entry:
        found = original(transactions)
        if not newer_start:
            with patch.object(QueryTransactions, "read_entry", original):
                newer_start.append(newer.begin())
            driver._transactions.begin_write(WriterState(newer_start[0].driver_identity), newer_start[0].entry).wait()
            undisturbed.enter_context(assert_no_new_epoch(query.broker))
        return found

    with Driver(newer.settings) as driver, ExitStack() as undisturbed:
        with patch.object(QueryTransactions, "read_entry", entry), pytest.raises(ExactlyOnceError, match=message):
            resume(query)
        assert query.broker.cluster.coordinator.transactions[build_driver_id(PREFIX)].state is TransactionState.ONGOING


def test_entry_read_after_the_fence_overrides_earlier_hints(query: Query) -> None:
    query.run(0)
    query.with_new_driver().run(1)
    original, hints = QueryTransactions.read_entry, [Entry(PREFIX).with_claim("driver-1", "/checkpoint", 900_000)]

    def entry(transactions: QueryTransactions) -> Entry:
        return hints.pop() if hints else original(transactions)

    with (
        patch.object(QueryTransactions, "read_entry", entry),
        pytest.raises(ExactlyOnceError, match="A newer driver has taken over the query with the prefix p: driver-2"),
    ):
        query.begin()


def test_tasks_of_older_driver_have_different_ids(query: Query) -> None:
    start = query.begin()
    newer = query.with_new_driver()
    newer_start = newer.begin()
    prepared = newer.write_tasks(newer_start, 0)
    query.write(start, 0, "late")
    newer.commit(newer_start, 0, prepared)
    assert read_values(query.broker) == rows(0)


def test_abort_of_older_driver_changes_nothing(query: Query) -> None:
    start = query.begin()
    query.write_tasks(start, 0)
    newer = query.with_new_driver()
    newer_start = newer.begin()
    newer_transactions = newer.write_tasks(newer_start, 0)
    assert not query.abort(start, 0)
    newer.commit(newer_start, 0, newer_transactions)
    assert read_values(query.broker) == rows(0)
