"""Effects of administrators' actions: a moved query, a deleted log, added partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once import clients, operations
from spark_kafka_sink.exactly_once.entries import build_batch_driver_name
from spark_kafka_sink.exactly_once.late_attempts import raise_if_late
from spark_kafka_sink.exactly_once.log_topic import PARTITION_COUNT, partition_for
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    LOG,
    PREFIX,
    Crash,
    Query,
    connect_client,
    death_before,
    list_open_ids,
    open_query_transactions,
    read_values,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker

INCREASED_PARTITION_COUNT = 2 * PARTITION_COUNT + 1
"""Partitions of the log."""


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_moved_query_continues_under_new_prefix_after_manual_operation(query: Query) -> None:
    query.run(0)
    query.write_tasks(query.begin(), 1)
    moved = query.with_new_driver(prefix="moved", checkpoint="/elsewhere")
    moved.run(1)
    assert len(list_open_ids(query.broker)) == 2, "it is not looked for"
    assert len(operations.abort(query.options, PREFIX, LOG).aborted_ids) == 2
    assert (read_values(query.broker), list_open_ids(query.broker)) == (rows(0, 1), [])


@pytest.mark.parametrize("have_all_tasks_written", [True, False])
def test_driver_fenced_without_successor_commits_written_batch_or_must_restart(
    query: Query, *, have_all_tasks_written: bool
) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    with death_before("done"):  # before its claim
        query.with_new_driver().begin()
    if have_all_tasks_written:
        query.commit(start, 0, prepared)
    else:
        with (
            connect_client(query.broker) as client,
            pytest.raises(ExactlyOnceError, match="This attempt came too late"),
        ):
            raise_if_late(partial(describe_transactions, client), start)
        query.with_new_driver(name="driver-3").run(0)
    assert read_values(query.broker) == rows(0)


def test_starts_without_register_follow_each_other_in_one_application(query: Query) -> None:
    """Without `register` each batch has its own driver name, and all names belong to one start."""
    for number in range(3):
        query.with_new_driver(name=build_batch_driver_name("spark-1", f"{number}")).run(number)
    query.with_new_driver(name=build_batch_driver_name("spark-2", "0")).run(3)
    with pytest.raises(ExactlyOnceError, match=r"A newer driver has taken over .*spark-2"):
        query.with_new_driver(name=build_batch_driver_name("spark-1", "3")).begin()
    query.with_new_driver(name="spark-1-started-anew").run(4)
    assert read_values(query.broker) == rows(0, 1, 2, 3, 4)


def delete_log(broker: EmbeddedBroker) -> None:
    broker.control.delete_topic(LOG)


def add_partitions(broker: EmbeddedBroker) -> None:
    """Add partitions, so that the prefix hashes to another one, and close the clients that know the old number."""
    assert partition_for(PREFIX, INCREASED_PARTITION_COUNT) != partition_for(PREFIX, PARTITION_COUNT)
    broker.control.add_partitions(LOG, INCREASED_PARTITION_COUNT)
    clients.IDLE_DRIVER_CLIENTS.close()


def test_added_log_partitions_stop_queries_with_the_reason(query: Query) -> None:
    query.run(0)
    add_partitions(query.broker)
    for _ in range(2):
        with pytest.raises(
            ExactlyOnceError, match=r"has no entry for the prefix p.*partitions were added to the topic"
        ):
            query.with_new_driver().begin()
    query.with_new_driver(prefix="another").run(1)
    assert read_values(query.broker) == rows(0, 1)


def move_prefix_to_other_partition(transactions: QueryTransactions, broker: EmbeddedBroker) -> None:
    broker.control.add_partitions(LOG, INCREASED_PARTITION_COUNT)
    transactions.client.wait_for_topic(LOG, refresh=True)


def die(transactions: QueryTransactions, broker: EmbeddedBroker) -> None:
    raise Crash


@pytest.mark.parametrize(
    ("lose_log_access", "message"),
    [(move_prefix_to_other_partition, "has no entry for the prefix p"), (die, None)],
)
def test_next_start_detects_log_lost_during_start(
    query: Query, lose_log_access: Callable[[QueryTransactions, EmbeddedBroker], None], message: str | None
) -> None:
    """The driver has its epoch, and the timeout of its id still has the mark of a claim."""
    query.run(0)
    original = QueryTransactions.fence

    def lose_log(transactions: QueryTransactions, *arguments: Any) -> Any:
        fenced = original(transactions, *arguments)
        lose_log_access(transactions, query.broker)
        return fenced

    with patch.object(QueryTransactions, "fence", lose_log), pytest.raises((ExactlyOnceError, Crash), match=message):
        query.with_new_driver().begin()
    if lose_log_access is die:
        delete_log(query.broker)
    with pytest.raises(ExactlyOnceError, match="has no entry for the prefix p"):
        query.with_new_driver().begin()


@pytest.mark.parametrize("lose_log", [delete_log, add_partitions])
def test_log_lost_after_id_expiration_is_undetected_and_batch_duplicated(
    query: Query, lose_log: Callable[[EmbeddedBroker], None]
) -> None:
    query.run(0)
    query.broker.cluster.coordinator.transactions.clear()
    lose_log(query.broker)
    query.with_new_driver().run(0)
    assert read_values(query.broker) == rows(0, 0)


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_log_lost_after_concurrent_first_starts_is_undetected_and_batch_duplicated(query: Query) -> None:
    """The second start is suspended. It is granted the epoch that the first one got after its claim, and so removes the
    mark.
    """
    bump_epoch = QueryTransactions.bump_epoch
    with open_query_transactions(query.broker) as suspended:

        def bump_and_resume(transactions: QueryTransactions, *arguments: Any) -> ProducerIdAndEpoch:
            description = suspended.describe_driver_id()
            identity = bump_epoch(transactions, *arguments)
            assert suspended.fence(description) == identity
            return identity

        with patch.object(QueryTransactions, "bump_epoch", bump_and_resume):
            start = query.begin()
    query.commit(start, 0, query.write_tasks(start, 0))
    delete_log(query.broker)
    query.with_new_driver().run(0)
    assert read_values(query.broker) == rows(0, 0)


@pytest.mark.parametrize(
    ("broker", "request_name", "starting_driver"),
    [(1, "fence", "driver-2"), (2, "fence", "driver-2"), (1, "bump_epoch", "driver-1"), (2, "bump_epoch", "driver-2")],
    indirect=["broker"],
)
def test_start_continues_if_brokers_forget_the_driver_id_during_it(
    query: Query, request_name: str, starting_driver: str
) -> None:
    """The request for an epoch then creates the id with the mark of a claim."""
    query.run(0)
    original = getattr(QueryTransactions, request_name)

    def forget_id(transactions: QueryTransactions, *arguments: Any) -> Any:
        monkeypatch.undo()
        query.broker.cluster.coordinator.transactions.pop("p-driver")
        return original(transactions, *arguments)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(QueryTransactions, request_name, forget_id)
        query.with_new_driver(name=starting_driver).run(1)
    query.with_new_driver(name="driver-3").run(2)
    assert read_values(query.broker) == rows(0, 1, 2)


def test_operator_proceeds_if_longest_timeout_was_decreased(query: Query) -> None:
    start = query.begin()
    query.write_tasks(start, 0)
    query.broker.cluster.coordinator.max_timeout_ms = 10_000
    assert len(operations.abort(query.options, PREFIX, LOG).aborted_ids) == 2
    assert list_open_ids(query.broker) == []
