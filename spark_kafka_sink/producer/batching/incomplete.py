"""IncompleteBatches: every batch until it is acknowledged or has failed; when each expires, and what a flush waits for.

Guarded by the accumulator's lock; a flush waits without it, at an Event of its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator

from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS


class IncompleteBatches:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._deadlines: dict[ProducerBatch, float] = {}  # inf once the batch was reported as expired
        self._flushes: weakref.WeakKeyDictionary[threading.Event, set[ProducerBatch]] = weakref.WeakKeyDictionary()
        """What each flush waits for. Weak: a flush() that was interrupted at a bad moment must not hurry the producer
        for ever."""
        self.next_deadline_ms = INFINITE_MS
        """No batch expires before. It may be the deadline of a batch that is done by now: finding out means a look at
        all, and is put off until that time has come."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(list(self._deadlines))

    @property
    def flushing(self) -> bool:
        """Is a flush under way?"""
        return len(self._flushes) > 0

    def add(self, batch: ProducerBatch) -> None:
        """Adding a batch again changes nothing."""
        self._deadlines[batch] = batch.deadline_ms
        if batch.deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = batch.deadline_ms

    def forget(self, *done: ProducerBatch, successors: Iterable[ProducerBatch] = ()) -> None:
        """Remove batches that are done. A flush that waits for a batch that was split waits for its successors."""
        for batch in done:
            self._deadlines.pop(batch, None)
        if not self._deadlines:
            self.next_deadline_ms = INFINITE_MS
        for flush, batches in list(self._flushes.items()) if self._flushes else ():
            if not batches.isdisjoint(done):
                batches.difference_update(done)
                batches.update(successors)
                if not batches:
                    flush.set()

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """The batches that have expired, each once, oldest first. One that a thread works on comes at a later call."""
        expired = [
            batch for batch, deadline_ms in self._deadlines.items() if deadline_ms <= now and batch.state is not PINNED
        ]
        for batch in expired:
            self._deadlines[batch] = INFINITE_MS
        self.next_deadline_ms = min(self._deadlines.values(), default=INFINITE_MS)
        return sorted([batch for batch in expired if not batch.done], key=lambda batch: batch.deadline_ms)

    def begin_flush(self, flush: threading.Event) -> None:
        """From now on everything is sendable at once."""
        self._flushes[flush] = set()

    def arm(self, flush: threading.Event) -> None:
        """From here on the flush waits for the batches that there are now; the event is set when they are done."""
        self._flushes[flush] = batches = set(self._deadlines)
        if not batches:
            flush.set()

    def end_flush(self, flush: threading.Event) -> None:
        """The flush is over, or was given up."""
        self._flushes.pop(flush, None)
