"""Rows stay staged for a limited time while every leader already has a full request."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.batching.accumulator_harness import Harness
from tests.producer.batching.named_call import get_name
from tests.producer.virtual_time import create_simulated_producer, get_loop, wait_for_result
from tests.simulated_cluster import SimulatedCluster

REQUEST_BYTES = 900
"""max.request.size, small enough that one full batch fills a request."""
LINGER_MS = 10
HOLD_MS = 100


def supplied(*partitions: int) -> Harness:
    """Build a harness with a full batch for each partition. Node 0 leads partitions 0 and 1, node 1 leads 2."""
    h = Harness(max_request_size=REQUEST_BYTES, linger_ms=LINGER_MS)
    for partition in partitions:
        h.append(partition, 9)
    return h


def sent_partitions(h: Harness, *node_ids: int) -> list[int]:
    """Return the partitions of the batches that one round of the sender takes."""
    h.ready()
    return sorted(batch.topic_partition.partition for batch in h.drain(*node_ids))


def test_lingered_rows_stay_staged_while_every_leader_has_a_full_request() -> None:
    h = supplied(0, 2)
    h.append(1, 2, call="first")
    h.clock.now += LINGER_MS
    assert sent_partitions(h) == [0, 2]
    h.append(1, 2, call="second")
    h.ready()  # no full batch is left, so the rows become a batch
    (batch,) = [batch for batch in h.drain() if batch.topic_partition.partition == 1]
    assert [get_name(call) for call, _, _ in batch.split_rows_by_call()] == ["first", "second"]


def test_groups_rows_when_one_leader_could_accept_more() -> None:
    h = supplied(0)
    h.append(2, 2)
    h.clock.now += LINGER_MS
    assert sent_partitions(h, 1) == [2]


def test_rows_for_unresponsive_leaders_stay_staged_for_limited_time() -> None:
    h = supplied(0, 2)
    h.append(1, 2)
    h.clock.now += LINGER_MS
    assert h.ready().next_ready_check_delay_ms == HOLD_MS
    h.clock.now += HOLD_MS - 1
    assert h.ready().next_ready_check_delay_ms == 1
    h.clock.now += 1
    assert sent_partitions(h) == [0, 1, 2]


def test_long_queue_of_one_partition_does_not_delay_the_others() -> None:
    h = Harness(leaders=(0, 0), max_request_size=2 * REQUEST_BYTES, linger_ms=LINGER_MS)
    h.append(0, 100)
    h.append(1, 2)
    h.clock.now += LINGER_MS
    assert sent_partitions(h) == [0, 1]


@pytest.mark.parametrize("end", [Harness.begin_flush, lambda h: h.accumulator.close()])
def test_flush_and_close_have_no_extra_linger(end: Callable[[Harness], object]) -> None:
    h = supplied(0, 2)
    h.append(1, 2)
    end(h)
    assert sent_partitions(h) == [0, 1, 2]


@pytest.mark.parametrize("linger_ms", [LINGER_MS, 60_000])
def test_extra_linger_is_limited_when_memory_is_short(linger_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    h = Harness(max_request_size=REQUEST_BYTES, linger_ms=linger_ms)
    for partition in (0, 2):
        h.append(partition, 9)
    h.append(1, 2)
    monkeypatch.setattr(BufferPool, "waiter_count", 1)
    free = h.pool.free_bytes
    assert h.ready().next_ready_check_delay_ms == HOLD_MS
    assert h.pool.free_bytes == free
    h.clock.now += HOLD_MS
    h.ready()
    assert h.pool.free_bytes > free  # the memory that was reserved for their encoding


def test_no_extra_linger_for_available_leader_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = supplied(0)
    h.append(2, 2)
    monkeypatch.setattr(BufferPool, "waiter_count", 1)
    assert sent_partitions(h, 1) == [2]


def test_rows_after_extra_linger_are_sent_without_waiting_for_response() -> None:
    latency_ms = 20
    cluster = SimulatedCluster(FakeSystem(latency_ms=latency_ms), nodes=1, topics={"t": 2})
    producer = create_simulated_producer(cluster, linger_ms=0, batch_size=1024, max_request_size=REQUEST_BYTES)

    def rows(count: int) -> RecordColumns:
        return RecordColumns(pa.array([b"v" * 100] * count))

    wait_for_result(producer, producer.send_columns("t", rows(1), 0))
    wait_for_result(producer, producer.send_columns("t", rows(1), 1))
    began_ms = cluster.system.now()
    full = producer.send_columns("t", rows(9), 0)
    held = producer.send_columns("t", rows(2), 1)
    assert get_loop(producer).run_until(lambda: full.done() and held.done(), HOLD_MS)
    assert cluster.system.now() - began_ms <= 2 * latency_ms + 2
    producer.close()


def create_filled_harness(spent_ms: float, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Create a harness in which filling batches took `spent_ms`, after which a row was appended."""
    h = Harness(linger_ms=0, max_request_size=REQUEST_BYTES)
    fill = BatchFiller.fill_batches

    def slow(filler: BatchFiller, topic: str, *, full_batches_only: bool) -> bool:
        h.clock.now += spent_ms
        return fill(filler, topic, full_batches_only=full_batches_only)

    h.append(0, 2)
    with monkeypatch.context() as patched:
        patched.setattr(BatchFiller, "fill_batches", slow)
        (batch,) = h.take()
    h.acknowledge(batch)
    h.append(1, 1)
    return h


@pytest.mark.parametrize(("spent_ms", "pause_ms"), [(20, 40), (49, 98), (500, 100)])
def test_fill_pause_is_twice_the_fill_time(spent_ms: float, pause_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    h = create_filled_harness(spent_ms, monkeypatch)
    h.clock.now += pause_ms - 1
    assert h.take() == []
    assert h.ready().next_ready_check_delay_ms == 1
    h.clock.now += 1
    assert [batch.topic_partition.partition for batch in h.take()] == [1]


def test_no_fill_pause_after_instant_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    h = create_filled_harness(2, monkeypatch)
    assert [batch.topic_partition.partition for batch in h.take()] == [1]


def test_flush_does_not_wait_for_fill_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    h = create_filled_harness(49, monkeypatch)
    flush = h.begin_flush()
    (batch,) = h.take()
    h.acknowledge(batch)
    assert h.flushed(flush)


def test_available_leader_does_not_wait_for_fill_pause_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = create_filled_harness(49, monkeypatch)
    monkeypatch.setattr(BufferPool, "waiter_count", 1)
    assert [batch.topic_partition.partition for batch in h.take()] == [1]


def test_fill_pause_continues_if_memory_is_short_and_all_leaders_are_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = create_filled_harness(49, monkeypatch)
    for partition in (0, 2):
        h.append(partition, 9)
    monkeypatch.setattr(BufferPool, "waiter_count", 1)
    assert h.ready().next_ready_check_delay_ms == 98
