"""What exactly once does not promise is so, and no worse than docs/exactly-once.md says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import CommitLostError, MetadataTimeoutError
from spark_kafka_sink.exactly_once.coordinator_questions import CoordinatorQuestions
from spark_kafka_sink.exactly_once.transactions_client import TIMEOUT_MS, TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.requests import AddPartitions
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import TOPIC, Crash, Query, client_of, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_the_rows_of_one_task_may_be_seen_before_those_of_another(query: Query) -> None:
    start = query.begin()
    written = query.write_both(start, 0)
    whole = TransactionsClient.end

    def end_one(client: TransactionsClient, prepared: Sequence[TransactionIdentity], **named: Any) -> None:
        whole(client, prepared[:1], **named)
        raise Crash

    with patch.object(TransactionsClient, "end", end_one), pytest.raises(Crash):
        query.commit(start, 0, written)
    assert seen(query.broker) == ["0/0"]
    query.again().begin()
    assert seen(query.broker) == rows(0)


def test_readers_without_read_committed_see_what_is_not_committed_and_what_never_will_be(query: Query) -> None:
    start = query.begin()
    query.write_both(start, 0)
    assert seen(query.broker, "read_uncommitted") == rows(0)
    assert query.abort(start, 0)
    assert (seen(query.broker, "read_uncommitted"), seen(query.broker)) == (rows(0), [])


def test_what_a_query_left_open_holds_readers_back_until_its_next_start(query: Query) -> None:
    query.write_both(query.begin(), 0)
    with KafkaProducer(query.delivery.options) as another:
        another.send(ProducerRecord(TOPIC, "of another program", partition=0)).result(10)
    assert seen(query.broker) == []
    query.again().begin()
    assert seen(query.broker) == ["of another program"]


def test_what_an_attempt_writes_whose_batch_is_over_is_never_seen_and_is_aborted_by_the_next_batch(
    query: Query,
) -> None:
    """Its look was answered by a coordinator that was one no more."""
    start = query.run(0)
    query.write(start, 0, "late", attempt=1)
    assert len(open_ids(query.broker)) == 1
    query.run(1)
    assert (seen(query.broker), open_ids(query.broker)) == (rows(0, 1), [])


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_a_request_to_add_partitions_that_comes_late_opens_a_transaction_that_the_next_start_aborts(
    query: Query,
) -> None:
    """In version 1. In version 2 leaders add them."""
    start = query.begin()
    written = query.write_both(start, 0)
    query.commit(start, 0, written)
    with client_of(query.broker) as client:
        late = AddPartitions(written[0], frozenset([TopicPartition(TOPIC, 0)]))
        CoordinatorQuestions(client.blocking).answer(late)
    assert open_ids(query.broker) == [written[0].transactional_id]
    query.again().begin()
    assert (seen(query.broker), open_ids(query.broker)) == (rows(0), [])


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_a_request_to_fence_what_was_listed_that_comes_when_the_id_is_used_again_is_a_commit_that_is_lost_and_said(
    query: Query,
) -> None:
    """In version 1, between the last look at what was listed and this request. In version 2 brokers compare epochs."""
    start = query.begin()
    query.attempt(start, 1, attempt=0).close(timeout=0)
    whole = TransactionsClient.describe
    looks = list[object]()

    def describe(client: TransactionsClient, ids: Iterable[str], *arguments: Any, **named: Any) -> Any:
        found = whole(client, ids, *arguments, **named)
        if start.task_id(1, 0) in found:
            looks.append(found)
        if len(looks) == 3:  # for the list, before the end, before the fence
            looks.append(found)
            with patch.object(TransactionsClient, "describe", whole):
                query.decide_under_ids_of(start)
        return found

    with patch.object(TransactionsClient, "describe", describe):
        query.abort(start, 0)
    with pytest.raises(CommitLostError):
        query.again(name="last").begin()
    assert seen(query.broker) == ["0/0"]


def test_a_machine_that_slept_for_more_than_two_minutes_counts_that_as_waiting_for_brokers() -> None:
    system = FakeSystem(latency_ms=1.0)
    cluster = SimulatedCluster(system, topics={TOPIC: 1})
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap_servers}).client_config()
    with TransactionsClient(config, system=system) as client:
        assert client.describe(["p-driver"], lambda: system.advance(TIMEOUT_MS / 2)) == {}
        with pytest.raises(MetadataTimeoutError):
            client.describe(["p-driver"], lambda: system.advance(TIMEOUT_MS))
