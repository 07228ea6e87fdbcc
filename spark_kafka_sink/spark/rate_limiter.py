"""The rate limit of a task: its share of `maxBytesPerSecond`.

The limit applies to the bytes of keys, values and headers before compression, which the write report calls `bytes`.
`throttle` splits rows into slices that take at most about one second at this rate, and yields each slice when the time
of the previous slices has passed. Unused time does not accumulate: after waiting for rows from Spark, a task does not
write faster to catch up.

A task also waits after its last slice. Each task has a new rate limiter, so many short tasks would otherwise write one
slice each without any wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from spark_kafka_sink.records.topic_rows import TopicRows


@dataclass
class RateLimiter:
    """The rate limiter of one task. Not thread-safe."""

    bytes_per_second: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waited_seconds: float = 0.0
    """The total time spent waiting."""
    _next_slice_time: float = 0.0
    """The earliest time, on `clock`, at which the next slice may be yielded."""

    def throttle(self, rows: TopicRows) -> Iterator[TopicRows]:
        """Yield the rows in order, in slices. Before each slice, wait long enough to keep the rate within the limit."""
        total_seconds = rows.columns.payload_nbytes / self.bytes_per_second
        slice_count = max(ceil(total_seconds), 1)  # about one slice per second
        slice_length = max(rows.columns.num_rows // slice_count, 1)
        for start in range(0, rows.columns.num_rows, slice_length):
            rows_slice = rows.slice(start, slice_length)
            now = self._wait()
            self._next_slice_time = now + rows_slice.columns.payload_nbytes / self.bytes_per_second
            yield rows_slice

    def finish(self) -> None:
        """Wait out the time of the last slice."""
        self._wait()

    def _wait(self) -> float:
        """Wait until the next slice may be yielded. Return the clock's time at that point."""
        now = self.clock()
        if now >= self._next_slice_time:
            return now
        self.sleep(self._next_slice_time - now)
        self.waited_seconds += self._next_slice_time - now
        return self._next_slice_time
