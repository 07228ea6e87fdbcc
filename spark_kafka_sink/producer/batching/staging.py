"""Staging: rows wait for one topic, as they came, until enough are there to be grouped by partition all at once.

Ten thousand rows over a thousand partitions are ten rows for each, and a batch that gets ten rows costs as much work as
one that gets a thousand. So rows are not sorted into their partitions when they arrive. They wait, as Arrow columns
beside a column of partition numbers, until their stage is due:

    full          the rows of a partition fill its batch, or all rows fill the processor's cache or a part of
                  buffer.memory: at once, on the thread of the caller that filled it
    lingered      linger.ms has passed, or memory is short: on the sender's thread
    hurried       a flush or the close is under way: at once

A stage lives from its first row until all its rows are in batches. An entry (a StagedRecord, or the StagedRows of one
call) is accepted by being appended to `entries`, together with what was reserved for it. So after an exception at any
moment (MemoryError, Ctrl-C) an entry is either accepted and paid for, or not there at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.records.columns import RecordColumns

Headers = Sequence[tuple[str, "bytes | None"]]

RECORD_BYTES_OVER = 30
"""By how much the size of a StagedRecord may exceed what it is encoded to: all of its numbers are one byte long."""
_ROW_BYTES_OVER = 8
"""By how much the size of a row of columns may exceed what it is encoded to (records/cutting.py)."""
_CACHED_BYTES = 3 << 20
_BYTES_PER_PARTITION = 64 << 10
"""Rows are ordered in half the time, or less, while all are in the processor's cache. So a stage is full with that many
bytes, unless a partition's share would be small: each share costs what some hundred rows cost."""


class StagedRecord(NamedTuple):
    """One record of send(), serialized. `size` is an upper bound of its encoded size, `future` gets its result."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int
    size: int
    future: object


@dataclass(slots=True, eq=False)
class StagedRows:
    """Rows of one call, and their places in what the caller gave. For single records `call` is the list of futures."""

    columns: RecordColumns  # deleted when they are grouped: the copy in order takes their place in buffer.memory
    sizes: NDArray[np.int64]
    partitions: NDArray[np.int32]
    counts: NDArray[np.int64]
    """Rows of each partition, up to the last one that has any."""
    rows: NDArray[np.int64]
    call: object


Entry = StagedRecord | StagedRows


class Stage:
    """The rows of one topic that wait together. Guarded by the accumulator's lock until it is taken to be filled into
    batches, then used by the thread alone that holds the topic's fill lock (batch_filler.py)."""

    __slots__ = (
        "_staged_bytes",
        "bytes",
        "entries",
        "fullest_bytes",
        "leases",
        "oldest_ms",
        "topic",
    )

    def __init__(self, topic: str, now: float) -> None:
        self.topic = topic
        self.oldest_ms = now
        self.entries: list[tuple[Entry, int]] = []  # each with the bytes that are reserved for it
        self.bytes = 0  # upper bound of the encoded form of all rows
        self.fullest_bytes = 0  # lower bound of what the partition with the most rows has
        self._staged_bytes = np.zeros(0, np.int64)  # by partition, lower bounds
        self.leases: list[MemoryLease] = []  # what is charged for its rows, since it was taken

    def __repr__(self) -> str:
        return f"Stage({self.topic}, {len(self.entries)} entries, {self.bytes} bytes, oldest {self.oldest_ms})"

    def add(self, entry: Entry, reserved: int) -> None:
        """Accept an entry. To be there it must be in `entries`, which comes last."""
        if isinstance(entry, StagedRecord):
            self._count_record(entry)
        else:
            self._count_rows(entry)
        self.entries.append((entry, reserved))

    def _count_rows(self, rows: StagedRows) -> None:
        sizes = np.bincount(rows.partitions, rows.sizes).astype(np.int64)
        self._reach(len(sizes))
        self._staged_bytes[: len(sizes)] += sizes - _ROW_BYTES_OVER * rows.counts
        self.fullest_bytes = int(self._staged_bytes.max())
        self.bytes += int(sizes.sum())

    def _count_record(self, record: StagedRecord) -> None:
        partition = record.partition
        self._reach(partition + 1)
        size = int(self._staged_bytes[partition]) + record.size - RECORD_BYTES_OVER
        self._staged_bytes[partition] = size
        self.fullest_bytes = max(self.fullest_bytes, size)
        self.bytes += record.size

    def _reach(self, partitions: int) -> None:
        missing = partitions - len(self._staged_bytes)
        if missing > 0:
            self._staged_bytes = np.concatenate([self._staged_bytes, np.zeros(missing, np.int64)])

    def holds(self, entry: Entry) -> bool:
        """Was the entry accepted?"""
        return any(accepted is entry for accepted, _ in self.entries)

    def remove(self, entry: Entry) -> None:
        """The entry is not accepted after all. Its bytes stay counted, so that the stage is full a little earlier."""
        self.entries = [pair for pair in self.entries if pair[0] is not entry]

    def is_full(self, batch_bytes_max: int, memory_max: int) -> bool:
        """Should its rows become batches now? `batch_bytes_max` is what a batch takes, without its header."""
        if self.fullest_bytes >= batch_bytes_max or self.bytes >= memory_max:
            return True
        partitions = int(np.count_nonzero(self._staged_bytes))
        return self.bytes >= max(_CACHED_BYTES, _BYTES_PER_PARTITION * partitions)


def chunks(sizes: NDArray[np.int64], rows_max: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Cut a call into what is staged at a time: first row, row after the last, bytes. A larger row is a chunk alone."""
    row_count, total = len(sizes), int(np.add.reduce(sizes))
    if total <= bytes_max and row_count <= rows_max:
        yield 0, row_count, total
        return
    ends = np.cumsum(sizes)
    start = before = 0
    while start < row_count:
        stop = int(np.searchsorted(ends, before + bytes_max, "right"))
        stop = min(max(stop, start + 1), start + rows_max, row_count)
        end = int(ends[stop - 1])
        yield start, stop, end - before
        start, before = stop, end
