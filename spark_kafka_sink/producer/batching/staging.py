"""Staging: rows wait for one topic, as they came, until enough are there to be grouped by partition all at once.

Ten thousand rows over a thousand partitions are ten rows for each, and a batch that gets ten rows costs as much work as
one that gets a thousand. So rows are not sorted into their partitions when they arrive. They wait, as Arrow columns
beside a column of partition numbers, until their stage is due:

    full          the rows of a partition fill its batch, or all rows have 4 MB, or they or what is reserved for them
                  fill a part of buffer.memory: at once, on the thread of the caller that filled it
    lingered      linger.ms has passed, or memory is short: on the sender's thread
    hurried       a flush or the close is under way: at once

Keys are skewed: in ten thousand rows over a thousand partitions one partition may have a whole batch, and most have a
few rows. Then only the rows of the full partitions leave (`split`), and the others wait on. To take them out copies the
others. So in a stage that is half full already they wait, too, until it is full and all leave.

Single records wait as they are given, and cost as little as a tuple in a list. When they are as many bytes as a batch,
or their stage is due, they become columns and get their partitions, all at once (`place`). Mostly no partition is full
then: all of them wait on, and the caller's thread places the next ones when they are as many bytes as four batches.
Fewer records may fill a batch, too, if all of them are for the partition that has the most. The sender's thread places
them PLACE_DELAY_MS after that became possible, so that a full batch leaves although no more records come.

A stage lives from its first row until all its rows are in batches. They are in `entries`, each the Rows of one
call or StagedRecords, until they are handed over to batches (`additions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue
from spark_kafka_sink.producer.batching.pieces import Pieces
from spark_kafka_sink.producer.batching.row_origins import rows_between, rows_of_call
from spark_kafka_sink.producer.futures import Callback, RecordFutures, SendFuture
from spark_kafka_sink.producer.record import Headers
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.joined_rows import MAX_JOINED_BYTES

_ROW_BYTES_OVER = 8
"""By how much the size of a row of columns may exceed what it is encoded to (records/batch_slicing.py)."""
GROUPED_BYTES_MAX = MAX_JOINED_BYTES // 2
"""Rows that are grouped at once become one array, with 32-bit offsets. The rest is for rows that come meanwhile."""
_FULL_BYTES = 4 << 20
_BYTES_PER_PARTITION = 64 << 10
"""A stage is full with that many bytes, as with twice as many a row costs no less. With many partitions it takes more,
since each partition's share costs what some hundred rows cost."""
_SPLITS_MAX = 64
"""Each split looks at all entries of the stage; with a long linger.ms there would be more and more of them."""
_BATCHES_UNPLACED = 4
"""Single records are placed when they fill a batch, and then whenever they fill that many: to place some costs as much
as to stage a hundred."""
PLACE_DELAY_MS = 5.0
"""Single records that may fill a batch are placed by the sender's thread after this time, unless the caller's thread
has placed them as part of four batches before. A caller that sends without pause does that in less time."""


SingleRecord = tuple["bytes | None", "bytes | None", "Headers | None", "int | None", int]
"""One record of send(), serialized: value, key, headers, the partition that it names, and its time in milliseconds."""


class StagedRecords:
    """Single records that were given one after the other. Guarded by the accumulator's lock until they are placed."""

    __slots__ = ("call", "records", "snapshot")

    def __init__(self, topic: str, snapshot: ClusterSnapshot) -> None:
        self.call = RecordFutures(topic)
        self.records: list[SingleRecord] = []
        self.snapshot = snapshot  # the latest that was seen; by it they get their partitions

    @property
    def row_indices(self) -> NDArray[np.int64]:
        """Of each record its index in the call."""
        return np.arange(len(self.records))

    @property
    def partitions(self) -> NDArray[np.int32]:
        """The partition that each record names, -1 for the others."""
        return np.array([-1 if partition is None else partition for *_, partition, _ in self.records], np.int32)

    def add(self, record: SingleRecord, callbacks: tuple[Callback, ...]) -> SendFuture:
        """Accept a record; its future."""
        row = len(self.records)
        if callbacks:
            self.call.callbacks[row] = callbacks
        self.records.append(record)
        return SendFuture(self.call, row)


Entry = StagedRecords | Rows


class Additions(NamedTuple):
    """Encoded records, buffer by buffer; and for each piece of them its batch, and the queue of that batch."""

    buffers: Sequence[Pieces] = ()
    batches: Sequence[ProducerBatch] = ()
    queues: Sequence[PartitionQueue] = ()


class Stage:
    """The rows of one topic that wait together. Guarded by the accumulator's lock until it is taken to be filled into
    batches, then used by the thread alone that holds the topic's fill lock (batch_filler.py)."""

    __slots__ = (
        "_bytes_max",
        "_is_placing_decided",
        "_partition_count",
        "_reserved_max",
        "_splits",
        "_staged_bytes",
        "_thin",
        "additions",
        "bytes",
        "entries",
        "fullest_bytes",
        "leases",
        "oldest_ms",
        "overlooked",
        "place_due_ms",
        "reserved",
        "topic",
        "unplaced_bytes",
    )

    def __init__(self, topic: str, now: float, bytes_max: int, reserved_max: int) -> None:
        """The parts of buffer.memory that its rows, encoded, may fill, and that may be reserved for them."""
        self.topic = topic
        self.oldest_ms = now
        self._bytes_max = min(bytes_max, GROUPED_BYTES_MAX)
        self._reserved_max = reserved_max
        self._splits = 0  # how often rows have left before these
        self.entries: list[Entry] = []
        self.additions = Additions()  # what is being, or was added to batches, and is no entry any more
        self.reserved = 0  # bytes that are reserved for all entries
        self.bytes = 0  # upper bound of the encoded form of all rows of columns
        self.unplaced_bytes = 0  # and of all single records
        self.fullest_bytes = 0  # what the partition with the most rows has, single records left out; a lower bound
        self._staged_bytes = np.zeros(0, np.int64)  # by partition, lower bounds
        self._partition_count = 0  # those that have some of them
        self._thin: tuple[int, bool] | None = None  # what _is_thin has found for batches of this size
        self._is_placing_decided = False  # schedule_placing has found that single records may fill a batch
        self.place_due_ms = math.inf  # when the sender's thread places single records that may fill a batch
        self.overlooked = False  # the sender found them due, and could not fill them, since they were taken
        self.leases: list[MemoryLease] = []  # what `reserved` has become since the stage was taken

    def __repr__(self) -> str:
        return f"Stage({self.topic}, {len(self.entries)} entries, {self.bytes} bytes, oldest {self.oldest_ms})"

    @property
    def rows(self) -> list[Rows]:
        """The entries, once single records have become rows."""
        return [entry for entry in self.entries if isinstance(entry, Rows)]

    def add(self, rows: Rows, reserved: int) -> None:
        """Accept rows of columns, with what is reserved for them."""
        self._count(rows)
        self.reserved += reserved
        self.entries.append(rows)

    def add_record(
        self,
        record: SingleRecord,
        size: int,
        reserved: int,
        snapshot: ClusterSnapshot,
        callbacks: tuple[Callback, ...],
    ) -> SendFuture:
        """Accept a single record of at most `size` bytes, with what is reserved for it."""
        last = self.entries[-1] if self.entries else None
        if not isinstance(last, StagedRecords):
            last = StagedRecords(self.topic, snapshot)
            self.entries.append(last)
        last.snapshot = snapshot
        self.unplaced_bytes += size
        self.reserved += reserved
        return last.add(record, callbacks)

    def place(self, rows_of: Callable[[StagedRecords], Rows]) -> None:
        """Make rows of all single records. To be called again changes nothing."""
        entries: list[Entry] = []
        for entry in self.entries if self.unplaced_bytes else ():
            rows = rows_of(entry) if isinstance(entry, StagedRecords) else entry
            if rows is not entry:
                self._count(rows)
            entries.append(rows)
        if entries:
            self.entries, self.unplaced_bytes = entries, 0

    def _count(self, rows: Rows) -> None:
        sizes = np.bincount(rows.partitions, rows.sizes).astype(np.int64)
        self._reach(len(sizes))
        self._staged_bytes[: len(sizes)] += sizes - _ROW_BYTES_OVER * rows.counts
        self.bytes += int(sizes.sum())
        self._look_at_partitions()

    def _look_at_partitions(self) -> None:
        """After a change of _staged_bytes. Single records change nothing there: for each of them is_full is asked."""
        self.fullest_bytes = int(self._staged_bytes.max(initial=0))
        self._partition_count = int(np.count_nonzero(self._staged_bytes))
        self._thin = None

    def _reach(self, partitions: int) -> None:
        missing = partitions - len(self._staged_bytes)
        if missing > 0:
            self._staged_bytes = np.concatenate([self._staged_bytes, np.zeros(missing, np.int64)])

    def is_full(self, batch_bytes: int) -> bool:
        """Should rows become batches now? `batch_bytes` is what a batch takes, without its header."""
        size = self.bytes + self.unplaced_bytes
        enough = batch_bytes if not self.bytes else _BATCHES_UNPLACED * batch_bytes
        if self._fills_memory or self.unplaced_bytes >= enough:
            return True
        if self.fullest_bytes >= batch_bytes:
            return self._lets_full_batch_leave(batch_bytes)
        return size >= _FULL_BYTES and size >= _BYTES_PER_PARTITION * self._partition_count

    def schedule_placing(self, batch_bytes: int, linger_ms: float, clock: Callable[[], float]) -> bool:
        """Set `place_due_ms` if the partition with the most bytes has a full batch once all single records are for it,
        and linger.ms ends later.

        Return whether it was set just now.
        """
        if self._is_placing_decided or self.fullest_bytes + self.unplaced_bytes < batch_bytes:
            return False
        if not self.unplaced_bytes or not self._lets_full_batch_leave(batch_bytes):
            return False
        self._is_placing_decided = True
        due_ms = clock() + PLACE_DELAY_MS
        if due_ms >= self.oldest_ms + linger_ms:
            return False
        self.place_due_ms = due_ms
        return True

    def _lets_full_batch_leave(self, batch_bytes: int) -> bool:
        """Return whether a full batch leaves at once. In a stage that is half full it waits for the others, if these
        are thin."""
        return self.bytes + self.unplaced_bytes < self._bytes_max // 2 or not self._is_thin(batch_bytes)

    @property
    def _fills_memory(self) -> bool:
        """Have its rows their part of buffer.memory, encoded, or with what is reserved beside them?"""
        return self.bytes + self.unplaced_bytes >= self._bytes_max or self.reserved >= self._reserved_max

    def _is_thin(self, batch_bytes: int) -> bool:
        """Have the partitions without a full batch too few rows for batches?"""
        if self._thin is None or self._thin[0] != batch_bytes:
            waiting = self._staged_bytes[self._staged_bytes < batch_bytes]
            enough = min(_BYTES_PER_PARTITION, batch_bytes // 2)
            self._thin = batch_bytes, int(waiting.sum()) < enough * int(np.count_nonzero(waiting))
        return self._thin[1]

    def leaving(self, batch_bytes: int) -> NDArray[np.bool_] | None:
        """Mask of the partitions whose rows leave; None: all leave."""
        full = self._staged_bytes >= batch_bytes
        if not self.is_full(batch_bytes):
            return np.zeros_like(full)
        may_split = not self._fills_memory and self._splits < _SPLITS_MAX
        return full if may_split and full.any() and self._is_thin(batch_bytes) else None

    def split(self, leaving: NDArray[np.bool_]) -> tuple[Stage, Stage]:
        """A stage of the rows that leave, and one of the others; both are as old as this one, which does not change."""
        leave, rest = (Stage(self.topic, self.oldest_ms, self._bytes_max, self._reserved_max) for _ in range(2))
        rest._splits = self._splits
        if not leaving.any():
            rest.extend(self)
            return leave, rest
        rest._splits += 1
        rest._staged_bytes = np.where(leaving, 0, self._staged_bytes)
        rest._look_at_partitions()
        futures_bytes = 0
        for rows in self.rows:
            going, staying = rows.split(leaving)
            futures_bytes += rows.futures_bytes
            if going is not None:
                leave.entries.append(going)
                leave.bytes += int(going.sizes.sum())
                leave.reserved += going.futures_bytes
            if staying is not None:
                rest.entries.append(staying)
                rest.bytes += int(staying.sizes.sum())
        of_bytes = self.reserved - futures_bytes
        leave.reserved += of_bytes * leave.bytes // max(1, leave.bytes + rest.bytes)
        rest.reserved = self.reserved - leave.reserved
        return leave, rest

    def extend(self, later: Stage) -> None:
        """Add what was staged after these rows."""
        self._reach(len(later._staged_bytes))
        self._staged_bytes[: len(later._staged_bytes)] += later._staged_bytes
        self._look_at_partitions()
        self.bytes += later.bytes
        self.unplaced_bytes += later.unplaced_bytes
        self.reserved += later.reserved
        self.entries += later.entries

    def failed_batches(self, error: Exception) -> list[ProducerBatch]:
        """All rows that are in no batch, as batches without bytes that have failed."""
        batches: list[ProducerBatch] = []
        for entry in self.entries:
            partitions, row_indices = entry.partitions, entry.row_indices
            for partition in np.unique(partitions).tolist():
                its_rows = rows_of_call(entry.call, row_indices[partitions == partition])
                batches.append(ProducerBatch.failed(TopicPartition(self.topic, partition), its_rows, error))
        pieces = [(its, number) for its in self.additions.buffers for number in range(len(its))]
        for batch, (its, number) in zip(self.additions.batches, pieces, strict=True):
            missing = its.rows(number)
            first_delta = missing.first_offset_delta
            if not rows_between(batch.rows, first_delta, first_delta + 1):
                batches.append(ProducerBatch.failed(batch.topic_partition, missing, error))
        return batches


class Chunk(NamedTuple):
    """Rows [start, stop) of a call, and the upper bound of their records' bytes."""

    start: int
    stop: int
    nbytes: int


def chunks(sizes: NDArray[np.int64], rows_max: int, bytes_max: int) -> Iterator[Chunk]:
    """Cut a call into what is staged at a time. A row of more than `bytes_max` is a chunk alone."""
    row_count, total = len(sizes), int(np.add.reduce(sizes))
    bytes_max = min(bytes_max, GROUPED_BYTES_MAX)
    if total <= bytes_max and row_count <= rows_max:
        yield Chunk(0, row_count, total)
        return
    ends = np.cumsum(sizes)
    start = before = 0
    while start < row_count:
        stop = int(np.searchsorted(ends, before + bytes_max, "right"))
        stop = min(max(stop, start + 1), start + rows_max, row_count)
        end = int(ends[stop - 1])
        yield Chunk(start, stop, end - before)
        start, before = stop, end
