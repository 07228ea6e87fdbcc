"""Wrong and malformed responses, which no real broker sends on demand, numbered as in docs/producer-guarantees.md."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from spark_kafka_sink.broker.control import FaultBuilder
from spark_kafka_sink.errors import DeliveryTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    get_sender,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster

TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"


def established(**options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=2), nodes=1, topics={"t": 1})
    given: dict[str, object] = {"linger_ms": 0, "retry_backoff_ms": 10, **options}
    producer = create_simulated_producer(cluster, **given)
    wait_for_result(producer, send(producer, b"0"))
    return cluster, producer


def send(producer: KafkaProducer, value: bytes) -> Future[RecordMetadata]:
    """Send a record in a separate request."""
    future = producer.send(ProducerRecord("t", value, partition=0))
    get_loop(producer).run_until(lambda: False, 0.2)
    return future


def four_more_are_stored_once_and_in_order(cluster: SimulatedCluster, producer: KafkaProducer) -> None:
    for future in [send(producer, b"%d" % i) for i in range(1, 5)]:
        wait_for_result(producer, future)
    assert cluster.values("t") == [b"0", b"1", b"2", b"3", b"4"]


def test_10_sequence_error_at_head_restarts_sequences_and_keeps_order() -> None:
    cluster, producer = established()
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    four_more_are_stored_once_and_in_order(cluster, producer)
    assert get_sender(producer).idempotence.id_and_epoch.epoch == 1
    producer.close()


def test_10_sequence_error_behind_head_keeps_the_epoch() -> None:
    cluster, producer = established()
    cluster.control.when(api=ApiKey.PRODUCE).delay(20)  # still in flight when the next request is rejected
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.NOT_ENOUGH_REPLICAS)
    four_more_are_stored_once_and_in_order(cluster, producer)
    assert get_sender(producer).idempotence.id_and_epoch.epoch == 0
    producer.close()


GARBAGE: list[tuple[str, Callable[[FaultBuilder], object], str]] = [
    ("a negative length", lambda fault: fault.announce_length(-1), "-1"),
    ("a length of 2 GB", lambda fault: fault.announce_length(2**31 - 1), "2147483647"),
    ("HTTP", lambda fault: fault.garbage(), "HTTP"),
    ("a TLS alert", lambda fault: fault.garbage(TLS_ALERT), "TLS"),
    ("another correlation id", lambda fault: fault.wrong_correlation_id(), "it is for request"),
]


@pytest.mark.parametrize("inject", [row[1] for row in GARBAGE], ids=[row[0] for row in GARBAGE])
def test_25_resends_records_after_malformed_response_and_stores_them_once(
    inject: Callable[[FaultBuilder], object],
) -> None:
    cluster, producer = established()
    connections = len(cluster.system.connections)
    inject(cluster.control.when(api=ApiKey.PRODUCE, nth=2))
    four_more_are_stored_once_and_in_order(cluster, producer)
    assert len(cluster.system.connections) > connections, "the connection was given up"
    producer.close()


@pytest.mark.parametrize(("inject", "message"), [row[1:] for row in GARBAGE], ids=[row[0] for row in GARBAGE])
def test_25_record_times_out_after_malformed_responses_only(
    inject: Callable[[FaultBuilder], object], message: str
) -> None:
    cluster, producer = established(request_timeout_ms=1000, delivery_timeout_ms=3000)
    inject(cluster.control.when(api=ApiKey.PRODUCE, times=None))
    tracemalloc.start()
    future = send(producer, b"1")
    run_until(producer, future.done, 3100)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    error = future.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert "topic t, partition 0" in str(error)
    assert message in str(error)
    assert str(error).endswith(". The records may have been stored.")
    assert "broker0:9092" in str(error)
    assert peak_bytes < 8 * 1024 * 1024
    assert get_reserved_bytes(producer) == 0
    producer.close()
