"""The rate limit of a task: its share of `maxBytesPerSecond`.

The limit counts the bytes of keys, values and headers before compression, which the write report calls `bytes`. Each
call splits its rows into slices that take about one second at this rate, or less. A slice is passed on when the time
allotted to the preceding slices has passed. After a wait for rows from Spark, the task does not catch up with a burst.

A task also waits after its last slice. The next task starts with a new rate limiter, so many short tasks would
otherwise write one slice each without any wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from spark_kafka_sink.records.topic_rows import TopicRows


@dataclass
class RateLimiter:
    """The rate limiter of one task. Only the thread of this task uses it."""

    bytes_per_second: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waited_seconds: float = 0.0
    """The total time spent waiting."""
    _next_slice_at: float = 0.0

    def throttle(self, rows: TopicRows) -> Iterator[TopicRows]:
        """Yield the rows in order, in slices. Wait before each slice until the preceding slices have had their time."""
        seconds = rows.columns.payload_nbytes / self.bytes_per_second
        slice_length = max(rows.columns.num_rows // max(ceil(seconds), 1), 1)
        for start in range(0, rows.columns.num_rows, slice_length):
            rows_slice = rows.slice(start, slice_length)
            now = self._wait()
            self._next_slice_at = now + rows_slice.columns.payload_nbytes / self.bytes_per_second
            yield rows_slice

    def finish(self) -> None:
        """Wait until the last slice has had its time."""
        self._wait()

    def _wait(self) -> float:
        """Wait until the next slice may be passed on. Return the time of the clock after the wait."""
        now = self.clock()
        if now >= self._next_slice_at:
            return now
        self.sleep(self._next_slice_at - now)
        self.waited_seconds += self._next_slice_at - now
        return self._next_slice_at
