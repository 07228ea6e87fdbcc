"""Helpers for tests of the sender: brokers in virtual time, single-record requests, and the contents of logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from spark_kafka_sink.client.producer_ids import MAX_EPOCH, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.sending.partition_states import PartitionState
from spark_kafka_sink.protocol.headers import decode_request
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.records.header import parse_header
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, get_loop, get_sender, run_until, wait_for_result
from tests.simulated_cluster import SimulatedCluster

Sent = Future[RecordMetadata]


def simulated(partitions: int = 1, nodes: int = 1, **options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=2), nodes=nodes, topics={"t": partitions})
    given: dict[str, object] = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 10, **options}
    return cluster, create_simulated_producer(cluster, **given)


def send(producer: KafkaProducer, value: bytes, partition: int = 0) -> Sent:
    """Send a record in a separate request, if its partition may send one."""
    future = producer.send(ProducerRecord("t", value, partition=partition))
    get_loop(producer).run_until(lambda: False, 0.2)
    return future


def established(producer: KafkaProducer, *partitions: int) -> None:
    """Deliver one record to each partition, so that several requests may be in flight afterwards."""
    for partition in partitions or (0,):
        wait_for_result(producer, send(producer, b"0", partition))


def at_last_epoch(producer: KafkaProducer, producer_id: int = 77) -> None:
    get_sender(producer).idempotence.set_producer_id_and_epoch(ProducerIdAndEpoch(producer_id, MAX_EPOCH))


def wait(producer: KafkaProducer, *futures: Sent) -> None:
    run_until(producer, lambda: all(future.done() for future in futures))


def pass_time(producer: KafkaProducer, ms: float) -> None:
    get_loop(producer).run_until(lambda: False, ms)


def step_until(producer: KafkaProducer, condition: Callable[[], bool]) -> None:
    """Advance in steps of one millisecond until a condition holds, so that no later event has happened."""
    for _ in range(100_000):
        if condition():
            return
        pass_time(producer, 1)
    raise AssertionError("it did not happen")


def get_state(producer: KafkaProducer, partition: int = 0) -> PartitionState:
    return get_sender(producer).idempotence.partition_state(TopicPartition("t", partition))


def in_flight_count(producer: KafkaProducer, partition: int = 0) -> int:
    return len(get_state(producer, partition).in_flight_batches)


def read_batch_stamps(cluster: SimulatedCluster, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return the epoch, base sequence and number of records of each stored batch."""
    log = cluster.log("t", partition)
    headers = [parse_header(batch) for batch in log.read(log.log_start_offset, 2**62).batches]
    return [(header.producer_epoch, header.base_sequence, header.record_count) for header in headers]


def find_requests(cluster: SimulatedCluster, kind: type[Message]) -> list[tuple[float, Message]]:
    """Return the time and the message of all requests of a type that the brokers received."""
    decoded = [(at, decode_request(memoryview(frame))[1]) for at, _, frame in cluster.requests]
    return [(at, request) for at, request in decoded if isinstance(request, kind)]


def get_errors(futures: Sequence[Sent]) -> list[BaseException | None]:
    return [future.exception(0) for future in futures]
