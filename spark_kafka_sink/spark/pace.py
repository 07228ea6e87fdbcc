"""The pace of a task: its share of `maxBytesPerSecond`.

Bytes are those of keys, values and headers before compression, which the report calls `bytes`. Rows are handed to the
producer in pieces of a second at most, and each piece waits until what went before it has had its time. Nothing is
saved up while a task waits for Spark: a pause is not made good by a burst after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from spark_kafka_sink.records.topic_rows import TopicRows


@dataclass
class Pace:
    """The pace of one task. Its own thread alone uses it."""

    bytes_per_second: float
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    waited: float = 0.0
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

    def _await_turn(self, nbytes: int) -> None:
        now = self.now()
        if now < self._free_at:
            self.sleep(self._free_at - now)
            self.waited += self._free_at - now
            now = self._free_at
        self._free_at = now + nbytes / self.bytes_per_second
