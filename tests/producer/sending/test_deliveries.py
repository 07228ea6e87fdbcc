"""Deliveries: whatever a user's code raises for one batch, the other batches are still completed or failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.errors import BrokerError, DeliveryTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending import deliveries
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.producer.sending.sender_cases import Sent, established, send, simulated, wait
from tests.producer.virtual_time import loop_of, outcome
from tests.simulated_cluster import SimulatedCluster

RAISED = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


def raise_for_partition_1(monkeypatch: pytest.MonkeyPatch, name: str, raised: type[BaseException]) -> list[int]:
    """Let the function that completes or fails futures raise for batches of partition 1; returns the time of each."""
    original: Callable[..., None] = getattr(deliveries, name)
    raised_for: list[int] = []

    def tell(first: Any, *others: Any) -> None:
        (batch,) = [first] if isinstance(first, ProducerBatch) else first
        if batch.topic_partition.partition == 1:
            raised_for.append(1)
            raise raised("from a user's code")
        original(first, *others)

    monkeypatch.setattr(deliveries, name, tell)
    return raised_for


def three_at_once(producer: KafkaProducer) -> list[Sent]:
    return [producer.send(ProducerRecord("t", b"v", partition=partition)) for partition in range(3)]


def goes_on(cluster: SimulatedCluster, producer: KafkaProducer) -> None:
    assert outcome(producer, send(producer, b"later", 2)).offset >= 1
    producer.flush(10)
    producer.close()
    assert producer._pool.free_bytes == producer._pool.bytes_max
    assert not cluster.system.open_sockets


@pytest.mark.parametrize("raised", RAISED)
def test_batches_of_the_same_answer_are_complete_when_one_of_them_raises(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    raised_for = raise_for_partition_1(monkeypatch, "complete_futures", raised)
    first, _, third = three_at_once(producer)
    wait(producer, first, third)
    assert (first.result(0).offset, third.result(0).offset, raised_for) == (1, 1, [1])
    goes_on(cluster, producer)


@pytest.mark.parametrize("raised", RAISED)
def test_batches_of_the_same_answer_fail_when_one_of_them_raises(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    raised_for = raise_for_partition_1(monkeypatch, "fail_futures", raised)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.POLICY_VIOLATION)
    first, _, third = three_at_once(producer)
    wait(producer, first, third)
    assert isinstance(first.exception(0), BrokerError)
    assert isinstance(third.exception(0), BrokerError)
    assert raised_for == [1]
    goes_on(cluster, producer)


@pytest.mark.parametrize("raised", RAISED)
def test_batches_that_expire_together_fail_when_one_of_them_raises(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3, request_timeout_ms=500, delivery_timeout_ms=800)
    established(producer, 0, 1, 2)
    raised_for = raise_for_partition_1(monkeypatch, "fail_futures", raised)
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    first, _, third = three_at_once(producer)
    wait(producer, first, third)
    assert isinstance(first.exception(0), DeliveryTimeoutError)
    assert isinstance(third.exception(0), DeliveryTimeoutError)
    assert raised_for == [1]
    rule.remove()
    goes_on(cluster, producer)


@pytest.mark.parametrize("raised", RAISED)
def test_the_end_of_the_producer_fails_what_is_left_when_one_of_it_raises(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated(partitions=3)
    established(producer, 0, 1, 2)
    raise_for_partition_1(monkeypatch, "fail_futures", raised)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    first, _, third = three_at_once(producer)
    loop_of(producer).run_until(lambda: False, 10)
    producer.close(timeout=0)
    assert isinstance(first.exception(0), ProducerClosedError)
    assert isinstance(third.exception(0), ProducerClosedError)
    assert producer._pool.free_bytes == producer._pool.bytes_max
    assert not cluster.system.open_sockets
