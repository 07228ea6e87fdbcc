"""Helpers for tests of transactional producers: brokers in virtual time, and the records visible to readers."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.protocol.headers import decode_request
from spark_kafka_sink.protocol.message import Message
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, get_loop
from tests.simulated_cluster import SimulatedCluster

BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])
ID = "x"

Sent = Future[RecordMetadata]


def create_cluster(version: int, *, nodes: int = 1, partitions: int = 2, **options: object) -> SimulatedCluster:
    return SimulatedCluster(
        FakeSystem(latency_ms=2), nodes=nodes, topics={"t": partitions}, transaction_version=version, **options
    )


def create_producer(cluster: SimulatedCluster, transactional_id: str = ID, /, **options: object) -> KafkaProducer:
    configuration: dict[str, object] = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 10, **options}
    return create_simulated_producer(cluster, transactional_id=transactional_id, **configuration)


def create_initialized_producer(
    version: int, *, nodes: int = 1, partitions: int = 2, **options: object
) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = create_cluster(version, nodes=nodes, partitions=partitions)
    producer = create_producer(cluster, **options)
    producer.init_transactions()
    return cluster, producer


def create_producer_in_transaction(version: int, **options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster, producer = create_initialized_producer(version, **options)  # type: ignore[arg-type]
    producer.begin_transaction()
    return cluster, producer


def send(producer: KafkaProducer, value: bytes, partition: int = 0, key: bytes | None = None) -> Sent:
    return producer.send(ProducerRecord("t", value, key=key, partition=partition))


def send_and_flush(producer: KafkaProducer, *values: bytes, partition: int = 0) -> list[Sent]:
    """Send the values and wait until they are acknowledged."""
    futures = [send(producer, value, partition) for value in values]
    producer.flush()
    assert [future.exception(0) for future in futures] == [None] * len(values)
    return futures


def read_committed(cluster: SimulatedCluster, partition: int = 0) -> list[bytes | None]:
    return cluster.values("t", partition, committed=True)


def state(cluster: SimulatedCluster, transactional_id: str = ID) -> TransactionState:
    return cluster.core.coordinator.transactions[transactional_id].state


def find_requests(cluster: SimulatedCluster, kind: type[Message]) -> list[tuple[int, Message]]:
    """Return the version and the message of all requests of a type that the brokers received."""
    decoded = [decode_request(memoryview(frame)) for _, _, frame in cluster.requests]
    return [(header.api_version, request) for header, request in decoded if isinstance(request, kind)]


def pass_time(producer: KafkaProducer, ms: float) -> None:
    get_loop(producer).run_until(lambda: False, ms)
