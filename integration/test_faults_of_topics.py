"""Real brokers with limits, ACLs and quotas, and topics that are deleted, extended or lose their producer states."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions

from integration.support.kafka_cluster import USERS, KafkaCluster
from integration.support.librdkafka import add_partitions, create_topic, delete_topic, read_topic
from integration.support.scenario import (
    LONG_TIMEOUT_OPTIONS,
    RECORDS,
    RESULT_SECONDS,
    Writer,
    assert_all_stored_once_in_order,
    build_numbered_records,
    run,
)
from integration.support.wire import count_active_producers
from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import AuthenticationError, AuthorizationError
from tests.waiting import wait_until

CONFIG_TOOL = "kafka.admin.ConfigCommand"
HALF = RECORDS // 2
HOUR_MS = 3_600_000

pytestmark = pytest.mark.needs("kafka")


def _config(cluster: KafkaCluster, **options: object) -> dict[str, object]:
    return LONG_TIMEOUT_OPTIONS | {"bootstrap.servers": cluster.bootstrap(), **options}


def _build_alice_config(cluster: KafkaCluster, password: str = USERS["alice"]) -> dict[str, object]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="alice" password="{password}";'
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
    return LONG_TIMEOUT_OPTIONS | {"bootstrap.servers": cluster.bootstrap("SASL_PLAINTEXT"), **login}


def test_11_splits_batches_above_broker_limit_in_order(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2, max_message_bytes="10000")

    def check_was_split(producer: KafkaProducer) -> None:
        assert producer.metrics()["batch-split-total"] > 0

    results = run(_config(kafka, **{"batch.size": 100_000}), topic, inject=lambda: None, check=check_was_split)
    assert_all_stored_once_in_order(kafka.bootstrap(), topic, results)


def test_11_fails_only_record_above_broker_limit(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), max_message_bytes="10000")
    values = pa.array([b"small"] * 5 + [b"x" * 20_000] + [b"small"] * 5)
    with KafkaProducer(_config(kafka, **{"batch.size": 100_000})) as producer:
        future = producer.send_columns(topic, RecordColumns(value=values))
        producer.flush(RESULT_SECONDS)
        result = future.result(RESULT_SECONDS)
    assert result.rows_written == 10
    (failure,) = result.failures
    assert failure.row_indices.tolist() == [5]
    assert topic in str(failure.error)
    assert "max.message.bytes" in str(failure.error)
    assert len(read_topic(kafka.bootstrap(), topic)) == 10


def test_13_writes_to_recreated_topic(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap())
    with KafkaProducer(_config(kafka)) as producer:
        producer.send_columns(topic, build_numbered_records(0, HALF)).result(RESULT_SECONDS).raise_for_failures()
        delete_topic(kafka.bootstrap(), topic)
        create_topic(kafka.bootstrap(), topic)
        producer.send_columns(topic, build_numbered_records(HALF, RECORDS)).result(RESULT_SECONDS).raise_for_failures()
    assert len(read_topic(kafka.bootstrap(), topic)) == RECORDS - HALF


def test_14_writes_to_added_partitions(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=1)
    with KafkaProducer(_config(kafka, **{"metadata.max.age.ms": 200})) as producer:
        producer.send_columns(topic, build_numbered_records(0, HALF)).result(RESULT_SECONDS).raise_for_failures()
        add_partitions(kafka.bootstrap(), topic, 4)
        wait_until(lambda: len(producer.partitions_for(topic)) == 4)
        result = producer.send_columns(topic, build_numbered_records(HALF, RECORDS)).result(RESULT_SECONDS)
    assert set(result.partitions) == {0, 1, 2, 3}


def write_columns(producer: KafkaProducer, topic: str, partition: int) -> None:
    rows = RecordColumns(value=pa.array([b"a", b"b"]))
    producer.send_columns(topic, rows, partition).result(RESULT_SECONDS).raise_for_failures()


def write_records(producer: KafkaProducer, topic: str, partition: int) -> None:
    for value in (b"a", b"b"):
        producer.send(ProducerRecord(topic, value, partition=partition)).result(RESULT_SECONDS)


@pytest.mark.parametrize("write", [write_columns, write_records])
def test_14_writes_to_named_partition_as_soon_as_it_is_added(
    kafka: KafkaCluster, write: Callable[[KafkaProducer, str, int], None]
) -> None:
    """The producer's metadata do not contain the new partition, and are valid for another five minutes."""
    topic = create_topic(kafka.bootstrap(), partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    with KafkaProducer(_config(kafka, **{"max.block.ms": HOUR_MS})) as producer:
        write(producer, topic, 0)
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(RESULT_SECONDS)
        write(producer, topic, 3)
    stored = [(record.partition, record.value) for record in read_topic(kafka.bootstrap(), topic)]
    assert sorted(stored) == [(0, b"a"), (0, b"b"), (3, b"a"), (3, b"b")]


def test_13_fails_rows_of_deleted_topic_and_names_it(strict_kafka: KafkaCluster) -> None:
    topic = create_topic(strict_kafka.bootstrap())
    config = _config(strict_kafka, **{"delivery.timeout.ms": 5_000, "request.timeout.ms": 2_000, "max.block.ms": 5_000})
    with KafkaProducer(config) as producer:
        Writer(producer, topic).write_until_acknowledged()
        delete_topic(strict_kafka.bootstrap(), topic)
        result = producer.send_columns(topic, build_numbered_records(HALF, RECORDS)).result(RESULT_SECONDS)
    assert result.rows_failed == RECORDS - HALF
    assert topic in str(result.failures[0].error)


def test_16_writes_each_record_once_after_broker_removed_producer_state(strict_kafka: KafkaCluster) -> None:
    topic = create_topic(strict_kafka.bootstrap())
    admin = AdminClient({"bootstrap.servers": strict_kafka.bootstrap()})

    def expire_producer_state() -> None:
        admin.delete_records([TopicPartition(topic, 0, 500)])
        wait_until(lambda: count_active_producers(strict_kafka.bootstrap(), topic) == 0)

    results = run(_config(strict_kafka), topic, inject=expire_producer_state, repair=expire_producer_state)
    for result in results:
        result.raise_for_failures()
    numbers = [int((record.value or b"").split()[0]) for record in read_topic(strict_kafka.bootstrap(), topic)]
    assert numbers == list(range(500, RECORDS))


def test_16_broker_expires_producer_by_record_timestamps(strict_kafka: KafkaCluster) -> None:
    """Brokers compare timestamps of records with producer.id.expiration.ms, not the times at which they were written.

    This is why rule 1 starts over after records with old timestamps.
    """
    address = strict_kafka.bootstrap()
    topic = create_topic(address, partitions=2)
    now_ms = time.time_ns() // 1_000_000
    with KafkaProducer(_config(strict_kafka)) as producer:
        for partition, timestamp_ms in ((0, now_ms + HOUR_MS), (1, now_ms - HOUR_MS)):
            record = ProducerRecord(topic, b"", partition=partition, timestamp_ms=timestamp_ms)
            producer.send(record).result(RESULT_SECONDS)
    wait_until(lambda: count_active_producers(address, topic, 1) == 0)
    assert count_active_producers(address, topic, 0) == 1


def test_18_revoked_permission_fails_only_its_topic(kafka: KafkaCluster) -> None:
    allowed, forbidden = create_topic(kafka.bootstrap()), create_topic(kafka.bootstrap())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    acl = AclBinding(
        ResourceType.TOPIC, forbidden, ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.WRITE,
        AclPermissionType.DENY,
    )  # fmt: skip
    with KafkaProducer(_build_alice_config(kafka)) as producer:
        for topic in (allowed, forbidden):
            producer.send_columns(topic, build_numbered_records(0, HALF)).result(RESULT_SECONDS).raise_for_failures()
        next(iter(admin.create_acls([acl]).values())).result(RESULT_SECONDS)
        forbidden_future = producer.send_columns(forbidden, build_numbered_records(HALF, RECORDS))
        allowed_future = producer.send_columns(allowed, build_numbered_records(HALF, RECORDS))
        producer.flush(RESULT_SECONDS)
        failure = forbidden_future.result(RESULT_SECONDS).failures[0]
        assert isinstance(failure.error, AuthorizationError)
        assert forbidden in str(failure.error)
        assert allowed_future.result(RESULT_SECONDS).rows_written == RECORDS - HALF


def test_19_fails_immediately_with_invalid_credentials_and_hides_them(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap())
    # A timeout would raise another error, and only after an hour.
    timeouts = {"max.block.ms": HOUR_MS, "delivery.timeout.ms": HOUR_MS}
    with KafkaProducer(_build_alice_config(kafka, password="not-her-secret") | timeouts) as producer:
        with pytest.raises(AuthenticationError) as raised:
            producer.send_columns(topic, build_numbered_records(0, 1)).result(RESULT_SECONDS).raise_for_failures()
        assert "not-her-secret" not in str(raised.value)


def test_21_throttled_producer_writes_each_record_once(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2)

    def alter_quota(change: str, *value: str) -> None:
        entity = ("--entity-type", "clients", "--entity-name", "throttled")
        kafka.run_tool(CONFIG_TOOL, "--bootstrap-server", kafka.bootstrap(), "--alter", *entity, change, *value)

    def throttle() -> None:
        alter_quota("--add-config", "producer_byte_rate=4000")

    def release() -> None:
        alter_quota("--delete-config", "producer_byte_rate")

    records = min(RECORDS, 3_000)
    config = _config(kafka, **{"client.id": "throttled", "request.timeout.ms": 5_000})

    def check_was_throttled(producer: KafkaProducer) -> None:
        assert producer.metrics()["produce-throttle-time-max"] > 0

    results = run(
        config, topic, inject=throttle, repair=release, records=records, continues=True, check=check_was_throttled
    )
    assert_all_stored_once_in_order(kafka.bootstrap(), topic, results, records=records)
