"""The witnesses of the tests that kill drivers read committed records only, and find a lost or duplicate record."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.kafka_witnesses import TransactionalMessageCopier, VerifiableConsumer
from integration.support.librdkafka import StoredRecord, create_topic, read_topic
from spark_kafka_sink.producer.producer import KafkaProducer

pytestmark = pytest.mark.needs("kafka")

PARTITIONS = 3


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """A topic with a committed transaction, an aborted one, and another committed one."""
    name = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    with KafkaProducer(bootstrap_servers=kafka.bootstrap(), transactional_id=name) as producer:
        producer.init_transactions()
        for start, should_commit in ((0, True), (30, False), (60, True)):
            producer.begin_transaction()
            for number in range(start, start + 30):
                producer.send(name, b"%d" % number, key=b"%d" % (number % 10))
            producer.flush()
            if should_commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    return name


@pytest.fixture
def stored(kafka: KafkaCluster, topic: str) -> list[StoredRecord]:
    return read_topic(kafka.bootstrap(), topic)


def test_witnesses_agree_with_librdkafka_and_find_other_records(
    kafka: KafkaCluster, topic: str, stored: list[StoredRecord], tmp_path: Path
) -> None:
    assert len(stored) == 60
    uncommitted = read_topic(kafka.bootstrap(), topic, isolation="read_uncommitted")
    with (
        VerifiableConsumer(kafka, topic, tmp_path) as consumer,
        TransactionalMessageCopier(kafka, topic, PARTITIONS, tmp_path) as copier,
    ):
        consumer.check(stored)
        copier.check(stored)
        # Both witnesses have ended. `check` must fail if it expects more records than they have read, or fewer.
        for others in (uncommitted, stored[:-1]):
            with pytest.raises(AssertionError, match="VerifiableConsumer and librdkafka differ"):
                consumer.check(others)
        for others in ([*stored, stored[0]], stored[:-1]):
            with pytest.raises(AssertionError, match="the copy by TransactionalMessageCopier and the topic differ"):
                copier.check(others)
