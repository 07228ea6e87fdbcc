"""Staging buffers, which hold a topic's rows in arrival order until there are enough to group by partition.

If ten thousand rows go to a thousand partitions, each partition gets only ten of them, and adding ten rows to a batch
costs as much as adding a thousand. So rows are not grouped by partition when they arrive. They are staged as Arrow
columns, along with an array of their partition numbers, until their stage is due, for one of three reasons:

    full          one partition has enough rows for a batch, or all rows together have 4 MiB (and 64 KiB for each
                  partition with rows), or the rows or the memory reserved for them reach a share of buffer.memory. The
                  thread whose append filled the stage fills the batches immediately.
    linger        linger.ms has passed, or memory is short. The sender thread fills the batches.
    flush         a flush or the producer's close is in progress. The sender thread fills the batches immediately.

With skewed keys, one of a thousand partitions may have a full batch while most have only a few rows. In that case, only
the rows of full partitions become batches (`split`), and the rows of the other, sparse partitions stay staged.
Splitting a stage copies the rows that stay. So once the rows fill half of the stage's share of buffer.memory, the stage
is no longer split. The full partitions then wait, too, until the stage is full and all of its rows become batches.

Single records from send() are staged as tuples in a list, which is the cheapest way to accept them. They are converted
to columns and assigned to partitions all at once (`assign_partitions`), for the first time when they add up to one
batch. Usually no partition is full at that point, so all records stay staged. From then on, the caller's thread assigns
the next records whenever they add up to four batches.

Fewer records can also fill a batch: if all of them go to the partition that already has the most bytes. Once that is
possible, the sender thread assigns them after ASSIGNMENT_DELAY_MS, so that a full batch is sent even if no more records
arrive. The records are also assigned when their stage is due.

A stage exists from its first row until all of its rows are in batches. Its rows are first in `entries`, where an entry
is either the Rows of one call or StagedRecords. Once encoded, they move to `pending_appends`, from which they are
appended to batches. Encoded rows are in buffers that are divided into slices, one for each batch (encoded_buffer.py).
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
from spark_kafka_sink.producer.batching.encoded_buffer import EncodedBuffer
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue
from spark_kafka_sink.producer.batching.row_groups import BatchRows, build_batch_rows, select_rows
from spark_kafka_sink.producer.futures import Callback, RecordFutures, SendFuture
from spark_kafka_sink.producer.record import Headers
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.joined_rows import MAX_JOINED_BYTES

_MAX_ROW_SIZE_EXCESS_BYTES = 8
"""Each item of `Rows.sizes` is an upper bound on the row's encoded size. It exceeds the exact size by at most this many
bytes (records/batch_slicing.py)."""
MAX_GROUPED_BYTES = MAX_JOINED_BYTES // 2
"""Maximum total size of rows that are grouped together. There is a limit because the bytes of these rows become one
array with 32-bit offsets, which can have at most MAX_JOINED_BYTES. The other half is headroom for rows that other
threads add concurrently."""
_FULL_STAGE_BYTES = 4 << 20
"""A stage is full if it has at least this many bytes, and also at least _FULL_STAGE_BYTES_PER_PARTITION for each
partition with rows. A larger number would not reduce the cost per row."""
_FULL_STAGE_BYTES_PER_PARTITION = 64 << 10
"""See _FULL_STAGE_BYTES. Filling a batch of a partition has a fixed cost, equal to that of a few hundred rows, so each
partition should have enough rows to be worth it."""
_MAX_SPLITS = 64
"""Maximum number of times that rows may stay staged when a stage is split. At the next fill, all of them become
batches. There is a limit because each split visits all entries of the stage, and with a long linger.ms there would be
more and more entries."""
_MAX_UNASSIGNED_BATCHES = 4
"""Single records are assigned to partitions once they would fill this many batches, but the first records of a stage
once they would fill one batch. Assigning even a few records costs as much as staging a hundred."""
ASSIGNMENT_DELAY_MS = 5.0
"""Delay after which the sender thread assigns single records that may fill a batch. If the caller sends without pauses,
it reaches four batches before that, and assigns the records on its own thread."""


SingleRecord = tuple["bytes | None", "bytes | None", "Headers | None", "int | None", int]
"""A serialized record from send(): value, key, headers, requested partition, and timestamp in milliseconds.

It is a plain tuple, because any other kind of object would make send() slower.
"""


class StagedRecords:
    """Consecutive records of one topic, passed to send() one at a time and not assigned to partitions yet.

    Guarded by the accumulator's lock until the records are assigned to partitions.
    """

    __slots__ = ("call", "records", "snapshot")

    def __init__(self, topic: str, snapshot: ClusterSnapshot) -> None:
        self.call = RecordFutures(topic)  # all of these records belong to one call
        self.records: list[SingleRecord] = []
        self.snapshot = snapshot  # the metadata when the last record was added; partitions are assigned with it

    @property
    def row_indices(self) -> NDArray[np.int64]:
        """The index of each record in `call`."""
        return np.arange(len(self.records))

    @property
    def partitions(self) -> NDArray[np.int32]:
        """The requested partition of each record, or -1 if none was requested."""
        requested_partitions = [partition for _value, _key, _headers, partition, _timestamp_ms in self.records]
        return np.array([-1 if partition is None else partition for partition in requested_partitions], np.int32)

    def add(self, record: SingleRecord, callbacks: tuple[Callback, ...]) -> SendFuture:
        """Append a record and return its future."""
        row_index = len(self.records)
        if callbacks:
            self.call.callbacks[row_index] = callbacks
        self.records.append(record)
        return SendFuture(self.call, row_index)


StageEntry = StagedRecords | Rows
"""Consecutive rows of one call. `Rows` in a stage already have partitions, and `StagedRecords` do not yet."""


class BatchAppends(NamedTuple):
    """Encoded records that are about to be appended to batches.

    The slices are numbered consecutively across all buffers. Slice i is appended to batches[i], which belongs to the
    queue queues[i].
    """

    encoded_buffers: Sequence[EncodedBuffer] = ()
    batches: Sequence[ProducerBatch] = ()
    queues: Sequence[PartitionQueue] = ()

    def split_by_buffer(self) -> Iterator[tuple[EncodedBuffer, Sequence[ProducerBatch], Sequence[PartitionQueue]]]:
        """Yield each buffer, with the batch and the queue of each of its slices."""
        start = 0
        for encoded_buffer in self.encoded_buffers:
            stop = start + len(encoded_buffer)
            yield encoded_buffer, self.batches[start:stop], self.queues[start:stop]
            start = stop


class _SparseRemainder(NamedTuple):
    """The argument and the result of a `_has_sparse_remainder` call, kept so that it need not be repeated."""

    max_body_bytes: int
    is_sparse: bool


class Stage:
    """The staging buffer of one topic.

    Guarded by the accumulator's lock until a thread takes the stage to fill batches. After that, only the thread that
    holds the topic's fill lock uses the stage (batch_filler.py).
    """

    __slots__ = (
        "_bytes_by_partition",
        "_cached_sparse_remainder",
        "_is_record_assignment_decided",
        "_max_bytes",
        "_max_reserved_bytes",
        "_nonempty_partition_count",
        "_split_count",
        "assigned_bytes",
        "entries",
        "largest_partition_bytes",
        "leases",
        "oldest_row_arrival_ms",
        "pending_appends",
        "record_assignment_due_ms",
        "reserved_bytes",
        "should_recheck",
        "topic",
        "unassigned_bytes",
    )

    def __init__(self, topic: str, oldest_row_arrival_ms: float, max_bytes: int, max_reserved_bytes: int) -> None:
        """Create a stage without rows.

        `oldest_row_arrival_ms`: when the first row arrived; linger.ms starts then.
        `max_bytes`: the size of the encoded rows at which the stage is full, a share of buffer.memory.
        `max_reserved_bytes`: the memory reserved for the rows at which the stage is full, a larger share.
        """
        self.topic = topic
        self.oldest_row_arrival_ms = oldest_row_arrival_ms
        self._max_bytes = min(max_bytes, MAX_GROUPED_BYTES)
        self._max_reserved_bytes = max_reserved_bytes
        self.entries: list[StageEntry] = []
        """The rows that are not encoded yet, oldest first."""
        self.pending_appends = BatchAppends()
        """The rows that were last moved from `entries`, in encoded form."""
        self._split_count = 0
        """Number of times that these rows stayed staged when a stage was split."""
        # Sizes. The first three are totals over `entries`. The last three depend on _bytes_by_partition, and
        # `_update_partition_totals` updates them.
        self.reserved_bytes = 0
        """Number of bytes that are reserved in the buffer pool."""
        self.assigned_bytes = 0
        """Upper bound on the encoded size of all Rows (the entries that are assigned to partitions)."""
        self.unassigned_bytes = 0
        """Upper bound on the encoded size of all StagedRecords (the entries that are not)."""
        self._bytes_by_partition = np.zeros(0, np.int64)
        """Lower bound on the encoded size of each partition's Rows, by partition number."""
        self.largest_partition_bytes = 0
        """The maximum of _bytes_by_partition."""
        self._nonempty_partition_count = 0
        """Number of partitions that have Rows."""
        self._cached_sparse_remainder: _SparseRemainder | None = None
        """The last `_has_sparse_remainder` call; None if _bytes_by_partition has changed since then."""
        # The sender thread's schedule for this stage.
        self.record_assignment_due_ms = math.inf
        """When the sender assigns the single records to partitions, unless linger.ms ends first; inf if no assignment
        is scheduled."""
        self._is_record_assignment_decided = False
        """Whether `schedule_record_assignment` has already decided this stage's `record_assignment_due_ms`, which it
        does only once."""
        self.should_recheck = False
        """Whether the sender must check this topic again: because it found the stage due while another thread was
        filling batches from it, or because rows that were put back are due earlier than the sender knows."""
        self.leases: list[MemoryLease] = []
        """The leases that own the reserved memory while batches are being filled from the stage: first the
        `reservation_lease`, then one for each encoded buffer."""

    def __repr__(self) -> str:
        size = f"{len(self.entries)} entries, {self.assigned_bytes} bytes"
        return f"Stage({self.topic}, {size}, oldest {self.oldest_row_arrival_ms})"

    @property
    def assigned_entries(self) -> list[Rows]:
        """The entries that are already assigned to partitions. After `assign_partitions`, all entries are."""
        return [entry for entry in self.entries if isinstance(entry, Rows)]

    @property
    def reservation_lease(self) -> MemoryLease:
        """The lease that takes over the memory of all rows. Each encoded buffer's lease then gets its share of it."""
        return self.leases[0]

    def add(self, rows: Rows, reserved_bytes: int) -> None:
        """Append rows for which the caller has reserved `reserved_bytes`."""
        self._add_sizes(rows)
        self.reserved_bytes += reserved_bytes
        self.entries.append(rows)

    def add_record(
        self,
        record: SingleRecord,
        encoded_bytes: int,
        reserved_bytes: int,
        snapshot: ClusterSnapshot,
        callbacks: tuple[Callback, ...],
    ) -> SendFuture:
        """Append a single record for which the caller has reserved `reserved_bytes`, and return its future.

        `encoded_bytes`: upper bound on the record's encoded size.
        `snapshot`: the current metadata.
        """
        last_entry = self.entries[-1] if self.entries else None
        if not isinstance(last_entry, StagedRecords):
            last_entry = StagedRecords(self.topic, snapshot)
            self.entries.append(last_entry)
        last_entry.snapshot = snapshot
        self.unassigned_bytes += encoded_bytes
        self.reserved_bytes += reserved_bytes
        return last_entry.add(record, callbacks)

    def assign_partitions(self, convert_records: Callable[[StagedRecords], Rows]) -> None:
        """Replace all single records with rows that are assigned to partitions.

        `convert_records`: converts staged records to rows and assigns them.
        """
        if not self.unassigned_bytes:
            return
        entries: list[StageEntry] = []
        for entry in self.entries:
            if isinstance(entry, StagedRecords):
                rows = convert_records(entry)
                self._add_sizes(rows)
                entries.append(rows)
            else:
                entries.append(entry)
        self.entries, self.unassigned_bytes = entries, 0

    def _add_sizes(self, rows: Rows) -> None:
        """Add upper bounds of the rows' encoded sizes to `assigned_bytes`, and lower bounds to _bytes_by_partition."""
        sizes = np.bincount(rows.partitions, rows.sizes).astype(np.int64)
        self._ensure_partitions(len(sizes))
        self._bytes_by_partition[: len(sizes)] += sizes - _MAX_ROW_SIZE_EXCESS_BYTES * rows.row_counts
        self.assigned_bytes += int(sizes.sum())
        self._update_partition_totals()

    def _update_partition_totals(self) -> None:
        """Recompute the cached values that depend on _bytes_by_partition.

        They are cached because is_full reads them each time a single record is added, which does not change them.
        """
        self.largest_partition_bytes = int(self._bytes_by_partition.max(initial=0))
        self._nonempty_partition_count = int(np.count_nonzero(self._bytes_by_partition))
        self._cached_sparse_remainder = None

    def _ensure_partitions(self, partition_count: int) -> None:
        """Extend _bytes_by_partition with zeros to at least `partition_count` partitions."""
        missing_count = partition_count - len(self._bytes_by_partition)
        if missing_count > 0:
            self._bytes_by_partition = np.concatenate([self._bytes_by_partition, np.zeros(missing_count, np.int64)])

    def is_full(self, max_body_bytes: int) -> bool:
        """Return whether rows of the stage should become batches now, without waiting for more rows.

        `max_body_bytes`: the maximum size of a batch without its header.
        """
        total_bytes = self.assigned_bytes + self.unassigned_bytes
        max_unassigned_batches = _MAX_UNASSIGNED_BATCHES if self.assigned_bytes else 1
        max_unassigned_bytes = max_unassigned_batches * max_body_bytes
        # The stage is full if it has used up its share of memory, or if there are enough single records to assign.
        if self._has_reached_memory_limit or self.unassigned_bytes >= max_unassigned_bytes:
            return True
        # A partition that has enough rows for a batch makes the stage full, unless the split would copy many rows.
        if self.largest_partition_bytes >= max_body_bytes:
            return self._should_release_full_batch(max_body_bytes)
        # Otherwise, the stage is full if it has enough rows to be worth grouping, both in total and per partition.
        return (
            total_bytes >= _FULL_STAGE_BYTES
            and total_bytes >= _FULL_STAGE_BYTES_PER_PARTITION * self._nonempty_partition_count
        )

    def schedule_record_assignment(self, max_body_bytes: int, linger_ms: float, clock: Callable[[], float]) -> bool:
        """Schedule the assignment of the single records to partitions if they may fill a batch.

        They may if all of them together would complete the batch of the largest partition. If linger.ms ends before the
        assignment would be due, schedule nothing, because the records are assigned then anyway.

        `max_body_bytes`: the maximum size of a batch without its header.
        `linger_ms`: the producer's linger.ms.

        Return whether this call has set `record_assignment_due_ms`. If so, the caller must wake the sender.
        """
        if self._is_record_assignment_decided or self.largest_partition_bytes + self.unassigned_bytes < max_body_bytes:
            return False
        if not self.unassigned_bytes or not self._should_release_full_batch(max_body_bytes):
            return False
        self._is_record_assignment_decided = True
        due_ms = clock() + ASSIGNMENT_DELAY_MS
        if due_ms >= self.oldest_row_arrival_ms + linger_ms:
            return False
        self.record_assignment_due_ms = due_ms
        return True

    def _should_release_full_batch(self, max_body_bytes: int) -> bool:
        """Return whether a partition with a full batch should get its batch before the rest of the stage is full.

        It should wait if the stage is at least half full and the other partitions are sparse. Otherwise the stage would
        be split, and the split would copy many rows.

        `max_body_bytes`: the maximum size of a batch without its header.
        """
        total_bytes = self.assigned_bytes + self.unassigned_bytes
        return total_bytes < self._max_bytes // 2 or not self._has_sparse_remainder(max_body_bytes)

    @property
    def _has_reached_memory_limit(self) -> bool:
        """Whether the encoded rows, or the memory reserved for them, have reached their share of buffer.memory."""
        return (
            self.assigned_bytes + self.unassigned_bytes >= self._max_bytes
            or self.reserved_bytes >= self._max_reserved_bytes
        )

    def _has_sparse_remainder(self, max_body_bytes: int) -> bool:
        """Return whether the partitions without a full batch have, on average, too few bytes to become batches.

        `max_body_bytes`: the maximum size of a batch without its header.
        """
        cached = self._cached_sparse_remainder
        if cached is None or cached.max_body_bytes != max_body_bytes:
            remainder = self._bytes_by_partition[self._bytes_by_partition < max_body_bytes]
            min_average_bytes = min(_FULL_STAGE_BYTES_PER_PARTITION, max_body_bytes // 2)
            is_sparse = int(remainder.sum()) < min_average_bytes * int(np.count_nonzero(remainder))
            cached = self._cached_sparse_remainder = _SparseRemainder(max_body_bytes, is_sparse)
        return cached.is_sparse

    def find_ready_partitions(self, max_body_bytes: int) -> NDArray[np.bool_] | None:
        """Return a mask of the partitions whose rows should become batches now, or None if all rows should.

        If no rows should become batches now, all values of the mask are False.

        `max_body_bytes`: the maximum size of a batch without its header.
        """
        full_partitions = self._bytes_by_partition >= max_body_bytes
        if not self.is_full(max_body_bytes):
            return np.zeros_like(full_partitions)
        can_split = not self._has_reached_memory_limit and self._split_count < _MAX_SPLITS
        should_split = can_split and full_partitions.any() and self._has_sparse_remainder(max_body_bytes)
        return full_partitions if should_split else None

    def split(self, partition_mask: NDArray[np.bool_]) -> tuple[Stage, Stage]:
        """Return two new stages: one with the rows of the partitions selected by the mask, and one with all other rows.

        All entries must already be assigned to partitions. Both new stages have the `oldest_row_arrival_ms` of this
        stage, and its reserved memory is divided between them. This stage itself does not change.

        Do not call `is_full` on the stage with the selected rows: its partition totals are not computed, because its
        rows become batches immediately.
        """
        selected_stage, remaining_stage = self._create_empty_copy(), self._create_empty_copy()
        remaining_stage._split_count = self._split_count
        if not partition_mask.any():  # all rows remain, so nothing needs to be copied
            remaining_stage.extend(self)
            return selected_stage, remaining_stage
        remaining_stage._split_count += 1
        remaining_stage._bytes_by_partition = np.where(partition_mask, 0, self._bytes_by_partition)
        remaining_stage._update_partition_totals()
        futures_bytes = 0
        for entry in self.assigned_entries:
            selected_entry, remaining_entry = entry.split(partition_mask)
            futures_bytes += entry.futures_bytes
            if selected_entry is not None:
                selected_stage.entries.append(selected_entry)
                selected_stage.assigned_bytes += int(selected_entry.sizes.sum())
                selected_stage.reserved_bytes += selected_entry.futures_bytes
            if remaining_entry is not None:
                remaining_stage.entries.append(remaining_entry)
                remaining_stage.assigned_bytes += int(remaining_entry.sizes.sum())
        # The memory reserved for futures goes to the stage that gets their rows. The rest is divided in proportion to
        # the encoded sizes.
        record_reserved_bytes = self.reserved_bytes - futures_bytes
        total_bytes = selected_stage.assigned_bytes + remaining_stage.assigned_bytes
        selected_stage.reserved_bytes += record_reserved_bytes * selected_stage.assigned_bytes // max(1, total_bytes)
        # Compute a difference rather than a second quotient, so that rounding loses no byte.
        remaining_stage.reserved_bytes = self.reserved_bytes - selected_stage.reserved_bytes
        return selected_stage, remaining_stage

    def _create_empty_copy(self) -> Stage:
        """Create a stage without rows that has the topic, the age and the limits of this stage."""
        return Stage(self.topic, self.oldest_row_arrival_ms, self._max_bytes, self._max_reserved_bytes)

    def extend(self, later_stage: Stage) -> None:
        """Append the entries of another stage of the topic, whose rows arrived later."""
        self._ensure_partitions(len(later_stage._bytes_by_partition))
        self._bytes_by_partition[: len(later_stage._bytes_by_partition)] += later_stage._bytes_by_partition
        self._update_partition_totals()
        self.assigned_bytes += later_stage.assigned_bytes
        self.unassigned_bytes += later_stage.unassigned_bytes
        self.reserved_bytes += later_stage.reserved_bytes
        self.entries += later_stage.entries

    def build_failed_batches(self, error: Exception) -> list[ProducerBatch]:
        """Fail all rows of the stage that were not appended to a batch yet.

        Return them as failed batches without encoded records, through which their futures receive the error.
        """
        return [*self._fail_entries(error), *self._fail_pending_appends(error)]

    def _fail_entries(self, error: Exception) -> list[ProducerBatch]:
        """Return the rows that are not encoded yet as failed batches, one for each partition of each entry."""
        failed_batches: list[ProducerBatch] = []
        for entry in self.entries:
            partitions, row_indices = entry.partitions, entry.row_indices
            for partition in np.unique(partitions).tolist():
                batch_rows = build_batch_rows(entry.call, row_indices[partitions == partition])
                failed_batches.append(
                    ProducerBatch.from_failed_rows(TopicPartition(self.topic, partition), batch_rows, error)
                )
        return failed_batches

    def _fail_pending_appends(self, error: Exception) -> list[ProducerBatch]:
        """Return the encoded rows that were not appended to their batch yet as failed batches, one for each slice."""
        failed_batches: list[ProducerBatch] = []
        for encoded_buffer, batches, _queues in self.pending_appends.split_by_buffer():
            for slice_index, batch in enumerate(batches):
                slice_rows = encoded_buffer.build_rows(slice_index)
                if not _contains_slice(batch, slice_rows):
                    failed_batches.append(ProducerBatch.from_failed_rows(batch.topic_partition, slice_rows, error))
        return failed_batches


def _contains_slice(batch: ProducerBatch, slice_rows: BatchRows) -> bool:
    """Return whether a slice has been appended to the batch that it was encoded for.

    A slice is appended as a whole, so it is enough to look for its first record.
    """
    first_record_index = slice_rows.first_offset_delta
    return len(select_rows(batch.rows, first_record_index, first_record_index + 1)) > 0
