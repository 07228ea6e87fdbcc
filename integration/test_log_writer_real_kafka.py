"""The writer of the decision log on a real broker, with transactions of version 1 and of version 2.

librdkafka reads what is committed.
"""

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
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, can_write
from spark_kafka_sink.exactly_once.transaction_names import driver_id
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
    return new_client(ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap()}).client_config())


CLUSTERS = ("kafka_of_version_1", "kafka")


@pytest.fixture(params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """With transactions of version 1, and of version 2."""
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


def values(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(cluster.bootstrap(), topic)]


def test_writes_consecutive_committed_batches(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=1)
    with connect_client(cluster) as client:
        written = WriterState(init_producer_id(client, topic, 60_000), 0)
        for number in range(20):
            written = write_records(client, topic, written, (topic, 0), [(b"k", b"%d" % number), (b"gone", None)])
        assert values(cluster, topic) == [value for number in range(20) for value in (b"%d" % number, None)]
        is_of_version_2 = not cluster.features
        assert client.transaction_version == (2 if is_of_version_2 else 1)
        assert (written.next_sequence == 0) == is_of_version_2


def test_log_rejects_records_of_fenced_writer(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=1)
    with connect_client(cluster) as client, connect_client(cluster) as newer:
        written = WriterState(init_producer_id(client, topic, 60_000), 0)
        written = write_records(client, topic, written, (topic, 0), [(b"k", b"older")])
        newer_state = WriterState(init_producer_id(newer, topic, 60_000), 0)
        with pytest.raises(ProducerFencedError) as refused:
            write_records(client, topic, written, (topic, 0), [(b"k", b"late")])
        assert refused.value.code in (error_codes.PRODUCER_FENCED, error_codes.INVALID_PRODUCER_EPOCH)
        write_records(newer, topic, newer_state, (topic, 0), [(b"k", b"newer")])
    assert values(cluster, topic) == [b"older", b"newer"]


def test_abort_fences_listed_attempt_and_keeps_newer_transaction(
    cluster: KafkaCluster,
) -> None:
    """A real broker compares epochs at the end of a transaction, not where the next epoch is asked for."""
    topic = create_topic(cluster.bootstrap(), partitions=1)
    again, late = f"{topic}-again", f"{topic}-late"
    with connect_client(cluster) as client, connect_client(cluster) as newer:
        attempt = WriterState(init_producer_id(client, late, 60_000), 0)
        init_producer_id(client, again, 60_000)
        listed = [*describe_transactions(client, [again, late]).values()]
        newer_state = WriterState(init_producer_id(newer, again, 60_000), 0)
        writing = get_log_writer(newer).begin_transaction(
            again, newer_state, TopicPartition(topic, 0), [(b"k", b"newer")]
        )
        writing.wait()
        abort_transactions(client, listed)
        writing.commit()
        assert not any(can_write(each) for each in describe_transactions(client, [late]).values())
        with pytest.raises(ProducerFencedError):
            write_records(client, late, attempt, (topic, 0), [(b"k", b"late")])
    assert values(cluster, topic) == [b"newer"]


@pytest.fixture
def epochs_end(monkeypatch: pytest.MonkeyPatch) -> int:
    """The epoch from which a driver hands over to its next id.

    Each epoch is a request, so the short run hands over long before the epochs of a producer id are used up.
    """
    if not SOAK:
        for module in (query_transactions, driver):
            monkeypatch.setattr(module, "HAND_OVER_EPOCH", FEW_EPOCHS)
    return query_transactions.HAND_OVER_EPOCH


def test_driver_continues_under_next_id_when_epochs_are_exhausted(cluster: KafkaCluster, epochs_end: int) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    query = Query(cast(EmbeddedBroker, Brokers(cluster.bootstrap())), prefix=topic, data=topic)
    query.run(0)
    name = driver_id(topic)
    with connect_client(cluster) as client:
        first = describe_transactions(client, [name])[name]
        identity = first.id_and_epoch
        while identity.epoch < epochs_end - 3:
            identity = init_producer_id(client, name, first.timeout_ms, identity)
        for number in range(1, 6):
            query.run(number)
        next_name = driver_id(topic, 2)
        now = describe_transactions(client, [name, next_name])
    assert now[name].id_and_epoch.producer_id == first.id_and_epoch.producer_id
    assert now[name].id_and_epoch.epoch >= epochs_end
    assert now[next_name].id_and_epoch.epoch < FEW_EPOCHS
    again = query.with_new_driver().begin()
    assert again.driver_id == next_name
    again.check_skipped_batch(query.batch(5), BOTH_TASKS, tolerate_mismatch=False)
    assert sorted(each or b"" for each in values(cluster, topic)) == [row.encode() for row in rows(*range(6))]
