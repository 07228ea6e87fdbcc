"""Rule 3 for a broker that has forgotten the producer and accepts any sequence, even one behind a gap."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from spark_kafka_sink.errors import DeliveryError, ProducerClosedError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.producer.sending import idempotence
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


def simulated(**options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=2), nodes=2, topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=0, retry_backoff_ms=10, **options)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"0")))
    return cluster, producer


def pipelined(producer: KafkaProducer, *values: bytes) -> Sequence[Future[RecordMetadata]]:
    """Send a request for each value, all of them in flight before the first response."""
    futures = []
    for value in values:
        futures.append(producer.send(ProducerRecord("t", value)))
        get_loop(producer).run_until(lambda: False, 0.2)
    run_until(producer, lambda: all(future.done() for future in futures))
    return futures


def forgotten(first_is: int) -> tuple[list[bytes | None], list[BaseException | None]]:
    """Send two requests: the first is rejected; the second is stored, but its response is lost."""
    cluster, producer = simulated()
    cluster.control.forget_producers("t", 0)
    cluster.control.when(api=ApiKey.PRODUCE).fail(first_is)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).drop(execute_first=True)
    futures = pipelined(producer, b"1", b"2", b"3")
    after = producer.send(ProducerRecord("t", b"4"))
    wait_for_result(producer, after)
    producer.close()
    assert get_reserved_bytes(producer) == 0
    return cluster.values("t"), [future.exception(0) for future in futures]


def test_batch_accepted_behind_permanent_rejection_is_not_stored_twice() -> None:
    stored, errors = forgotten(codes.POLICY_VIOLATION)
    assert stored[:2] == [b"0", b"2"]
    assert stored.count(b"2") == 1
    assert "POLICY_VIOLATION" in str(errors[0])
    assert isinstance(errors[1], DeliveryError)
    assert "may have been stored" in str(errors[1])
    assert "topic t, partition 0" in str(errors[1])
    assert stored[-1] == b"4"


def test_batch_accepted_before_a_retry_is_not_stored_twice() -> None:
    stored, errors = forgotten(codes.NOT_ENOUGH_REPLICAS)
    assert errors[0] is None
    assert stored.count(b"2") == 1
    assert stored.count(b"1") == 1
    assert isinstance(errors[1], DeliveryError)
    assert stored[-1] == b"4"


def test_batch_behind_gap_is_in_doubt_if_producer_is_closed_first() -> None:
    cluster, producer = simulated()
    cluster.control.forget_producers("t", 0)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).drop(execute_first=True)
    futures = []
    for value in (b"1", b"2"):
        futures.append(producer.send(ProducerRecord("t", value)))
        get_loop(producer).run_until(lambda: False, 0.2)
    sender = get_sender(producer)
    run_until(producer, lambda: bool(sender.idempotence._abandoned_batches))
    producer.close(timeout=0)
    assert cluster.values("t") == [b"0", b"2"]
    error = futures[1].exception(0)
    assert isinstance(error, ProducerClosedError)
    assert error.possibly_stored


@pytest.mark.parametrize("first_is", [codes.POLICY_VIOLATION, codes.NOT_ENOUGH_REPLICAS])
def test_without_rule_3_batch_is_stored_twice(first_is: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "is_possibly_stored", lambda state, batch: False)
    stored, _ = forgotten(first_is)
    assert stored.count(b"2") == 2
