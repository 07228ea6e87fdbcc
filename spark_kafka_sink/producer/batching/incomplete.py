"""IncompleteBatches: every batch from its first record to its outcome; when each expires, and which flush waits for it.

Guarded by the accumulator's lock; a flush waits without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS


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
        self._deadlines: dict[ProducerBatch, float] = {}  # inf once it was told that the batch has expired
        self._flushes: list[Flush] = []
        self.next_deadline_ms = INFINITE_MS
        """No batch expires before. It may be that of a batch that is settled by now: to find out costs a look at all,
        and is put off until that time has come."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(list(self._deadlines))

    @property
    def flushing(self) -> bool:
        return bool(self._flushes)

    def add(self, batch: ProducerBatch) -> None:
        self._deadlines[batch] = batch.deadline_ms
        if batch.deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = batch.deadline_ms

    def forget(self, *settled: ProducerBatch, successors: Iterable[ProducerBatch] = ()) -> None:
        """They are settled. Whoever waits for a batch that was split waits for its successors instead."""
        for batch in settled:
            self._deadlines.pop(batch, None)
        if not self._deadlines:
            self.next_deadline_ms = INFINITE_MS
        for flush in self._flushes:
            if not flush.batches.isdisjoint(settled):
                flush.batches.difference_update(settled)
                flush.batches.update(successors)
                if not flush.batches:
                    flush.done.set()

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Each once, the oldest first. A batch that is being worked on is looked at again next time."""
        expired = [batch for batch, deadline_ms in self._deadlines.items() if deadline_ms <= now and not batch.pinned]
        for batch in expired:
            self._deadlines[batch] = INFINITE_MS
        self.next_deadline_ms = min(self._deadlines.values(), default=INFINITE_MS)
        return sorted([batch for batch in expired if not batch.done], key=lambda batch: batch.deadline_ms)

    def begin_flush(self) -> Flush:
        flush = Flush()
        self._flushes.append(flush)
        return flush

    def arm(self, flush: Flush) -> None:
        """From here on the flush waits for what there is now."""
        flush.batches.update(self._deadlines)
        if not flush.batches:
            flush.done.set()

    def end_flush(self, flush: Flush) -> None:
        self._flushes.remove(flush)
