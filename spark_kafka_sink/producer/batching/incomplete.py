"""IncompleteBatches: every batch until it is acknowledged or has failed; when each expires, and what a flush waits for.

Guarded by the accumulator's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS


class Flush:
    """A call of flush(). `batches` is what it waits for, None until all rows that were given before are in batches."""

    __slots__ = ("batches", "done")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.batches: set[ProducerBatch] | None = None


class IncompleteBatches:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._deadlines: dict[ProducerBatch, float] = {}  # inf once the batch was reported as expired
        self._flushes: set[Flush] = set()  # those under way
        self.next_deadline_ms = INFINITE_MS
        """No batch expires before this time. It may be the deadline of a batch that is done already: to find the next
        deadline means to look at all batches, and is put off until this time has come."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(list(self._deadlines))

    @property
    def flushing(self) -> bool:
        """Is a flush under way?"""
        return bool(self._flushes)

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
        for flush in self._flushes:
            if flush.batches is not None and not flush.batches.isdisjoint(done):
                flush.batches.difference_update(done)
                flush.batches.update(successors)
                if not flush.batches:
                    flush.done.set()

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """The batches that have expired, each once, oldest first. One that a thread works on comes at a later call."""
        expired = [
            batch for batch, deadline_ms in self._deadlines.items() if deadline_ms <= now and batch.state is not PINNED
        ]
        for batch in expired:
            self._deadlines[batch] = INFINITE_MS
        self.next_deadline_ms = min(self._deadlines.values(), default=INFINITE_MS)
        return sorted([batch for batch in expired if not batch.done], key=lambda batch: batch.deadline_ms)

    def begin_flush(self, flush: Flush) -> None:
        """From now on everything is sendable at once."""
        self._flushes.add(flush)

    def end_flush(self, flush: Flush) -> None:
        """The flush is over, was given up, or was interrupted before it began."""
        self._flushes.discard(flush)

    def new_flushes(self) -> list[Flush]:
        """Those that are to be armed, as soon as all rows that wait now are in batches."""
        return [flush for flush in self._flushes if flush.batches is None]

    def arm(self, flushes: Iterable[Flush]) -> None:
        """From here on they wait for the batches that there are now; the event is set when these are done."""
        for flush in flushes:
            flush.batches = set(self._deadlines)
            if not flush.batches:
                flush.done.set()
