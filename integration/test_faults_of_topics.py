"""A real broker that says no: limits, access rights, quotas, topics that vanish, grow and forget."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    PATIENT,
    RECORDS,
    RESULT_SECONDS,
    Writer,
    assert_all_stored_once_in_order,
    numbered,
    run,
)
from integration.support.wire import active_producers
from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import AuthenticationError, AuthorizationError
from tests.waiting import wait_until

CONFIG_TOOL = "kafka.admin.ConfigCommand"
HALF = RECORDS // 2
HOUR_MS = 3_600_000

pytestmark = pytest.mark.needs("kafka")


def _config(cluster: KafkaCluster, **more: object) -> dict[str, object]:
    return PATIENT | {"bootstrap.servers": cluster.bootstrap(), **more}


def _as_alice(cluster: KafkaCluster, password: str = USERS["alice"]) -> dict[str, object]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="alice" password="{password}";'
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
    return PATIENT | {"bootstrap.servers": cluster.bootstrap("SASL_PLAINTEXT"), **login}


def test_11_batches_above_the_brokers_limit_are_split_and_arrive_in_order(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2, max_message_bytes="10000")

    def was_split(producer: KafkaProducer) -> None:
        assert producer.metrics()["batch-split-total"] > 0

    results = run(_config(kafka, **{"batch.size": 100_000}), topic, fault=lambda: None, check=was_split)
    assert_all_stored_once_in_order(kafka.bootstrap(), topic, results)


def test_11_one_record_above_the_brokers_limit_fails_alone(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), max_message_bytes="10000")
    values = pa.array([b"small"] * 5 + [b"x" * 20_000] + [b"small"] * 5)
    with KafkaProducer(_config(kafka, **{"batch.size": 100_000})) as producer:
        future = producer.send_columns(topic, RecordColumns(value=values))
        producer.flush(RESULT_SECONDS)
        result = future.result(RESULT_SECONDS)
    assert result.rows_written == 10
    (failure,) = result.failures
    assert failure.rows.tolist() == [5]
    assert topic in str(failure.error)
    assert "max.message.bytes" in str(failure.error)
    assert len(read_topic(kafka.bootstrap(), topic)) == 10


def test_13_a_topic_that_is_created_again_takes_new_records(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap())
    with KafkaProducer(_config(kafka)) as producer:
        producer.send_columns(topic, numbered(0, HALF)).result(RESULT_SECONDS).raise_for_failures()
        delete_topic(kafka.bootstrap(), topic)
        create_topic(kafka.bootstrap(), topic)
        producer.send_columns(topic, numbered(HALF, RECORDS)).result(RESULT_SECONDS).raise_for_failures()
    assert len(read_topic(kafka.bootstrap(), topic)) == RECORDS - HALF


def test_14_partitions_that_are_added_are_used(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=1)
    with KafkaProducer(_config(kafka, **{"metadata.max.age.ms": 200})) as producer:
        producer.send_columns(topic, numbered(0, HALF)).result(RESULT_SECONDS).raise_for_failures()
        add_partitions(kafka.bootstrap(), topic, 4)
        wait_until(lambda: len(producer.partitions_for(topic)) == 4)
        result = producer.send_columns(topic, numbered(HALF, RECORDS)).result(RESULT_SECONDS)
    assert set(result.partitions) == {0, 1, 2, 3}


def by_columns(producer: KafkaProducer, topic: str, partition: int) -> None:
    rows = RecordColumns(value=pa.array([b"a", b"b"]))
    producer.send_columns(topic, rows, partition).result(RESULT_SECONDS).raise_for_failures()


def by_record(producer: KafkaProducer, topic: str, partition: int) -> None:
    for value in (b"a", b"b"):
        producer.send(ProducerRecord(topic, value, partition=partition)).result(RESULT_SECONDS)


@pytest.mark.parametrize("write", [by_columns, by_record])
def test_14_a_partition_may_be_named_the_moment_it_was_added(
    kafka: KafkaCluster, write: Callable[[KafkaProducer, str, int], None]
) -> None:
    """The producer's metadata are valid for another five minutes, and do not have the partition."""
    topic = create_topic(kafka.bootstrap(), partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    with KafkaProducer(_config(kafka, **{"max.block.ms": HOUR_MS})) as producer:
        write(producer, topic, 0)
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(RESULT_SECONDS)
        write(producer, topic, 3)
    stored = [(record.partition, record.value) for record in read_topic(kafka.bootstrap(), topic)]
    assert sorted(stored) == [(0, b"a"), (0, b"b"), (3, b"a"), (3, b"b")]


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka that forgets producers within a second and does not create topics by itself."""
    properties = {"producer.id.expiration.ms": "300", "producer.id.expiration.check.interval.ms": "100"}
    properties["auto.create.topics.enable"] = "false"
    with KafkaCluster(tmp_path_factory.mktemp("forgetful") / "cluster", properties=properties) as cluster:
        yield cluster


def test_13_a_topic_that_is_deleted_for_good_is_a_clear_error_and_not_a_hang(forgetful: KafkaCluster) -> None:
    topic = create_topic(forgetful.bootstrap())
    config = _config(forgetful, **{"delivery.timeout.ms": 5_000, "request.timeout.ms": 2_000, "max.block.ms": 5_000})
    with KafkaProducer(config) as producer:
        Writer(producer, topic).write_until_taken()
        delete_topic(forgetful.bootstrap(), topic)
        result = producer.send_columns(topic, numbered(HALF, RECORDS)).result(RESULT_SECONDS)
    assert result.rows_failed == RECORDS - HALF
    assert topic in str(result.failures[0].error)


def test_16_a_broker_that_forgot_the_producer_is_written_on_without_a_double(forgetful: KafkaCluster) -> None:
    topic = create_topic(forgetful.bootstrap())
    admin = AdminClient({"bootstrap.servers": forgetful.bootstrap()})

    def forget() -> None:
        admin.delete_records([TopicPartition(topic, 0, 500)])
        wait_until(lambda: active_producers(forgetful.bootstrap(), topic) == 0)

    results = run(_config(forgetful), topic, fault=forget, heal=forget)
    for result in results:
        result.raise_for_failures()
    numbers = [int((record.value or b"").split()[0]) for record in read_topic(forgetful.bootstrap(), topic)]
    assert numbers == list(range(500, RECORDS))


def test_18_a_right_revoked_in_the_middle_names_the_topic_and_other_topics_go_on(kafka: KafkaCluster) -> None:
    allowed, forbidden = create_topic(kafka.bootstrap()), create_topic(kafka.bootstrap())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    acl = AclBinding(
        ResourceType.TOPIC, forbidden, ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.WRITE,
        AclPermissionType.DENY,
    )  # fmt: skip
    with KafkaProducer(_as_alice(kafka)) as producer:
        for topic in (allowed, forbidden):
            producer.send_columns(topic, numbered(0, HALF)).result(RESULT_SECONDS).raise_for_failures()
        next(iter(admin.create_acls([acl]).values())).result(RESULT_SECONDS)
        refused = producer.send_columns(forbidden, numbered(HALF, RECORDS))
        taken = producer.send_columns(allowed, numbered(HALF, RECORDS))
        producer.flush(RESULT_SECONDS)
        failure = refused.result(RESULT_SECONDS).failures[0]
        assert isinstance(failure.error, AuthorizationError)
        assert forbidden in str(failure.error)
        assert taken.result(RESULT_SECONDS).rows_written == RECORDS - HALF


def test_19_wrong_credentials_fail_at_once_and_are_not_shown(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap())
    # A time-out would be another error, and come after an hour.
    patient = {"max.block.ms": HOUR_MS, "delivery.timeout.ms": HOUR_MS}
    with KafkaProducer(_as_alice(kafka, password="not-her-secret") | patient) as producer:
        with pytest.raises(AuthenticationError) as raised:
            producer.send_columns(topic, numbered(0, 1)).result(RESULT_SECONDS).raise_for_failures()
        assert "not-her-secret" not in str(raised.value)


def test_21_a_throttled_producer_is_slow_and_not_wrong(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2)

    def quota(change: str, *value: str) -> None:
        entity = ("--entity-type", "clients", "--entity-name", "throttled")
        kafka.tool(CONFIG_TOOL, "--bootstrap-server", kafka.bootstrap(), "--alter", *entity, change, *value)

    def throttle() -> None:
        quota("--add-config", "producer_byte_rate=10000")

    def release() -> None:
        quota("--delete-config", "producer_byte_rate")

    records = min(RECORDS, 9_000)
    config = _config(kafka, **{"client.id": "throttled", "request.timeout.ms": 5_000})

    def was_throttled(producer: KafkaProducer) -> None:
        assert producer.metrics()["produce-throttle-time-max"] > 0

    results = run(config, topic, fault=throttle, heal=release, records=records, survives=True, check=was_throttled)
    assert_all_stored_once_in_order(kafka.bootstrap(), topic, results, records=records)
