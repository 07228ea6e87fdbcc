"""A partition without a leader: what it holds of buffer.memory, and when that comes back (docs/guarantees.md)."""

from __future__ import annotations

import numpy as np
import pytest

from spark_kafka_sink.errors import BufferExhaustedError, DeliveryTimeoutError
from tests.producer.batching.accumulator_harness import Harness

BUFFER_BYTES = 200_000
STALLED, HEALTHY = 0, 1


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
    """Rows for both partitions, encoded together, of which the healthy ones are acknowledged at once."""
    values: list[bytes | None] = [np.random.default_rng(1).bytes(1000)] * 20
    appended = h.append_rows(values, [STALLED] + [HEALTHY] * 19)
    acknowledge_all(h)
    return appended.error is None


def acknowledge_all(h: Harness) -> None:
    while batches := h.take():
        for batch in batches:
            assert batch.topic_partition.partition == HEALTHY
            h.acknowledge(batch)


def held(h: Harness) -> int:
    return h.pool.bytes_max - h.pool.free_bytes


def test_rows_that_were_encoded_together_are_held_together_but_never_beyond_the_buffer() -> None:
    h = stalled(batch_size=100_000)
    assert write_together(h)
    assert held(h) >= 20 * 1000  # the nineteen that were acknowledged, too: their bytes lie in one buffer
    while write_together(h):
        assert held(h) <= BUFFER_BYTES
    assert isinstance(h.append(HEALTHY, 20, b"v" * 1000).error, BufferExhaustedError)
    acknowledge_all(h)
    h.clock.now += 60_000
    for batch in h.accumulator.expired_batches(h.clock.now):
        assert batch.topic_partition.partition == STALLED
        assert batch.fail(DeliveryTimeoutError("too late"))
        h.accumulator.finish(batch)
    assert h.pool.free_bytes == BUFFER_BYTES
    assert write_together(h)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_with_compression_a_full_batch_that_waits_holds_its_own_bytes_alone(codec: str) -> None:
    h = stalled(batch_size=1000, compression_type=codec)
    assert write_together(h)
    assert held(h) < 3 * 1000
