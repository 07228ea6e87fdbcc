"""Staging: rows of a topic are buffered in the order of arrival until there are enough to group them by partition.

Ten thousand rows over a thousand partitions are ten rows for each partition, and adding ten rows to a batch costs as
much as adding a thousand. So rows are not sorted into their partitions when they arrive. They are staged as Arrow
columns, with a column of partition numbers beside them, until their stage is due. There are three triggers:

    full          one partition has enough rows for a batch, or all rows together have 4 MB, or the rows or the memory
                  reserved for them reach a share of buffer.memory: immediately, on the caller's thread that filled it
    linger        linger.ms has passed, or memory is short: on the sender thread
    flush         a flush or a close is in progress: immediately

With skewed keys, one of a thousand partitions may have a full batch while most have a few rows. Then only the rows of
the full partitions become batches (`split`), and the others stay staged. Splitting copies the rows that stay. So if the
rows already fill half of the stage's share of buffer.memory, the stage is not split: the full partitions wait as well,
until the stage is full and all its rows become batches.

Single records from send() are staged as tuples in a list, which is the cheapest way to accept them. When they amount to
one batch, or when their stage is due, they are converted to columns and assigned to partitions all at once
(`assign_partitions`). Usually no partition is full at that point, so all of them stay staged, and the caller's thread
assigns the next records when they amount to four batches. Fewer records may fill a batch, too, if all of them are for
the partition that already has the most bytes. So once this is possible, the sender thread assigns them after
ASSIGNMENT_DELAY_MS, and a full batch is sent although no more records come.

A stage lives from its first row until all its rows are in batches. Its rows are in `entries`, each entry being the Rows
of one call or StagedRecords. Once they are encoded they move to `pending_appends`, from which they are appended to
batches.
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
from spark_kafka_sink.producer.batching.encoded_pieces import EncodedPieces
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue
from spark_kafka_sink.producer.batching.row_origins import build_batch_rows, select_rows
from spark_kafka_sink.producer.futures import Callback, RecordFutures, SendFuture
from spark_kafka_sink.producer.record import Headers
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.joined_rows import MAX_JOINED_BYTES

_MAX_ROW_SIZE_EXCESS_BYTES = 8
"""The size of a row in columns is an upper bound. It exceeds the encoded size by at most this many bytes
(records/batch_slicing.py)."""
MAX_GROUPED_BYTES = MAX_JOINED_BYTES // 2
"""Maximum bytes of the rows that are grouped together, which become one array with 32-bit offsets. The other half of
MAX_JOINED_BYTES is headroom for rows that are added concurrently."""
_FULL_STAGE_BYTES = 4 << 20
_FULL_STAGE_BYTES_PER_PARTITION = 64 << 10
"""A stage with _FULL_STAGE_BYTES is full, because twice as many bytes would not reduce the cost per row. With many
partitions it also needs this many bytes for each of them, because each partition costs as much as some hundred rows."""
_MAX_SPLITS = 64
"""Each split visits all entries of the stage, and with a long linger.ms the entries would keep accumulating."""
_MAX_UNASSIGNED_BATCHES = 4
"""Single records are assigned to partitions when they fill one batch, and afterwards whenever they fill this many
batches, because assigning a few records costs as much as staging a hundred."""
ASSIGNMENT_DELAY_MS = 5.0
"""Delay after which the sender thread assigns single records that may fill a batch. A caller that sends without pauses
fills four batches in less time, and its own thread assigns the records."""


SingleRecord = tuple["bytes | None", "bytes | None", "Headers | None", "int | None", int]
"""A serialized record of send(): value, key, headers, requested partition, and timestamp in milliseconds."""


class StagedRecords:
    """Consecutive single records of one topic.

    Guarded by the accumulator's lock until the records are assigned to partitions.
    """

    __slots__ = ("call", "records", "snapshot")

    def __init__(self, topic: str, snapshot: ClusterSnapshot) -> None:
        self.call = RecordFutures(topic)
        self.records: list[SingleRecord] = []
        self.snapshot = snapshot  # the latest known metadata, by which the records are assigned to partitions

    @property
    def row_indices(self) -> NDArray[np.int64]:
        """Index of each record in the call."""
        return np.arange(len(self.records))

    @property
    def partitions(self) -> NDArray[np.int32]:
        """The requested partition of each record, or -1 if none was requested."""
        return np.array([-1 if partition is None else partition for *_, partition, _ in self.records], np.int32)

    def add(self, record: SingleRecord, callbacks: tuple[Callback, ...]) -> SendFuture:
        """Append a record and return its future."""
        row_index = len(self.records)
        if callbacks:
            self.call.callbacks[row_index] = callbacks
        self.records.append(record)
        return SendFuture(self.call, row_index)


Entry = StagedRecords | Rows


class BatchAppends(NamedTuple):
    """Encoded records, buffer by buffer, with the target batch of each piece and the queue of that batch."""

    buffers: Sequence[EncodedPieces] = ()
    batches: Sequence[ProducerBatch] = ()
    queues: Sequence[PartitionQueue] = ()


class Stage:
    """The staging buffer of one topic.

    Guarded by the accumulator's lock until a thread takes it to fill batches. After that, only the thread that holds
    the topic's fill lock uses it (batch_filler.py).
    """

    __slots__ = (
        "_bytes_by_partition",
        "_is_assignment_decided",
        "_max_bytes",
        "_max_reserved_bytes",
        "_nonempty_partition_count",
        "_sparse_remainder",
        "_split_count",
        "assigned_bytes",
        "assignment_due_ms",
        "entries",
        "largest_partition_bytes",
        "leases",
        "oldest_row_ms",
        "pending_appends",
        "reserved_bytes",
        "should_recheck",
        "topic",
        "unassigned_bytes",
    )

    def __init__(self, topic: str, now: float, max_bytes: int, max_reserved_bytes: int) -> None:
        """`max_bytes`: the share of buffer.memory that the encoded rows may fill.

        `max_reserved_bytes`: the share that may be reserved for them.
        """
        self.topic = topic
        self.oldest_row_ms = now
        self._max_bytes = min(max_bytes, MAX_GROUPED_BYTES)
        self._max_reserved_bytes = max_reserved_bytes
        self._split_count = 0  # how often rows were split off before
        self.entries: list[Entry] = []
        self.pending_appends = BatchAppends()  # records that left `entries` to be appended to batches
        self.reserved_bytes = 0  # for all entries
        self.assigned_bytes = 0  # upper bound of the encoded size of all Rows
        self.unassigned_bytes = 0  # the same for all StagedRecords, which have no partitions yet
        self.largest_partition_bytes = 0  # lower bound, without StagedRecords
        self._bytes_by_partition = np.zeros(0, np.int64)  # lower bounds, without StagedRecords
        self._nonempty_partition_count = 0
        self._sparse_remainder: tuple[int, bool] | None = None  # batch_bytes and the result that is cached for it
        self._is_assignment_decided = False  # schedule_assignment has found that the single records may fill a batch
        self.assignment_due_ms = math.inf  # when the sender thread assigns the single records, which may fill a batch
        self.should_recheck = False
        """Whether the sender must check the topic again: it found the stage due while another thread was filling
        batches from it, or rows that were returned to the stage are due earlier than it knows."""
        self.leases: list[MemoryLease] = []  # hold the reserved memory once the stage is taken

    def __repr__(self) -> str:
        size = f"{len(self.entries)} entries, {self.assigned_bytes} bytes"
        return f"Stage({self.topic}, {size}, oldest {self.oldest_row_ms})"

    @property
    def rows(self) -> list[Rows]:
        """All entries that have partitions. After `assign_partitions`, these are all entries."""
        return [entry for entry in self.entries if isinstance(entry, Rows)]

    def add(self, rows: Rows, reserved_bytes: int) -> None:
        """Add rows, for which `reserved_bytes` have been reserved."""
        self._add_sizes(rows)
        self.reserved_bytes += reserved_bytes
        self.entries.append(rows)

    def add_record(
        self,
        record: SingleRecord,
        size: int,
        reserved_bytes: int,
        snapshot: ClusterSnapshot,
        callbacks: tuple[Callback, ...],
    ) -> SendFuture:
        """Add a single record of at most `size` bytes, for which `reserved_bytes` have been reserved."""
        last = self.entries[-1] if self.entries else None
        if not isinstance(last, StagedRecords):
            last = StagedRecords(self.topic, snapshot)
            self.entries.append(last)
        last.snapshot = snapshot
        self.unassigned_bytes += size
        self.reserved_bytes += reserved_bytes
        return last.add(record, callbacks)

    def assign_partitions(self, to_rows: Callable[[StagedRecords], Rows]) -> None:
        """Convert all single records to rows with partitions. Idempotent."""
        entries: list[Entry] = []
        for entry in self.entries if self.unassigned_bytes else ():
            rows = to_rows(entry) if isinstance(entry, StagedRecords) else entry
            if rows is not entry:
                self._add_sizes(rows)
            entries.append(rows)
        if entries:
            self.entries, self.unassigned_bytes = entries, 0

    def _add_sizes(self, rows: Rows) -> None:
        sizes = np.bincount(rows.partitions, rows.sizes).astype(np.int64)
        self._ensure_partitions(len(sizes))
        self._bytes_by_partition[: len(sizes)] += sizes - _MAX_ROW_SIZE_EXCESS_BYTES * rows.row_counts
        self.assigned_bytes += int(sizes.sum())
        self._update_partition_totals()

    def _update_partition_totals(self) -> None:
        """Recompute the values that depend on _bytes_by_partition.

        They are stored because is_full reads them for every single record, and single records do not change them.
        """
        self.largest_partition_bytes = int(self._bytes_by_partition.max(initial=0))
        self._nonempty_partition_count = int(np.count_nonzero(self._bytes_by_partition))
        self._sparse_remainder = None

    def _ensure_partitions(self, count: int) -> None:
        """Extend _bytes_by_partition to at least `count` partitions."""
        missing = count - len(self._bytes_by_partition)
        if missing > 0:
            self._bytes_by_partition = np.concatenate([self._bytes_by_partition, np.zeros(missing, np.int64)])

    def is_full(self, batch_bytes: int) -> bool:
        """Return whether rows should become batches now. `batch_bytes`: the capacity of a batch without its header."""
        total_bytes = self.assigned_bytes + self.unassigned_bytes
        max_unassigned_bytes = batch_bytes if not self.assigned_bytes else _MAX_UNASSIGNED_BATCHES * batch_bytes
        if self._has_reached_memory_limit or self.unassigned_bytes >= max_unassigned_bytes:
            return True
        if self.largest_partition_bytes >= batch_bytes:
            return self._should_release_full_batch(batch_bytes)
        return (
            total_bytes >= _FULL_STAGE_BYTES
            and total_bytes >= _FULL_STAGE_BYTES_PER_PARTITION * self._nonempty_partition_count
        )

    def schedule_assignment(self, batch_bytes: int, linger_ms: float, clock: Callable[[], float]) -> bool:
        """Set `assignment_due_ms` if the single records may fill a batch.

        They may do so if they would fill the batch of the largest partition, should all of them be for that partition.
        Nothing is scheduled if linger.ms ends earlier. Return whether this call has set `assignment_due_ms`.
        """
        if self._is_assignment_decided or self.largest_partition_bytes + self.unassigned_bytes < batch_bytes:
            return False
        if not self.unassigned_bytes or not self._should_release_full_batch(batch_bytes):
            return False
        self._is_assignment_decided = True
        due_ms = clock() + ASSIGNMENT_DELAY_MS
        if due_ms >= self.oldest_row_ms + linger_ms:
            return False
        self.assignment_due_ms = due_ms
        return True

    def _should_release_full_batch(self, batch_bytes: int) -> bool:
        """Return whether a full batch is sent immediately.

        In a stage that is half full, it waits for the rows of the other partitions if these are sparse.
        """
        total_bytes = self.assigned_bytes + self.unassigned_bytes
        return total_bytes < self._max_bytes // 2 or not self._has_sparse_remainder(batch_bytes)

    @property
    def _has_reached_memory_limit(self) -> bool:
        """Whether the encoded rows, or the memory reserved for them, have reached their share of buffer.memory."""
        return (
            self.assigned_bytes + self.unassigned_bytes >= self._max_bytes
            or self.reserved_bytes >= self._max_reserved_bytes
        )

    def _has_sparse_remainder(self, batch_bytes: int) -> bool:
        """Return whether the partitions without a full batch have, on average, too few rows to become batches."""
        if self._sparse_remainder is None or self._sparse_remainder[0] != batch_bytes:
            remainder = self._bytes_by_partition[self._bytes_by_partition < batch_bytes]
            enough_bytes = min(_FULL_STAGE_BYTES_PER_PARTITION, batch_bytes // 2)
            is_sparse = int(remainder.sum()) < enough_bytes * int(np.count_nonzero(remainder))
            self._sparse_remainder = batch_bytes, is_sparse
        return self._sparse_remainder[1]

    def find_ready_partitions(self, batch_bytes: int) -> NDArray[np.bool_] | None:
        """Return a mask of the partitions whose rows should become batches now. None means all rows of the stage."""
        full = self._bytes_by_partition >= batch_bytes
        if not self.is_full(batch_bytes):
            return np.zeros_like(full)
        can_split = not self._has_reached_memory_limit and self._split_count < _MAX_SPLITS
        return full if can_split and full.any() and self._has_sparse_remainder(batch_bytes) else None

    def split(self, partition_mask: NDArray[np.bool_]) -> tuple[Stage, Stage]:
        """Split into a stage with the rows of the partitions that are True in the mask, and a stage with the others.

        Both stages have the `oldest_row_ms` of this stage, which does not change.
        """
        ready, remaining = (
            Stage(self.topic, self.oldest_row_ms, self._max_bytes, self._max_reserved_bytes) for _ in range(2)
        )
        remaining._split_count = self._split_count
        if not partition_mask.any():
            remaining.extend(self)
            return ready, remaining
        remaining._split_count += 1
        remaining._bytes_by_partition = np.where(partition_mask, 0, self._bytes_by_partition)
        remaining._update_partition_totals()
        futures_bytes = 0
        for rows in self.rows:
            ready_rows, remaining_rows = rows.split(partition_mask)
            futures_bytes += rows.futures_bytes
            if ready_rows is not None:
                ready.entries.append(ready_rows)
                ready.assigned_bytes += int(ready_rows.sizes.sum())
                ready.reserved_bytes += ready_rows.futures_bytes
            if remaining_rows is not None:
                remaining.entries.append(remaining_rows)
                remaining.assigned_bytes += int(remaining_rows.sizes.sum())
        # Reservations for futures go with their rows. The rest is divided in proportion to the encoded size.
        records_reserved_bytes = self.reserved_bytes - futures_bytes
        total_bytes = ready.assigned_bytes + remaining.assigned_bytes
        ready.reserved_bytes += records_reserved_bytes * ready.assigned_bytes // max(1, total_bytes)
        remaining.reserved_bytes = self.reserved_bytes - ready.reserved_bytes
        return ready, remaining

    def extend(self, later: Stage) -> None:
        """Append the entries of a stage whose rows were staged after these."""
        self._ensure_partitions(len(later._bytes_by_partition))
        self._bytes_by_partition[: len(later._bytes_by_partition)] += later._bytes_by_partition
        self._update_partition_totals()
        self.assigned_bytes += later.assigned_bytes
        self.unassigned_bytes += later.unassigned_bytes
        self.reserved_bytes += later.reserved_bytes
        self.entries += later.entries

    def build_failed_batches(self, error: Exception) -> list[ProducerBatch]:
        """Build failed batches without bytes for all rows that are in no batch, so that their futures get the error."""
        failed: list[ProducerBatch] = []
        for entry in self.entries:
            partitions, row_indices = entry.partitions, entry.row_indices
            for partition in np.unique(partitions).tolist():
                batch_rows = build_batch_rows(entry.call, row_indices[partitions == partition])
                failed.append(ProducerBatch.from_failed_rows(TopicPartition(self.topic, partition), batch_rows, error))
        appends = self.pending_appends
        numbered_pieces = [(pieces, index) for pieces in appends.buffers for index in range(len(pieces))]
        for batch, (pieces, index) in zip(appends.batches, numbered_pieces, strict=True):
            batch_rows = pieces.rows(index)
            # A piece is appended as a whole, so it is in the batch if the batch has the first record of the piece.
            first_delta = batch_rows.first_offset_delta
            if not select_rows(batch.rows, first_delta, first_delta + 1):
                failed.append(ProducerBatch.from_failed_rows(batch.topic_partition, batch_rows, error))
        return failed


class Chunk(NamedTuple):
    """Rows [start, stop) of a call, and the upper bound of their encoded size."""

    start: int
    stop: int
    nbytes: int


def split_into_chunks(sizes: NDArray[np.int64], max_rows: int, max_bytes: int) -> Iterator[Chunk]:
    """Split the rows of a call into the chunks that are staged one by one.

    A row of more than `max_bytes` gets a chunk of its own.
    """
    row_count, total_bytes = len(sizes), int(np.add.reduce(sizes))
    max_bytes = min(max_bytes, MAX_GROUPED_BYTES)
    if total_bytes <= max_bytes and row_count <= max_rows:
        yield Chunk(0, row_count, total_bytes)
        return
    cumulative_bytes = np.cumsum(sizes)
    start = bytes_before = 0
    while start < row_count:
        stop = int(np.searchsorted(cumulative_bytes, bytes_before + max_bytes, "right"))
        stop = min(max(stop, start + 1), start + max_rows, row_count)
        bytes_through = int(cumulative_bytes[stop - 1])
        yield Chunk(start, stop, bytes_through - bytes_before)
        start, bytes_before = stop, bytes_through
