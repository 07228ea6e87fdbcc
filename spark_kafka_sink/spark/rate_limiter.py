"""The pace of a task: its share of `maxBytesPerSecond`.

Bytes are those of keys, values and headers before compression, which the report calls `bytes`. Rows are handed to the
producer in pieces of a second at most, and each piece waits until what went before it has had its time. Nothing is
saved up while a task waits for Spark: a pause is not made good by a burst after it.

A task ends when its last piece has had its time too: the next task begins with a pace of its own, and many short tasks
would write one piece each without any wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from spark_kafka_sink.records.topic_rows import TopicRows


@dataclass
class RateLimiter:
    """The pace of one task. Its own thread alone uses it."""

    bytes_per_second: float
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waited_seconds: float = 0.0
    """seconds, in all"""
    _free_at: float = 0.0

    def pieces(self, rows: TopicRows) -> Iterator[TopicRows]:
        """Yield the rows in order, each piece when its time has come."""
        seconds = rows.columns.payload_nbytes / self.bytes_per_second
        length = max(rows.columns.num_rows // max(ceil(seconds), 1), 1)
        for start in range(0, rows.columns.num_rows, length):
            piece = rows.slice(start, length)
            self._await_turn(piece.columns.payload_nbytes)
            yield piece

    def end(self) -> None:
        """Wait until the last piece has had its time."""
        self._await_free()

    def _await_turn(self, nbytes: int) -> None:
        self._free_at = self._await_free() + nbytes / self.bytes_per_second

    def _await_free(self) -> float:
        """Wait until what was handed over has had its time. Returns what the time is then."""
        now = self.now()
        if now >= self._free_at:
            return now
        self.sleep(self._free_at - now)
        self.waited_seconds += self._free_at - now
        return self._free_at
