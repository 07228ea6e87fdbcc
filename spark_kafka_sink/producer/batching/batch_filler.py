"""BatchFiller: fills batches with a topic's staged rows, and appends new batches to their partitions' queues.

    1. Take the topic's stage (its staging buffer, staging.py).         under the lock
    2. Group: find the order of the rows by partition.                  without the lock
    3. Pin the open batches of these partitions.                        under the lock
    4. Split the rows into batches and encode them.                     without the lock
    5. Append the records to the batches.                               under the lock
    6. Compress the full batches, which remain pinned until then.       without the lock

"The lock" is the accumulator's lock. While a thread works on a batch without the lock, the batch is pinned, which keeps
the sender from closing or sending it. Otherwise the sender could send the batch between steps 3 and 5, and the records
that were encoded for its end would have no batch to go to.

Any thread may fill batches, but only one thread at a time per topic, so that the rows stay in order. That thread holds
the topic's fill lock.

An Exception in steps 2 to 4 fails the rows of the stage. They become failed batches without encoded records
(`take_failed_batches`), which the sender reports like all other failed batches.

Any other BaseException, typically a KeyboardInterrupt, ends the producer. The stage then remains in `_stages_in_use`,
so no thread fills batches for its topic anymore, and the sender fails its rows along with all other incomplete batches
(`fail_staged_rows`). An interrupt can occur between any two statements. Rows therefore move from one container to the
next in a single statement, so that they are neither lost nor failed twice. Each of these statements has a comment that
says so. Do not split them.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.batch_compressor import BatchCompressor
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.encoded_buffer import EncodedBuffer
from spark_kafka_sink.producer.batching.grouping import (
    convert_and_assign_records,
    group_by_partition,
    split_into_row_groups,
)
from spark_kafka_sink.producer.batching.incomplete_batches import IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.batching.row_groups import RowGroup
from spark_kafka_sink.producer.batching.staging import BatchAppends, Stage
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.batch_slicing import BatchSlices, find_timestamp_range, split_into_batches
from spark_kafka_sink.records.encoder import EncodedSlices, encode_records

_STAGE_DIVISOR = 2
"""A stage is full when its encoded rows take up buffer.memory divided by this number, even if no batch is full. With a
thousand partitions, this is the limit that stages reach. A divisor of 3 would make each row 10% more expensive, and a
divisor of 4, 20%."""
_COMPRESSED_STAGE_DIVISOR = 3
"""The divisor with compression. It is larger because twice as much memory is reserved for the encoded rows."""
_MAX_RESERVED_SHARE = 0.75
"""A stage is also full when this share of buffer.memory is reserved for it. Small records passed to send() reach this
limit first: a record whose encoded size is 100 bytes reserves 356 bytes (see FUTURE_BYTES). Columns reach the limit set
by _STAGE_DIVISOR first, unless their rows are tiny."""


class AssignTopicPartitions(Protocol):
    """A function that returns the partition of each of a topic's rows."""

    def __call__(self, topic: str, rows: Rows, snapshot: ClusterSnapshot, /) -> NDArray[np.int32]: ...


class BatchFiller:
    """Owns the stages (the topics' staging buffers), and turns their rows into queued batches on any thread."""

    def __init__(  # noqa: PLR0913 - one keyword-only parameter for each component that the accumulator shares
        self,
        config: ProducerConfig,
        *,
        pool: BufferPool,
        compressor: BatchCompressor,
        lock: threading.Lock,
        queues: PartitionQueues,
        incomplete_batches: IncompleteBatches,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        assign_partitions: AssignTopicPartitions,
    ) -> None:
        self._config = config
        self._pool = pool
        self._compressor = compressor
        self._lock = lock
        self._queues = queues
        self._incomplete_batches = incomplete_batches
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._assign_partitions = assign_partitions
        self._fill_locks: dict[str, threading.Lock] = {}  # by topic
        # The accumulator's lock guards all fields below.
        self.stages: dict[str, Stage] = {}  # by topic; callers add rows to them
        self._stages_in_use: dict[str, Stage] = {}  # by topic; stages from which threads are filling batches
        self._shared_leases: weakref.WeakSet[MemoryLease] = weakref.WeakSet()  # leases of the encoder's buffers
        self._failed_batches: list[ProducerBatch] = []  # not yet returned by take_failed_batches

    # -- under the lock -----------------------------------------------------------------------------------------------

    def create_stage(self, topic: str, now_ms: float) -> Stage:
        """Create and return the stage to which a topic's rows are added.

        `now_ms`: arrival time of the first row.
        """
        buffer_memory = self._config.buffer_memory
        max_bytes = buffer_memory // (_COMPRESSED_STAGE_DIVISOR if self._compressor.is_enabled else _STAGE_DIVISOR)
        max_reserved_bytes = int(_MAX_RESERVED_SHARE * buffer_memory)
        stage = self.stages[topic] = Stage(topic, now_ms, max(1, max_bytes), max(1, max_reserved_bytes))
        return stage

    def list_stages(self) -> list[Stage]:
        """Return all stages, including those from which threads are filling batches now."""
        return [*self.stages.values(), *self._stages_in_use.values()]

    def is_in_use(self, stage: Stage) -> bool:
        """Return whether a thread is filling batches from a stage now."""
        return self._stages_in_use.get(stage.topic) is stage

    @property
    def has_rows(self) -> bool:
        """Whether there are rows that are not in batches yet."""
        return bool(self.stages or self._stages_in_use)

    @property
    def has_failed_batches(self) -> bool:
        """Whether `take_failed_batches` would return any batches. May be read without the lock."""
        return bool(self._failed_batches)

    def take_failed_batches(self) -> list[ProducerBatch]:
        """Return the batches whose rows could not be encoded. Each batch is returned only once."""
        failed_batches, self._failed_batches = self._failed_batches, []
        return failed_batches

    def free_sparse_leases(self) -> None:
        """Free buffers of which only a small part is still needed, by copying the queued batches out of them."""
        for lease in [lease for lease in self._shared_leases if lease.is_sparse]:
            for batch in lease.holders:
                if isinstance(batch, ProducerBatch) and self._queues.is_queued_and_unpinned(batch):
                    batch.copy_to_own_memory()

    # -- without the lock ---------------------------------------------------------------------------------------------

    def fill_lock(self, topic: str) -> threading.Lock:
        """Return the lock that a thread must hold while it fills batches with a topic's rows.

        The fill lock must be acquired before the accumulator's lock.
        """
        return self._fill_locks.setdefault(topic, threading.Lock())

    def list_topics(self) -> list[str]:
        """Return all topics for which rows were ever staged."""
        return list({*self.stages, *self._fill_locks})

    def fill_batches(self, topic: str, *, full_batches_only: bool = False) -> bool:
        """Fill batches with a topic's staged rows, after waiting for any other thread that does so.

        `full_batches_only`: do nothing unless the stage is full or its single records may fill a batch. If only some
        partitions have full batches, leave the rows of the other partitions staged (see staging.py).

        Return whether the sender must look for ready nodes again: because rows have left the stage, or because rows
        that were put back into it may be due earlier than the sender knows.
        """
        with self.fill_lock(topic):
            stage = self._take_stage(topic, full_batches_only=full_batches_only)
            return stage is not None and self._fill_batches_from_stage(stage, full_batches_only=full_batches_only)

    def fail_staged_rows(self, topic: str, error: Exception) -> list[ProducerBatch]:
        """Remove a topic's rows that are in no batch yet, and return them as failed batches.

        The caller must hold the topic's fill lock, so no other thread is filling batches for the topic. If there is a
        stage in `_stages_in_use` anyway, an interrupted thread has left it there. We cannot tell how much memory is
        still reserved for that stage, so none is released. The interrupt ends the producer anyway.
        """
        with self._lock:
            stage = self.stages.pop(topic, None)
            interrupted_stage = self._stages_in_use.pop(topic, None)
            failed_batches: list[ProducerBatch] = []
            if stage is not None:
                failed_batches += stage.build_failed_batches(error)
                self._pool.release(stage.reserved_bytes)
            # If `_take_stage` was interrupted before it removed the stage from `stages`, both are the same stage.
            if interrupted_stage is not None and interrupted_stage is not stage:
                failed_batches += interrupted_stage.build_failed_batches(error)
            for batch in failed_batches:
                self._incomplete_batches.add(batch)
        return failed_batches

    # -- with the topic's fill lock -----------------------------------------------------------------------------------

    def _take_stage(self, topic: str, *, full_batches_only: bool) -> Stage | None:
        """Take a topic's stage for exclusive use by this thread. Rows that arrive later are added to a new stage.

        Return None if there is nothing to do: the topic has no staged rows, or an interrupted thread has left a stage
        in `_stages_in_use`. With `full_batches_only`, also return None if the stage is not full, unless its single
        records are scheduled to be assigned to partitions.

        Once the caller has filled the batches, or has failed the rows, it must call `_finish_stage`. If an interrupt
        prevents that, the stage stays in `_stages_in_use` until `fail_staged_rows` removes it.
        """
        with self._lock:
            stage = self.stages.get(topic)
            if stage is None or topic in self._stages_in_use:
                return None
            has_records_to_assign = stage.record_assignment_due_ms < math.inf
            if full_batches_only and not has_records_to_assign:
                max_body_bytes = self._compressor.compute_max_batch_body_bytes(topic)
                if not stage.is_full(max_body_bytes):
                    return None
            # Keep this order: an interrupt between the statements leaves the stage in both mappings, which
            # `fail_staged_rows` can handle. The rows of a stage in neither mapping would be lost.
            self._stages_in_use[topic] = stage
            del self.stages[topic]
            return stage

    def _fill_batches_from_stage(self, stage: Stage, *, full_batches_only: bool) -> bool:
        """Fill batches from a stage that this thread has taken.

        Return whether there is work for the sender: to look for ready nodes again (see `fill_batches`), or to report
        failed batches.
        """
        try:
            row_groups = self._split_into_row_groups(stage, full_batches_only=full_batches_only)
        except Exception as error:
            self._fail_stage(stage, error)
            return True
        for group_entries in row_groups:
            try:
                appends, queues = self._pin_and_encode(stage, group_entries)
            except Exception as error:
                self._fail_stage(stage, error)
                return True
            self._append_to_batches(stage, group_entries, appends, queues)
        self._finish_stage(stage)
        return len(row_groups) > 0 or stage.should_recheck

    def _split_into_row_groups(self, stage: Stage, *, full_batches_only: bool) -> list[list[Rows]]:
        """Assign all rows to partitions, and split them into row groups, whose rows are encoded together.

        Each row group is a list of the stage's entries. The memory that is reserved for the rows of all groups moves to
        a new lease, the stage's `reservation_lease`.

        `full_batches_only`: after the assignment, put the rows that do not fill batches back into the topic's stage.
        """
        assign_partitions = partial(self._assign_partitions, stage.topic)
        stage.assign_partitions(partial(convert_and_assign_records, assign_partitions=assign_partitions))
        if full_batches_only:
            self._return_sparse_partitions(stage)
        lease = MemoryLease(self._pool, stage.reserved_bytes)
        lease.add_holder(stage, nbytes=0)  # keeps the memory reserved until _finish_stage
        stage.leases.append(lease)
        return list(split_into_row_groups(stage.assigned_entries))

    def _return_sparse_partitions(self, stage: Stage) -> None:
        """Put the rows of partitions without a full batch back into the topic's stage, ahead of newly staged rows.

        There are two exceptions, which `Stage.find_ready_partitions` decides. If the stage turns out not to be full,
        now that its single records are assigned to partitions, put all rows back. If all rows should become batches,
        even those of sparse partitions, put none back.
        """
        max_body_bytes = self._compressor.compute_max_batch_body_bytes(stage.topic)
        ready_partition_mask = stage.find_ready_partitions(max_body_bytes)
        if ready_partition_mask is None:
            return
        ready_stage, remaining_stage = stage.split(ready_partition_mask)
        with self._lock:
            if stage.topic in self.stages:
                remaining_stage.extend(self.stages[stage.topic])
            # The returned rows and the rows that other threads have staged in the meantime may together fill the stage.
            # The other threads did not see the returned rows, so leave it to the sender to fill the batches at its next
            # check.
            if remaining_stage.is_full(max_body_bytes):
                remaining_stage.record_assignment_due_ms = self._clock()
                stage.should_recheck = True
            elif remaining_stage.schedule_record_assignment(max_body_bytes, self._config.linger_ms, self._clock):
                stage.should_recheck = True
            stage.reserved_bytes = ready_stage.reserved_bytes
            # Keep this a single statement: an interrupt between two statements would lose rows or fail them twice.
            stage.entries, self.stages[stage.topic] = ready_stage.entries, remaining_stage

    def _pin_and_encode(self, stage: Stage, group_entries: Sequence[Rows]) -> tuple[BatchAppends, list[PartitionQueue]]:
        """Encode the rows of a row group, and pin the open batches of its partitions.

        Return the encoded records, with the open or new batch to which each slice of them belongs, and the queues of
        all partitions in the group. Afterwards, `_append_to_batches` unpins or closes the batches. If the encoding
        fails, `_fail_stage` unpins them.
        """
        grouped_rows = group_by_partition(group_entries)
        with self._lock:
            queues = self._queues.get_many(stage.topic, grouped_rows.partitions)
            open_batches = [queue.pin_open_batch() for queue in queues]
        timestamp_ms = self._wall_clock_ms()  # the timestamp of rows that have none
        slices = split_into_batches(
            grouped_rows.sizes,
            grouped_rows.build_partition_slices(open_batches),
            self._compressor.compute_max_batch_bytes(stage.topic),
            find_timestamp_range(grouped_rows.columns, timestamp_ms),
        )
        encoded_slices_by_buffer = encode_records(grouped_rows.columns, slices, timestamp_ms, grouped_rows.row_order)
        encoded_buffers = self._build_encoded_buffers(stage, slices, encoded_slices_by_buffer, grouped_rows.row_group)
        batches = self._choose_batches(stage, slices, open_batches, queues)
        batch_queues = [queues[partition_index] for partition_index in slices.partition_indices]
        return BatchAppends(encoded_buffers, batches, batch_queues), queues

    def _choose_batches(
        self,
        stage: Stage,
        slices: BatchSlices,
        open_batches: Sequence[ProducerBatch | None],
        queues: Sequence[PartitionQueue],
    ) -> list[ProducerBatch]:
        """Return the batch for each slice: the open batch of its partition, or a new batch that is in no queue yet.

        `slices`: the rows that go to each batch.
        `open_batches`, `queues`: one item per partition of the row group.
        """
        deadline_ms = stage.oldest_row_arrival_ms + self._config.delivery_timeout_ms
        last_batches = list(open_batches)  # the last batch of each partition so far
        slice_batches: list[ProducerBatch] = []
        for partition_index, first_offset_delta in zip(
            slices.partition_indices, slices.first_offset_deltas, strict=True
        ):
            batch = last_batches[partition_index]
            # A slice whose first record has the offset delta 0 begins a new batch.
            if batch is None or first_offset_delta == 0:
                batch = ProducerBatch(queues[partition_index].topic_partition, stage.oldest_row_arrival_ms, deadline_ms)
                last_batches[partition_index] = batch
            slice_batches.append(batch)
        return slice_batches

    def _build_encoded_buffers(
        self, stage: Stage, slices: BatchSlices, encoded_slices_by_buffer: Sequence[EncodedSlices], row_group: RowGroup
    ) -> list[EncodedBuffer]:
        """Give each encoded buffer a memory lease of its own, so that the buffers can be freed independently.

        Each lease takes over the buffer's share of the memory that is reserved for the stage.

        `slices`: the slices of all buffers, in order.
        """
        encoded_buffers: list[EncodedBuffer] = []
        stage_lease = stage.reservation_lease
        slice_start = 0
        for encoded_slices in encoded_slices_by_buffer:
            slice_stop = slice_start + len(encoded_slices.sizes)
            buffer_slices = slices.select(slice_start, slice_stop)
            slice_start = slice_stop
            row_starts, row_stops = buffer_slices.starts, buffer_slices.stops
            lease = stage_lease.create_empty()
            # The stage holds the lease until _finish_stage, so the memory stays reserved before any batch holds it.
            lease.add_holder(stage, nbytes=0)
            stage.leases.append(lease)
            overhead_bytes = row_group.compute_overhead_bytes(row_starts[0], row_stops[-1])
            encoded_bytes = self._compressor.max_encoded_copy_count * encoded_slices.data.nbytes
            stage_lease.transfer_up_to(encoded_bytes + overhead_bytes, lease)
            first_offset_deltas = buffer_slices.first_offset_deltas
            encoded_buffers.append(
                EncodedBuffer(encoded_slices, lease, row_group, row_starts, row_stops, first_offset_deltas)
            )
        return encoded_buffers

    def _append_to_batches(
        self, stage: Stage, group_entries: Sequence[Rows], appends: BatchAppends, queues: Sequence[PartitionQueue]
    ) -> None:
        """Append the encoded records of a row group to their batches, and the new batches to their queues.

        Each batch becomes a holder of the leases of the buffers that contain its records. Full batches are closed, and
        all other batches are unpinned.
        """
        full_batches: list[ProducerBatch] = []
        with self._lock:
            # Keep this a single statement: an interrupt between two statements would lose the rows or fail them twice.
            stage.entries, stage.pending_appends = stage.entries[len(group_entries) :], appends
            for encoded_buffer, batches, batch_queues in appends.split_by_buffer():
                self._shared_leases.add(encoded_buffer.lease)
                encoded_buffer.lease.add_holders(batches, encoded_buffer.needed_bytes)
                for slice_index, (batch, queue) in enumerate(zip(batches, batch_queues, strict=True)):
                    is_new_batch = encoded_buffer.first_offset_deltas[slice_index] == 0
                    if is_new_batch:
                        # If the previous batch is pinned, it is full, because a new batch follows it. In any other
                        # state, it is already closed.
                        if queue.batches and queue.batches[-1].state is PINNED:
                            full_batches.append(queue.batches[-1])
                        batch.pin()
                        queue.batches.append(batch)
                        self._incomplete_batches.add(batch)
                    batch.append(encoded_buffer, slice_index)
            full_batches += self._unpin_last_batches(queues, self._compressor.compute_max_batch_bytes(stage.topic))
            if not full_batches:
                self._schedule_queues(queues)
        # Compress without the lock, because that is slow. Schedule the queues only afterwards, because a queue is not
        # due while its oldest batch is pinned.
        for batch in full_batches:
            self._compressor.close_batch(batch)
        if full_batches:
            with self._lock:
                self._schedule_queues(queues)

    def _unpin_last_batches(self, queues: Sequence[PartitionQueue], max_bytes: int) -> list[ProducerBatch]:
        """Unpin the last batch of each queue unless the batch is full. Return the full batches, which remain pinned."""
        full_batches: list[ProducerBatch] = []
        for queue in queues:
            batch = queue.batches[-1]
            if batch.is_full(max_bytes):
                full_batches.append(batch)
            else:
                batch.unpin()
        return full_batches

    def _schedule_queues(self, queues: Sequence[PartitionQueue]) -> None:
        """Schedule queues to which records were appended, except those that are ready, because they stay ready."""
        now_ms = self._clock()
        for queue in queues:
            if not queue.is_ready:
                self._queues.schedule(queue, now_ms)

    def _fail_stage(self, stage: Stage, error: Exception) -> None:
        """Fail the rows of the stage that are in no batch yet, and unpin the batches to which they would have gone."""
        with self._lock:
            queues = self._queues.find_topic_queues(stage.topic)
            for queue in queues:
                for batch in queue.batches:
                    if batch.state is PINNED:
                        batch.unpin()
            self._schedule_queues(queues)
            failed_batches = stage.build_failed_batches(error)
            for batch in failed_batches:
                self._incomplete_batches.add(batch)
            # Keep this a single statement, for the same reason as in `_append_to_batches`.
            stage.entries, self._failed_batches = [], [*self._failed_batches, *failed_batches]
        self._finish_stage(stage)

    def _finish_stage(self, stage: Stage) -> None:
        """End this thread's use of the stage, and release the stage's memory that no batch uses.

        Each row of the stage must be in a batch or must have failed.
        """
        for lease in stage.leases:
            lease.remove_holder(stage)
        if not stage.leases:  # the stage failed before a lease took over its memory
            self._pool.release(stage.reserved_bytes)
        with self._lock:
            del self._stages_in_use[stage.topic]
