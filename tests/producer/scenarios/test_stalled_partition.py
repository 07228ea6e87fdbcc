"""A partition without acknowledgements holds only its own rows in buffer.memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spark_kafka_sink.errors import BufferExhaustedError, DeliveryTimeoutError
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from tests.producer.batching.accumulator_harness import VALUE, Harness, cluster

BUFFER_BYTES = 200_000
STALLED, HEALTHY = 0, 1
MIB = 1 << 20


def stalled(**options: object) -> Harness:
    return Harness(
        leaders=(None, 0),
        linger_ms=0,
        buffer_memory=BUFFER_BYTES,
        max_block_ms=0,
        delivery_timeout_ms=60_000,
        request_timeout_ms=1000,
        **options,
    )


def write_together(h: Harness) -> bool:
    """Append rows of both partitions, which are encoded together, and acknowledge the healthy partition's rows.

    Return whether all rows were accepted.
    """
    values: list[bytes | None] = [np.random.default_rng(1).bytes(1000)] * 20
    _, error = h.append_rows(values, [STALLED] + [HEALTHY] * 19)
    acknowledge_all(h)
    return error is None


def acknowledge_all(h: Harness) -> None:
    while batches := h.take():
        for batch in batches:
            assert batch.topic_partition.partition == HEALTHY
            h.acknowledge(batch)


def get_reserved_bytes(h: Harness) -> int:
    return h.pool.total_bytes - h.pool.free_bytes


def test_stalled_partition_holds_only_memory_of_its_own_rows() -> None:
    h = stalled(batch_size=100_000)
    stalled_rows = 0
    while write_together(h):
        stalled_rows += 1
        assert get_reserved_bytes(h) <= BUFFER_BYTES
    # If the other rows' memory was held, too, a twentieth of the buffer would hold stalled rows. The buffer does not
    # fill up completely, because a call needs memory for all of its rows at once.
    assert stalled_rows * 1000 > BUFFER_BYTES * 3 // 4
    acknowledge_all(h)
    h.clock.now += 60_000
    for batch in h.accumulator.take_expired_batches(h.clock.now):
        assert batch.topic_partition.partition == STALLED
        batch.fail(DeliveryTimeoutError("too late"))
        h.accumulator.remove_completed(batch)
    assert h.pool.free_bytes == BUFFER_BYTES
    assert write_together(h)


@pytest.mark.parametrize("singles", [0, 1])
def test_memory_of_stalled_partition_includes_futures_of_single_records(singles: int) -> None:
    h = Harness(leaders=(0, None), linger_ms=0, batch_size=MIB, max_block_ms=0)
    for _ in range(10):
        for _ in range(singles):
            h.append_record(0)
        h.append_rows([b"v" * 20] * 16_000, [0] * 9_000 + [1] * 7_000)
        for batch in h.take():
            h.acknowledge(batch)
    charged = get_reserved_bytes(h)
    h.snapshot = cluster((0, 0))
    waiting = sum(batch.size_bytes for batches in iter(h.take, []) for batch in batches)
    assert waiting > MIB
    assert charged >= waiting


def test_copies_no_batches_while_memory_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(batch: ProducerBatch) -> None:
        raise AssertionError(batch)

    monkeypatch.setattr(ProducerBatch, "copy_to_own_memory", copied)
    h = stalled(batch_size=100_000)
    for _ in range(5):
        assert write_together(h)


def exhaust_memory(h: Harness) -> None:
    """Make a call that fails because no memory is available."""
    free = h.pool.free_bytes
    assert h.pool.try_reserve(free)
    assert isinstance(h.append(HEALTHY)[1], BufferExhaustedError)
    h.pool.release(free)


def drain_batch(h: Harness) -> ProducerBatch:
    h.snapshot = cluster((0, 0))
    (batch,) = h.drain(*h.ready().ready_node_ids)
    return batch


def expire_batch(h: Harness) -> ProducerBatch:
    h.clock.now += 60_000
    (batch,) = h.accumulator.take_expired_batches(h.clock.now)
    batch.fail(DeliveryTimeoutError("too late"))
    return batch


def split(h: Harness) -> ProducerBatch:
    batch = drain_batch(h)
    batch.mark_request_ended()
    return h.accumulator.split_and_reenqueue(batch, h.clock.now)[0]


@pytest.mark.parametrize(
    ("step", "take_batch"),
    [("mark_in_flight", drain_batch), ("fail", expire_batch), ("create_child", split), ("close", split)],
)
def test_does_not_copy_batches_that_sender_has_removed_from_queue(
    step: str, take_batch: Callable[[Harness], ProducerBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy would replace memory that the sender is releasing, and the copy's memory would never be released."""
    h = stalled(batch_size=100_000)
    h.append_rows([VALUE] * 40, [STALLED] * 2 + [HEALTHY] * 38)
    acknowledge_all(h)
    original = getattr(ProducerBatch, step)
    copied_batches: list[ProducerBatch] = []

    def request_memory() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(ProducerBatch, "copy_to_own_memory", lambda batch: copied_batches.append(batch))
            exhaust_memory(h)

    def request_memory_first(batch: ProducerBatch, *arguments: Any, **named: Any) -> Any:
        request_memory()
        return original(batch, *arguments, **named)

    request_memory()
    assert len(copied_batches) == 1  # the batch is copied while it is queued
    monkeypatch.setattr(ProducerBatch, step, request_memory_first)
    assert take_batch(h)
    assert len(copied_batches) == 1


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_full_batch_holds_only_its_own_bytes(codec: str) -> None:
    h = stalled(batch_size=1000, compression_type=codec)
    assert write_together(h)
    assert get_reserved_bytes(h) < 3 * 1000


@pytest.mark.parametrize("in_flight", [0, 5], ids=["no leader", "five requests in flight"])
def test_stalled_partition_of_a_hundred_does_not_block_the_others(in_flight: int) -> None:
    leaders = [0] * 100 if in_flight else [None, *[0] * 99]
    h = Harness(leaders=leaders, linger_ms=5, batch_size=65_536, buffer_memory=32 * MIB, max_block_ms=0)
    value = np.random.default_rng(1).bytes(8_000)
    partitions = [row % 100 for row in range(1_200)]
    in_flight_batches: list[ProducerBatch] = []
    passed = 0
    while passed < 8 * 32 * MIB:
        _, error = h.append_rows([value] * len(partitions), partitions)
        assert error is None, f"after {passed / MIB:.0f} MiB"
        h.clock.now += 5
        while batches := h.take():
            for batch in batches:
                if batch.topic_partition.partition != STALLED:
                    passed += batch.body_bytes
                    h.acknowledge(batch)
                    continue
                in_flight_batches.append(batch)
                if len(in_flight_batches) == in_flight:
                    h.gate.rejected_partitions.add(STALLED)
    assert len(in_flight_batches) == in_flight
    assert get_reserved_bytes(h) < 32 * MIB
