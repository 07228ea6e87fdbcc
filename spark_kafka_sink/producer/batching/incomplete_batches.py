"""IncompleteBatches: the batches that are neither acknowledged nor failed, their deadlines, and the running flushes.

Guarded by the accumulator's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS


class Flush:
    """A running call of flush().

    `batches`: the batches for which the flush waits. None until all rows that were appended before the flush are in
    batches.
    """

    __slots__ = ("batches", "done_event")

    def __init__(self) -> None:
        self.done_event = threading.Event()
        self.batches: set[ProducerBatch] | None = None


class IncompleteBatches:
    """The incomplete batches and the flushes that wait for them."""

    def __init__(self) -> None:
        self._deadlines_ms: dict[ProducerBatch, float] = {}  # inf for batches that take_expired has returned
        self._flushes: set[Flush] = set()  # in progress
        self.next_deadline_ms = INFINITE_MS
        """Lower bound of the deadlines. It may be the deadline of a batch that has completed: finding the exact minimum
        takes a scan of all batches, which is deferred until this time has come."""

    def __len__(self) -> int:
        return len(self._deadlines_ms)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(list(self._deadlines_ms))

    @property
    def is_flush_in_progress(self) -> bool:
        return bool(self._flushes)

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch. Idempotent."""
        self._deadlines_ms[batch] = batch.deadline_ms
        if batch.deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = batch.deadline_ms

    def remove(self, *batches: ProducerBatch, successors: Iterable[ProducerBatch] = ()) -> None:
        """Remove completed batches, and complete the flushes that no longer wait for any batch.

        `successors`: the batches into which the removed batch was split. Flushes wait for these instead.
        """
        for batch in batches:
            self._deadlines_ms.pop(batch, None)
        if not self._deadlines_ms:
            self.next_deadline_ms = INFINITE_MS
        for flush in self._flushes:
            if flush.batches is not None and not flush.batches.isdisjoint(batches):
                flush.batches.difference_update(batches)
                flush.batches.update(successors)
                if not flush.batches:
                    flush.done_event.set()

    def take_expired(self, now_ms: float) -> list[ProducerBatch]:
        """Return the batches whose deadline has passed, in the order of their deadlines, each only once.

        A pinned batch is returned by a later call, after it was unpinned.
        """
        expired_batches = [
            batch
            for batch, deadline_ms in self._deadlines_ms.items()
            if deadline_ms <= now_ms and batch.state is not PINNED
        ]
        for batch in expired_batches:
            self._deadlines_ms[batch] = INFINITE_MS
        self.next_deadline_ms = min(self._deadlines_ms.values(), default=INFINITE_MS)
        return sorted([batch for batch in expired_batches if not batch.is_done], key=lambda batch: batch.deadline_ms)

    def begin_flush(self, flush: Flush) -> None:
        """Register a flush. While a flush is in progress, all batches are ready without lingering."""
        self._flushes.add(flush)

    def end_flush(self, flush: Flush) -> None:
        """Unregister a flush that has completed, has timed out, or was interrupted, even before `begin_flush`."""
        self._flushes.discard(flush)

    def find_unstarted_flushes(self) -> list[Flush]:
        """Return the flushes whose batches are not known yet, because rows are still staged."""
        return [flush for flush in self._flushes if flush.batches is None]

    def start_waiting(self, flushes: Iterable[Flush]) -> None:
        """Let flushes wait for the currently incomplete batches. If there are none, complete the flushes."""
        for flush in flushes:
            flush.batches = set(self._deadlines_ms)
            if not flush.batches:
                flush.done_event.set()
