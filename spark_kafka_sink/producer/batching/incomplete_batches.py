"""IncompleteBatches: the batches that are neither acknowledged nor failed, their deadlines, and flushes in progress.

The accumulator's lock guards everything in this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS
from spark_kafka_sink.producer.one_time_event import OneTimeEvent


class Flush:
    """A flush() call in progress, which waits until all rows appended before it are acknowledged or failed."""

    __slots__ = ("batches", "done_event")

    def __init__(self) -> None:
        self.done_event = OneTimeEvent()
        """Set once the flush has no batch left to wait for."""
        self.batches: set[ProducerBatch] | None = None
        """The batches that the flush waits for; None until all rows appended before the flush are in batches."""


class IncompleteBatches:
    """The batches that are neither acknowledged nor failed, and the flushes that wait for some of them."""

    def __init__(self) -> None:
        self._deadline_ms_by_batch: dict[ProducerBatch, float] = {}  # inf once take_expired has returned the batch
        self._flushes: set[Flush] = set()  # the flushes in progress
        self.next_deadline_ms = INFINITE_MS
        """A time before which no deadline passes. It may be too early, because it may be the deadline of a batch that
        has since completed. Finding the exact minimum takes a scan of all batches, so it is deferred until this
        time."""

    def __len__(self) -> int:
        return len(self._deadline_ms_by_batch)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(list(self._deadline_ms_by_batch))

    @property
    def is_flush_in_progress(self) -> bool:
        return bool(self._flushes)

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch. Idempotent."""
        self._deadline_ms_by_batch[batch] = batch.deadline_ms
        if batch.deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = batch.deadline_ms

    def remove(self, *batches: ProducerBatch, successors: Iterable[ProducerBatch] = ()) -> None:
        """Remove completed batches, and complete the flushes that have no batch left to wait for.

        `successors`: the smaller batches that replace a batch that was split. Flushes that waited for the split batch
        wait for them instead.
        """
        for batch in batches:
            self._deadline_ms_by_batch.pop(batch, None)
        if not self._deadline_ms_by_batch:
            self.next_deadline_ms = INFINITE_MS
        for flush in self._flushes:
            if flush.batches is not None and not flush.batches.isdisjoint(batches):
                flush.batches.difference_update(batches)
                flush.batches.update(successors)
                if not flush.batches:
                    flush.done_event.set()

    def take_expired(self, now_ms: float) -> list[ProducerBatch]:
        """Return the batches whose deadline has passed, ordered by deadline. Each batch is returned only once.

        A pinned batch is left for a later call, because another thread is using it without the lock. Batches that are
        already DONE are not returned.
        """
        expired_batches = [
            batch
            for batch, deadline_ms in self._deadline_ms_by_batch.items()
            if deadline_ms <= now_ms and batch.state is not PINNED
        ]
        for batch in expired_batches:
            self._deadline_ms_by_batch[batch] = INFINITE_MS
        self.next_deadline_ms = min(self._deadline_ms_by_batch.values(), default=INFINITE_MS)
        return sorted([batch for batch in expired_batches if not batch.is_done], key=lambda batch: batch.deadline_ms)

    def begin_flush(self, flush: Flush) -> None:
        """Register a flush. While a flush is in progress, all batches are ready without lingering."""
        self._flushes.add(flush)

    def end_flush(self, flush: Flush) -> None:
        """Unregister a flush that has completed, timed out or was interrupted.

        Do nothing if the flush is not registered: an interrupt may occur before `begin_flush`.
        """
        self._flushes.discard(flush)

    def find_flushes_without_batches(self) -> list[Flush]:
        """Return the flushes that do not have their batches yet, because rows were still staged when they began."""
        return [flush for flush in self._flushes if flush.batches is None]

    def assign_batches_to_flushes(self, flushes: Iterable[Flush]) -> None:
        """Make flushes wait for all batches that are incomplete now. If there are none, complete the flushes."""
        for flush in flushes:
            flush.batches = set(self._deadline_ms_by_batch)
            if not flush.batches:
                flush.done_event.set()
