"""The log writer on a real broker with transaction versions 1 and 2. librdkafka reads the committed records."""

from __future__ import annotations

import os
from typing import cast

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.plain_driver import Brokers
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import ProducerFencedError
from spark_kafka_sink.exactly_once import driver, query_transactions
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, can_write
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import BOTH_TASKS, Query, get_log_writer, rows, write_records

pytestmark = pytest.mark.needs("kafka")

SOAK = bool(os.environ.get("SOAK"))
FEW_EPOCHS = 100


def connect_client(cluster: KafkaCluster) -> BlockingClient:
    return create_client(ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap()}).client_config())


CLUSTERS = ("kafka_version_1", "kafka")


@pytest.fixture(params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster with transaction version 1, and one with version 2."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


def read_values(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(cluster.bootstrap(), topic)]


def test_writes_consecutive_committed_batches(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=1)
    with connect_client(cluster) as client:
        state = WriterState(init_producer_id(client, topic, 60_000), 0)
        for number in range(20):
            state = write_records(client, topic, state, (topic, 0), [(b"k", b"%d" % number), (b"gone", None)])
        assert read_values(cluster, topic) == [value for number in range(20) for value in (b"%d" % number, None)]
        has_version_2 = not cluster.features
        assert client.transaction_version == (2 if has_version_2 else 1)
        assert (state.next_sequence == 0) == has_version_2


def test_log_rejects_records_of_fenced_writer(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=1)
    with connect_client(cluster) as client, connect_client(cluster) as newer:
        state = WriterState(init_producer_id(client, topic, 60_000), 0)
        state = write_records(client, topic, state, (topic, 0), [(b"k", b"older")])
        newer_state = WriterState(init_producer_id(newer, topic, 60_000), 0)
        with pytest.raises(ProducerFencedError) as rejected:
            write_records(client, topic, state, (topic, 0), [(b"k", b"late")])
        assert rejected.value.code in (error_codes.PRODUCER_FENCED, error_codes.INVALID_PRODUCER_EPOCH)
        write_records(newer, topic, newer_state, (topic, 0), [(b"k", b"newer")])
    assert read_values(cluster, topic) == [b"older", b"newer"]


def test_abort_fences_listed_attempt_and_keeps_newer_transaction(
    cluster: KafkaCluster,
) -> None:
    """A real broker compares epochs when a transaction ends, but not when the next epoch is requested."""
    topic = create_topic(cluster.bootstrap(), partitions=1)
    reused_id, late_id = f"{topic}-again", f"{topic}-late"
    with connect_client(cluster) as client, connect_client(cluster) as newer:
        attempt = WriterState(init_producer_id(client, late_id, 60_000), 0)
        init_producer_id(client, reused_id, 60_000)
        descriptions = [*describe_transactions(client, [reused_id, late_id]).values()]
        newer_state = WriterState(init_producer_id(newer, reused_id, 60_000), 0)
        transaction = get_log_writer(newer).begin_transaction(
            reused_id, newer_state, TopicPartition(topic, 0), [(b"k", b"newer")]
        )
        transaction.wait()
        abort_transactions(client, descriptions)
        transaction.commit()
        assert not can_write(describe_transactions(client, [late_id])[late_id])
        with pytest.raises(ProducerFencedError):
            write_records(client, late_id, attempt, (topic, 0), [(b"k", b"late")])
    assert read_values(cluster, topic) == [b"newer"]


@pytest.fixture
def hand_over_epoch(monkeypatch: pytest.MonkeyPatch) -> int:
    """The epoch at which a driver switches to its next id.

    Reaching an epoch takes as many requests, so the short run lowers it far below the last epoch of a producer id.
    """
    if not SOAK:
        for module in (query_transactions, driver):
            monkeypatch.setattr(module, "HAND_OVER_EPOCH", FEW_EPOCHS)
    return query_transactions.HAND_OVER_EPOCH


def test_driver_continues_under_next_id_when_epochs_are_exhausted(cluster: KafkaCluster, hand_over_epoch: int) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    query = Query(cast(EmbeddedBroker, Brokers(cluster.bootstrap())), prefix=topic, data=topic)
    query.run(0)
    name = build_driver_id(topic)
    with connect_client(cluster) as client:
        first = describe_transactions(client, [name])[name]
        identity = first.id_and_epoch
        while identity.epoch < hand_over_epoch - 3:
            identity = init_producer_id(client, name, first.timeout_ms, identity)
        for number in range(1, 6):
            query.run(number)
        next_name = build_driver_id(topic, 2)
        now = describe_transactions(client, [name, next_name])
    assert now[name].id_and_epoch.producer_id == first.id_and_epoch.producer_id
    assert now[name].id_and_epoch.epoch >= hand_over_epoch
    assert now[next_name].id_and_epoch.epoch < FEW_EPOCHS
    again = query.with_new_driver().begin()
    assert again.driver_id == next_name
    again.check_skipped_batch(query.batch(5), BOTH_TASKS, tolerate_mismatch=False)
    assert sorted(value or b"" for value in read_values(cluster, topic)) == [row.encode() for row in rows(*range(6))]
