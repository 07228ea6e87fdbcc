"""Buffer pool metrics under their Java names: free memory, and the time that callers wait for memory.

The pool does the counting. `update` reads its counters and records by how much they have grown. It is called ten times
a second while requests are being sent, and at each read. Callers must hold the lock of ProducerMetrics.
"""

from __future__ import annotations

from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.windows import NANOSECONDS_PER_MS, Gauge, Meter, WindowedStat, compute_time_ratio


class PoolMetrics:
    """The current memory of a BufferPool, and how long and how often callers had to wait for it."""

    def __init__(self, pool: BufferPool, window_ms: float, window_count: int) -> None:
        self._pool = pool
        self._wait_ns = Meter(WindowedStat(window_ms, window_count))
        self._exhausted_calls = Meter(WindowedStat(window_ms, window_count))

    def update(self, now_ms: float) -> None:
        """Record the increase of each counter since the last call."""
        self._wait_ns.record_increase(self._pool.total_wait_ms * NANOSECONDS_PER_MS, now_ms)
        self._exhausted_calls.record_increase(self._pool.exhausted_count, now_ms)

    def gauges(self) -> dict[str, Gauge]:
        return {
            "buffer-total-bytes": lambda now_ms: float(self._pool.total_bytes),
            "buffer-available-bytes": lambda now_ms: float(self._pool.free_bytes),
            "waiting-threads": lambda now_ms: float(self._pool.waiter_count),
            "bufferpool-wait-ratio": lambda now_ms: compute_time_ratio(self._wait_ns, now_ms),
            "bufferpool-wait-time-ns-total": self._wait_ns.read_total,
            **self._exhausted_calls.gauges("buffer-exhausted"),
        }
