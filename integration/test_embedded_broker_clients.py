"""librdkafka, kafka-python and Java's clients as clients of the embedded broker."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from integration.support.kafka_versions import OLDEST, VERSIONS, KafkaVersion, ensure_jars
from integration.support.librdkafka import create_topic, read_topic
from spark_kafka_sink import testing
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.waiting import WAIT_TIMEOUT_SECONDS

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
VERSIONS_BEFORE_4 = [version for version in VERSIONS if version.is_before_4] if os.environ.get("SOAK") else [OLDEST]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(nodes=2) as broker:
        yield broker
        gc.collect()  # ends librdkafka's producers before their broker


def librdkafka_producer(broker: EmbeddedBroker, **options: object) -> Producer:
    settings = {name.replace("_", "."): value for name, value in options.items()}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1, "log_level": 0, **settings})


def write_all(producer: Producer, topic: str, values: list[bytes]) -> None:
    failures: list[object] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=b"%d" % number,
            headers={"n": b"%d" % number},
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(WAIT_TIMEOUT_SECONDS) == 0
    assert failures == []


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_writes_idempotently_and_reads_back(broker: EmbeddedBroker, codec: str) -> None:
    topic = create_topic(broker.bootstrap_servers, partitions=3)
    values = [f"{codec} {number} {'x' * 100}".encode() for number in range(300)]
    write_all(librdkafka_producer(broker, enable_idempotence=True, compression_type=codec), topic, values)
    read = read_topic(broker.bootstrap_servers, topic)
    assert sorted(record.value or b"" for record in read) == sorted(values)
    assert {record.headers[0][0] for record in read} == {"n"}
    assert {record.partition for record in read} == {0, 1, 2}
    table = testing.read_topic(broker.bootstrap_servers, topic)
    assert sorted(table.column("value").to_pylist()) == sorted(values)


@pytest.mark.parametrize("version", VERSIONS_BEFORE_4, ids=str)
def test_old_java_producer_writes(broker: EmbeddedBroker, version: KafkaVersion) -> None:
    topic = create_topic(broker.bootstrap_servers)
    producer = ["java", "-cp", f"{ensure_jars(version)}/*", "kafka.tools.ConsoleProducer"]
    options = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic]
    subprocess.run([*producer, *options], input=b"a\nb\n", check=True)
    assert [record.value for record in read_topic(broker.bootstrap_servers, topic)] == [b"a", b"b"]


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_writes_and_reads_back(broker: EmbeddedBroker, codec: str) -> None:
    topic = create_topic(broker.bootstrap_servers, partitions=2)
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=None if codec == "none" else codec
    )
    sent = [producer.send(topic, b"value %d" % number) for number in range(100)]
    for future in sent:
        future.get(WAIT_TIMEOUT_SECONDS)
    producer.close()
    assert sorted(read_with_kafka_python(broker, topic, 2)) == sorted(b"value %d" % number for number in range(100))


@pytest.mark.parametrize("version", [1, 2])
def test_read_committed_returns_only_committed_transactions_of_librdkafka(version: int) -> None:
    with embedded_broker({"t": 2}, transaction_version=version) as broker:
        producer = librdkafka_producer(broker, transactional_id="x")
        producer.init_transactions(WAIT_TIMEOUT_SECONDS)
        for value, commit in ((b"first", True), (b"aborted", False), (b"second", True)):
            producer.begin_transaction()
            producer.produce("t", value, partition=0)
            producer.flush(WAIT_TIMEOUT_SECONDS)
            if commit:
                producer.commit_transaction(WAIT_TIMEOUT_SECONDS)
            else:
                producer.abort_transaction(WAIT_TIMEOUT_SECONDS)
        committed = [record.value for record in read_topic(broker.bootstrap_servers, "t")]
        uncommitted = read_topic(broker.bootstrap_servers, "t", isolation="read_uncommitted")
        by_kafka_python = read_with_kafka_python(broker, "t", 2, isolation_level="read_committed")
        by_testing = testing.read_topic(broker.bootstrap_servers, "t").column("value").to_pylist()
        del producer
        gc.collect()
    assert committed == by_kafka_python == by_testing == [b"first", b"second"]
    assert [record.value for record in uncommitted] == [b"first", b"aborted", b"second"]


def test_kafka_python_commits_a_transaction(broker: EmbeddedBroker) -> None:
    topic = create_topic(broker.bootstrap_servers)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="kafka-python")
    producer.init_transactions()
    for value, commit in ((b"kept", True), (b"lost", False)):
        producer.begin_transaction()
        producer.send(topic, value)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    assert [record.value for record in read_topic(broker.bootstrap_servers, topic)] == [b"kept"]


def test_second_librdkafka_producer_fences_the_first(broker: EmbeddedBroker) -> None:
    topic = create_topic(broker.bootstrap_servers)
    first, second = (librdkafka_producer(broker, transactional_id="fenced") for _ in range(2))
    first.init_transactions(WAIT_TIMEOUT_SECONDS)
    first.begin_transaction()
    first.produce(topic, b"zombie")
    first.flush(WAIT_TIMEOUT_SECONDS)
    second.init_transactions(WAIT_TIMEOUT_SECONDS)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(WAIT_TIMEOUT_SECONDS)
    assert caught.value.args[0].fatal()
    assert read_topic(broker.bootstrap_servers, topic) == []


def test_librdkafka_writes_exactly_once_despite_lost_responses_and_moved_leader() -> None:
    with embedded_broker({"t": 1}, nodes=2) as broker:
        control = broker.control
        control.when(api=ApiKey.PRODUCE, topic="t", nth=2).drop(execute_first=True)
        control.when(api=ApiKey.PRODUCE, topic="t", nth=4).fail(error_codes.NOT_ENOUGH_REPLICAS)
        producer = librdkafka_producer(broker, enable_idempotence=True, batch_num_messages=5)
        values = [b"%03d" % number for number in range(100)]
        write_all(producer, "t", values[:50])
        control.move_leader("t", 0, 1)
        write_all(producer, "t", values[50:])
        assert [record.value for record in read_topic(broker.bootstrap_servers, "t")] == values
        del producer
        gc.collect()


def read_with_kafka_python(broker: EmbeddedBroker, topic: str, partitions: int, **options: object) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id=None, auto_offset_reset="earliest", **options
    )
    assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer.assign(assigned)
    ends = consumer.end_offsets(assigned)
    values = []
    while any(consumer.position(partition) < ends[partition] for partition in assigned):
        for records in consumer.poll(1000).values():
            values += [record.value for record in records]
    consumer.close()
    return values
