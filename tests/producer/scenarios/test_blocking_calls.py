"""Blocking of calls: full batches do not linger, max.block.ms covers the whole call, callbacks never block."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BufferExhaustedError
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.topic_waits import TopicMetadataWaiter
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, get_sender, run_until, wait_for_result
from tests.simulated_cluster import SimulatedCluster

MAX_BLOCK_MS = 2000


def simulated(partitions: int = 1, **options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=1, topics={"t": partitions})
    return cluster, create_simulated_producer(cluster, max_block_ms=MAX_BLOCK_MS, **options)


def test_sends_full_batches_immediately_despite_sparse_partitions() -> None:
    """Partition 0 gets twelve batches and 28 more records, which fill less than two batches and may stay staged."""
    cluster, producer = simulated(101, linger_ms=3000, batch_size=16_384)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first", partition=0)))
    began_ms = cluster.system.now()
    value = b"v" * 1_000
    for partition in range(1, 101):
        producer.send(ProducerRecord("t", b"thin", partition=partition))
    full = [producer.send(ProducerRecord("t", value, partition=0)) for _ in range(12 * 16 + 28)]
    run_until(producer, full[0].done)
    assert cluster.system.now() - began_ms < 100
    run_until(producer, full[11 * 16].done)
    assert cluster.system.now() - began_ms < 100
    producer.close()


def test_sends_full_batches_of_columns_immediately_despite_sparse_partitions() -> None:
    cluster, producer = simulated(101, linger_ms=3000, batch_size=16_384)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first", partition=0)))
    began_ms = cluster.system.now()
    partitions = [0] * (12 * 17) + list(range(1, 101))
    columns = RecordColumns(pa.array([b"v" * 1_000] * len(partitions)))
    producer.send_columns("t", columns, pa.array(partitions, pa.int32()))
    run_until(producer, lambda: len(cluster.values("t", 0)) > 11 * 16)
    assert cluster.system.now() - began_ms < 100
    producer.close()


@pytest.mark.parametrize("spent_ms", [0, 1500])
def test_send_shares_max_block_ms_between_metadata_and_memory(spent_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer = simulated()
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first")))
    await_partitions = TopicMetadataWaiter.await_partitions

    def slow(*arguments: Any) -> object:
        snapshot = await_partitions(*arguments)
        cluster.system.advance(spent_ms)
        return snapshot

    budgets: list[float] = []

    def reserve(pool: BufferPool, count: int, block_ms: float, wait: object) -> None:
        budgets.append(block_ms)
        raise BufferExhaustedError("full")

    monkeypatch.setattr(TopicMetadataWaiter, "await_partitions", slow)
    monkeypatch.setattr(BufferPool, "try_reserve", lambda *_: False)
    monkeypatch.setattr(BufferPool, "reserve", reserve)
    assert isinstance(producer.send(ProducerRecord("t", b"v")).exception(0), BufferExhaustedError)
    assert budgets == [MAX_BLOCK_MS - spent_ms]
    monkeypatch.undo()
    producer.close()


@pytest.mark.parametrize("way", ["send", "send_columns"])
def test_send_in_callback_fails_immediately_when_memory_is_full(way: str) -> None:
    cluster, producer = simulated(linger_ms=0, buffer_memory=20_000)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first")))
    found: list[tuple[float, BaseException | None]] = []

    def more(*_: object) -> None:
        memory = get_sender(producer).accumulator.pool
        free = memory.free_bytes
        assert memory.try_reserve(free)
        began_ms = cluster.system.now()
        if way == "send":
            error = producer.send(ProducerRecord("t", b"v")).exception(0)
        else:
            (failure,) = producer.send_columns("t", RecordColumns(pa.array([b"v"]))).result(0).failures
            error = failure.error
        found.append((cluster.system.now() - began_ms, error))
        memory.release(free)

    wait_for_result(producer, producer.send(ProducerRecord("t", b"second"), more))
    ((waited_ms, error),) = found
    assert waited_ms == 0
    assert isinstance(error, BufferExhaustedError)
    assert "in a callback" in str(error)
    assert "Send from another thread" in str(error)
    producer.close()
