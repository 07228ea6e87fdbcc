"""Topics created, written and read by librdkafka, as an independent check of the package."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from integration.support.topic_metadata import wait_until_gone, wait_until_known
from tests.waiting import wait_until

READ_BATCH = 10_000
POLL_SECONDS = 0.2
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class StoredRecord:
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def create_topic(
    bootstrap: str,
    topic: str | None = None,
    *,
    partitions: int = 1,
    replicas: int = 1,
    for_java_producer: bool = False,
    **config: str,
) -> str:
    """Create a topic and return its name, by default a unique one. Names of settings have `_` instead of dots.

    Return when every broker of `bootstrap` knows all partitions and their leaders.

    `for_java_producer`: also wait until the leaders are ready. Java's producer, which Spark's own sink uses, loses
    records if its first request comes before that (KAFKA-15591).
    """
    name = topic or f"topic-{uuid.uuid4().hex[:12]}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=settings)
    admin.create_topics([new])[name].result(TIMEOUT_SECONDS)
    wait_until_known(bootstrap, name, partitions)
    if for_java_producer:
        _wait_until_leaders_are_ready(bootstrap, name, partitions)
    return name


def _wait_until_leaders_are_ready(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until the leader of each partition returns its offsets, which it does as soon as it accepts records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads nothing"})

    def is_ready(partition: int) -> bool:
        try:
            consumer.get_watermark_offsets(TopicPartition(topic, partition), POLL_SECONDS)
        except KafkaException:
            return False
        return True

    try:
        for partition in range(partitions):
            wait_until(partial(is_ready, partition), lambda: f"the leaders of {topic} were never ready")
    finally:
        consumer.close()


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Increase the topic's partition count, and return when every broker of `bootstrap` knows all leaders."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_SECONDS)
    wait_until_known(bootstrap, topic, partitions)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete the topic, and return when no broker of `bootstrap` knows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)
    wait_until_gone(bootstrap, topic)


def read_committed_offset(bootstrap: str, group: str, topic: str, partition: int) -> int:
    """Return a group's committed offset, without the offsets of open transactions; negative if there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (committed,) = consumer.committed([TopicPartition(topic, partition)], timeout=TIMEOUT_SECONDS)
        return int(committed.offset)
    finally:
        consumer.close()


def produce_all(producer: Producer, topic: str, rows: Iterable[Sequence[bytes | None]]) -> None:
    """Produce keys and values as fast as librdkafka accepts them, and wait until each is delivered or has failed."""
    for number, (key, value) in enumerate(rows):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(600)


def read_topic(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", config: Mapping[str, str] | None = None
) -> list[StoredRecord]:
    """Read all records that a topic has now, in order within each partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "witness", "isolation.level": isolation}
    settings |= {"enable.auto.commit": "false", "enable.partition.eof": "true", "check.crcs": "true"}
    settings |= {"auto.offset.reset": "earliest"}
    consumer = Consumer(settings | dict(config or {}))
    try:
        return list(_read_records(consumer, topic))
    finally:
        consumer.close()


@contextlib.contextmanager
def open_record_counter(bootstrap: str, topic: str, isolation: str = "read_committed") -> Iterator[Callable[[], int]]:
    """Yield a function that counts the records of a topic without deletions, including transaction markers.

    With read_committed it counts only records before the first open transaction of their partition.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "witness", "isolation.level": isolation})
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions

    def count() -> int:
        topic_partitions = [TopicPartition(topic, partition) for partition in partitions]
        return sum(find_end_offset(consumer, partition) for partition in topic_partitions)

    try:
        yield count
    finally:
        consumer.close()


def find_end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end offset of a partition, or the last stable offset if the consumer is read_committed.

    A broker publishes the leaders of a new topic before it accepts requests for the partitions that it leads.
    """
    offsets: list[int] = []

    def is_found() -> bool:
        try:
            offsets.append(consumer.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)[1])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return False
        return True

    wait_until(is_found, lambda: f"no broker led {partition}")
    return offsets[0]


def _read_records(consumer: Consumer, topic: str) -> Iterator[StoredRecord]:
    metadata = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
    if metadata.error is not None:
        raise AssertionError(f"librdkafka could not read {topic}: {metadata.error}")
    partitions = metadata.partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    unread = set(partitions)
    idle_seconds = 0.0
    while unread:
        messages = consumer.consume(READ_BATCH, timeout=POLL_SECONDS)
        idle_seconds = 0.0 if messages else idle_seconds + POLL_SECONDS
        if idle_seconds > TIMEOUT_SECONDS:
            raise AssertionError(f"librdkafka did not reach the end of partitions {sorted(unread)} of {topic}")
        for message in messages:
            error = message.error()
            if error is None:
                yield _to_stored_record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                raise AssertionError(f"librdkafka could not read {topic}: {error}")


def _to_stored_record(message: Message) -> StoredRecord:
    partition, offset, headers = message.partition(), message.offset(), message.headers()
    assert partition is not None
    assert offset is not None
    assert not isinstance(headers, dict), "librdkafka returns headers as a list"
    return StoredRecord(
        partition=partition,
        offset=offset,
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple((name, _as_bytes(value)) for name, value in headers or ()),
    )


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
