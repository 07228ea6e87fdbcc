"""Metrics of the buffer pool under the Java client's names: free memory, and the waits of calls for it.

The pool adds up. New waits are taken over into the windows ten times a second while requests go out, and when a user
reads them. The caller locks.
"""

from __future__ import annotations

from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.windows import Gauge, Meter, WindowedStat, compute_time_ratio


class PoolMetrics:
    """The waits of a BufferPool over windows and in total, and the present state of its memory."""

    def __init__(self, pool: BufferPool, window_ms: float, num_samples: int) -> None:
        self._pool = pool
        self._wait_ns = Meter(WindowedStat(window_ms, num_samples))
        self._exhausted = Meter(WindowedStat(window_ms, num_samples))

    def count(self, now: float) -> None:
        """Add the waits since the last call."""
        self._wait_ns.mark_total(self._pool.total_wait_ms * 1_000_000, now)
        self._exhausted.mark_total(self._pool.exhausted_total, now)

    def gauges(self) -> dict[str, Gauge]:
        return {
            "buffer-total-bytes": lambda now: float(self._pool.total_bytes),
            "buffer-available-bytes": lambda now: float(self._pool.free_bytes),
            "waiting-threads": lambda now: float(self._pool.waiter_count),
            "bufferpool-wait-ratio": lambda now: compute_time_ratio(self._wait_ns, now),
            "bufferpool-wait-time-ns-total": self._wait_ns.read_total,
            **self._exhausted.gauges("buffer-exhausted"),
        }
