"""The limits of exactly-once delivery that docs/exactly-once-limits.md describes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError, MetadataTimeoutError
from spark_kafka_sink.exactly_once import query_transactions, transaction_aborts
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.clients import NO_PROGRESS_TIMEOUT_MS, create_client
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Entry, build_batch_driver_name
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, end_transactions
from spark_kafka_sink.requests.transactions import AddPartitions, DescribeTransactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import TOPIC, Crash, Query, connect_client, list_open_ids, read_values, rows
from tests.exactly_once.embedded_query import broker as broker
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_rows_of_tasks_may_become_visible_at_different_times(query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 0)

    def commit_one(query: QueryTransactions, entry: Entry, *arguments: Any, **named: Any) -> None:
        end_transactions(query.client, entry.transactions[:1], commit=True)
        raise Crash

    with patch.object(QueryTransactions, "commit", commit_one), pytest.raises(Crash):
        query.commit(start, 0, prepared)
    assert read_values(query.broker) == ["0/0"]
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0)


def test_read_uncommitted_readers_see_uncommitted_and_aborted_rows(query: Query) -> None:
    start = query.begin()
    query.write_tasks(start, 0)
    assert read_values(query.broker, "read_uncommitted") == rows(0)
    assert query.abort(start, 0)
    assert (read_values(query.broker, "read_uncommitted"), read_values(query.broker)) == (rows(0), [])


def test_open_transactions_block_readers_until_the_next_start(query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    with KafkaProducer(query.options) as another:
        another.send(ProducerRecord(TOPIC, "of another program", partition=0)).result(10)
    assert read_values(query.broker) == []
    query.with_new_driver().begin()
    assert read_values(query.broker) == ["of another program"]


def test_rows_of_late_attempt_stay_invisible_and_next_batch_aborts_them(
    query: Query,
) -> None:
    """A former coordinator responded to its check."""
    start = query.run(0)
    query.write(start, 0, "late", attempt=1)
    assert len(list_open_ids(query.broker)) == 1
    query.run(1)
    assert (read_values(query.broker), list_open_ids(query.broker)) == (rows(0, 1), [])


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_take_over_under_shared_epoch_leaves_transaction_to_its_first_batch(query: Query) -> None:
    """Only in version 1: in version 2, a driver that continues requests no epoch."""
    query.run(0)
    started: list[BatchStart] = []
    original_fence, original_claim = QueryTransactions.fence, QueryTransactions.claim

    def fence_after_next_batch_has_begun(*arguments: Any) -> ProducerIdAndEpoch:
        if not started:
            started.append(query.begin())
        return original_fence(*arguments)

    def claim_after_task_has_begun(*arguments: Any) -> ProducerIdAndEpoch:
        query.write(started[0], 0, "of the older driver")
        return original_claim(*arguments)

    newer = query.with_new_driver()
    with (
        patch.object(QueryTransactions, "fence", fence_after_next_batch_has_begun),
        patch.object(QueryTransactions, "claim", claim_after_task_has_begun),
    ):
        start = newer.begin()
    assert list_open_ids(query.broker) == [started[0].build_task_id(0, 0)]
    with pytest.raises(ExactlyOnceError, match="A newer driver has taken over"):
        query.begin()
    newer.commit(start, 1, newer.write_tasks(start, 1))
    assert (read_values(query.broker), list_open_ids(query.broker)) == (rows(0, 1), [])


def test_suspended_stop_without_register_aborts_batch_of_next_start(query: Query) -> None:
    """The suspended process does not know which start of the application it belongs to."""
    query.with_new_driver(name=build_batch_driver_name("spark", "1")).begin()
    restarted = query.with_new_driver(name=build_batch_driver_name("spark", "2"))
    start = restarted.begin()
    prepared = restarted.write_tasks(start, 0)
    with Driver(query.settings) as stopped:
        assert stopped.abort_unreported("spark")
    with pytest.raises(ExactlyOnceError, match="was not committed"):
        restarted.commit(start, 0, prepared)
    restarted.run(0)
    assert read_values(query.broker) == rows(0)


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_late_add_partitions_opens_transaction_that_the_next_start_aborts(
    query: Query,
) -> None:
    """Only in version 1: in version 2 leaders add the partitions."""
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    query.commit(start, 0, prepared)
    with connect_client(query.broker) as client:
        late_addition = AddPartitions(prepared[0], frozenset([TopicPartition(TOPIC, 0)]))
        client.send(late_addition)
    assert list_open_ids(query.broker) == [prepared[0].transactional_id]
    query.with_new_driver().begin()
    assert (read_values(query.broker), list_open_ids(query.broker)) == (rows(0), [])


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_late_fence_of_reused_id_loses_and_reports_commit(
    query: Query,
) -> None:
    """Only in version 1, between the last description of the listed transactions and this request. In version 2 brokers
    compare epochs.
    """
    start = query.begin()
    query.attempt(start, 1, attempt=0).close(timeout=0)
    original = describe_transactions
    descriptions = list[object]()

    def describe(client: BlockingClient, ids: Iterable[str], *arguments: Any, **named: Any) -> Any:
        found = original(client, ids, *arguments, **named)
        if start.build_task_id(1, 0) in found:
            descriptions.append(found)
        if len(descriptions) == 3:  # for the list, before the end, before the fence
            descriptions.append(found)
            with (
                patch.object(transaction_aborts, "describe_transactions", original),
                patch.object(query_transactions, "describe_transactions", original),
            ):
                query.decide_with_reused_ids(start)
        return found

    with (
        patch.object(transaction_aborts, "describe_transactions", describe),
        patch.object(query_transactions, "describe_transactions", describe),
    ):
        query.abort(start, 0)
    with pytest.raises(CommitLostError):
        query.with_new_driver(name="last").begin()
    assert read_values(query.broker) == ["0/0"]


def test_machine_sleep_counts_as_waiting_for_brokers() -> None:
    system = FakeSystem(latency_ms=1.0)
    cluster = SimulatedCluster(system, topics={TOPIC: 1})
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap_servers}).client_config()
    with create_client(config, system=system) as client:
        request = DescribeTransactions(["p-driver"])
        for suspended_ms, in_time in ((NO_PROGRESS_TIMEOUT_MS / 2, True), (NO_PROGRESS_TIMEOUT_MS, False)):
            original = client.poll_until

            def poll_until(until_ms: float, suspended_ms: float = suspended_ms) -> None:
                client.poll_until = original  # type: ignore[method-assign]  # noqa: B023 - called in this turn of the loop
                system.advance(suspended_ms)
                client.poll_until(until_ms)

            with nullcontext() if in_time else pytest.raises(MetadataTimeoutError):
                client.poll_until = poll_until  # type: ignore[method-assign]
                client.send(request)
