"""IncompleteBatches: every batch from its first record to its outcome; when each expires, and which flush waits for it.

Guarded by the accumulator's lock; a flush waits without it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterable, Iterator

from spark_kafka_sink.producer.batch import ProducerBatch
from spark_kafka_sink.producer.partition_queues import INFINITE_MS

_DEAD_ENTRIES_MAX = 1024


class Flush:
    """What one flush() waits for."""

    __slots__ = ("batches", "done")

    def __init__(self) -> None:
        self.batches: set[ProducerBatch] = set()
        self.done = threading.Event()

    def wait(self, timeout_ms: float | None) -> bool:
        return self.done.wait(None if timeout_ms is None else max(0.0, timeout_ms) / 1000)


class IncompleteBatches:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._batches: dict[ProducerBatch, None] = {}
        self._deadlines: list[tuple[float, int, ProducerBatch]] = []
        self._tie_breaker = itertools.count()
        self._flushes: list[Flush] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(list(self._batches))

    @property
    def flushing(self) -> bool:
        return bool(self._flushes)

    def add(self, batch: ProducerBatch) -> None:
        """What is done leaves its entry among the deadlines; these are swept when they outnumber the others."""
        self._batches[batch] = None
        if len(self._deadlines) > 2 * len(self._batches) + _DEAD_ENTRIES_MAX:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (batch.deadline_ms, next(self._tie_breaker), batch))

    def forget(self, batch: ProducerBatch, successors: Iterable[ProducerBatch] = ()) -> None:
        """It is settled. Whoever waits for a batch that was split waits for its successors instead."""
        self._batches.pop(batch, None)
        for flush in self._flushes:
            if batch in flush.batches:
                flush.batches.discard(batch)
                flush.batches.update(successors)
                if not flush.batches:
                    flush.done.set()

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Each once. A batch that is being worked on is looked at again next time."""
        expired: list[ProducerBatch] = []
        pinned: list[tuple[float, int, ProducerBatch]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if entry[2].pinned:
                pinned.append(entry)
            elif not entry[2].done:
                expired.append(entry[2])
        for entry in pinned:
            heapq.heappush(self._deadlines, entry)
        return expired

    def next_deadline_ms(self) -> float:
        while self._deadlines and self._deadlines[0][2].done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else INFINITE_MS

    def begin_flush(self) -> Flush:
        flush = Flush()
        self._flushes.append(flush)
        return flush

    def arm(self, flush: Flush) -> None:
        """From here on the flush waits for what there is now."""
        flush.batches.update(self._batches)
        if not flush.batches:
            flush.done.set()

    def end_flush(self, flush: Flush) -> None:
        self._flushes.remove(flush)
