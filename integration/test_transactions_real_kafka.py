"""Transactions of KafkaProducer on real Kafka clusters of both versions. librdkafka reads the committed records."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_committed_offset, read_topic
from spark_kafka_sink.errors import ProducerFencedError, TransactionAbortableError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from tests.history import check_batches

pytestmark = pytest.mark.needs("kafka")


@pytest.fixture(params=["kafka_version_1", "kafka"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster with transaction version 1, and one with version 2."""
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


def create_producer(cluster: KafkaCluster, transactional_id: str, **options: object) -> KafkaProducer:
    settings = {name.replace("_", "."): value for name, value in options.items()}
    return KafkaProducer(
        {"bootstrap.servers": cluster.bootstrap(), "transactional.id": transactional_id, "linger.ms": 0, **settings}
    )


def values(cluster: KafkaCluster, topic: str, isolation: str = "read_committed") -> list[int]:
    return sorted(int(record.value or b"") for record in read_topic(cluster.bootstrap(), topic, isolation=isolation))


def check(cluster: KafkaCluster, topic: str, *transactions: Iterable[int]) -> None:
    """Check that readers see each committed transaction once and completely, and nothing else."""
    expected = {f"transaction {index}": [b"%d" % row for row in rows] for index, rows in enumerate(transactions)}
    check_batches(expected, [b"%d" % value for value in values(cluster, topic)])


def send(producer: KafkaProducer, topic: str, *numbers: int) -> None:
    for number in numbers:
        producer.send(ProducerRecord(topic, b"%d" % number, partition=number % 2))


def test_readers_see_only_committed_transactions(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    with create_producer(cluster, topic) as producer:
        producer.init_transactions()
        for round_ in range(20):
            producer.begin_transaction()
            send(producer, topic, *range(10 * round_, 10 * round_ + 10))
            if round_ % 4 == 3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    check(cluster, topic, *(range(10 * round_, 10 * round_ + 10) for round_ in range(20) if round_ % 4 != 3))
    assert len(values(cluster, topic, "read_uncommitted")) >= 150


def test_uses_transaction_version_of_cluster(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    level = 1 if cluster.features else 2
    with create_producer(cluster, topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            send(producer, topic, 1)
        epochs = [producer._sender.idempotence.id_and_epoch.epoch]
        with producer.transaction():
            send(producer, topic, 2)
        epochs.append(producer._sender.idempotence.id_and_epoch.epoch)
    assert epochs[1] - epochs[0] == (0 if level == 1 else 1)


def test_23_second_producer_fences_first(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    first, second = create_producer(cluster, topic), create_producer(cluster, topic)
    first.init_transactions()
    first.begin_transaction()
    send(first, topic, 1)
    first.flush()
    second.init_transactions()
    with second.transaction():
        send(second, topic, 2)
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    first.close()
    second.close()
    check(cluster, topic, [2])


def test_transaction_without_accepted_records_can_be_aborted(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2, max_message_bytes="2000")
    with create_producer(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(ProducerRecord(topic, b"x" * 5000, key=b"big", partition=0))
        with pytest.raises(TransactionAbortableError, match="with the key 'big' for topic"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            send(producer, topic, 1, 2)
    check(cluster, topic, [1, 2])


@pytest.mark.parametrize("commit", [True, False])
def test_another_producer_ends_prepared_transaction(cluster: KafkaCluster, commit: bool) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    producer = create_producer(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, topic, 1, 2)
    prepared = producer.prepare_transaction()
    assert prepared is not None
    producer.close()
    with create_producer(cluster, topic) as other:
        other.take_over_transaction(prepared)
        if commit:
            other.commit_transaction()
        else:
            other.abort_transaction()
    check(cluster, topic, *([[1, 2]] if commit else []))


def test_offsets_are_committed_with_the_transaction(cluster: KafkaCluster) -> None:
    topic = create_topic(cluster.bootstrap(), partitions=2)
    with create_producer(cluster, topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            send(producer, topic, 1)
            producer.send_offsets_to_transaction({(topic, 0): 17}, topic)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 99}, topic)
        producer.abort_transaction()
    assert read_committed_offset(cluster.bootstrap(), topic, topic, 0) == 17
