"""BatchFiller: the staged rows of a topic become batches in the queues of its partitions.

    1. take the topic's stage                                 under the lock
    2. group: find the order of rows by partition             without the lock
    3. pin the open batches of these partitions               under the lock
    4. cut: where batches begin and end; encode               without the lock
    5. append the records to the batches                      under the lock
    6. compress the batches that are full                     without the lock, they stay pinned

A batch is pinned while a thread works on it without the lock: the sender may neither close nor send it. Otherwise it
could be sent between 3 and 5, and the records that were encoded to follow its last one would follow nothing.

Any thread may fill, one at a time for each topic, which keeps the order of rows.

An Exception in 2 to 4 fails the rows of the stage: they become batches without bytes that have failed
(`take_failed`), so that the sender reports them like all others. Anything else that ends the work (Ctrl-C above all)
ends the producer: the stage then stays in `_taken`, nothing fills its topic any more, and the sender fails it with all
that is open (`fail_rows`). Rows move from one place to the next in one statement, so that they are in one of them then.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.grouping import compatible, group, rows_of_records
from spark_kafka_sink.producer.batching.incomplete import IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.batching.pieces import Pieces
from spark_kafka_sink.producer.batching.row_origins import RowOrigins
from spark_kafka_sink.producer.batching.staging import Additions, Stage
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.batch_slicing import BatchSlices, find_timestamp_range, split_into_batches
from spark_kafka_sink.records.compression import Codec, CompressionRatios, require_codec
from spark_kafka_sink.records.encoder import EncodedSlices, encode_records
from spark_kafka_sink.records.header import HEADER_BYTES

_log = logging.getLogger(__name__)
_STAGE_SHARE = 2
"""A stage is full when its rows, encoded, fill this part of the memory, even if no batch is full. With a thousand
partitions this limit decides: with a third a row costs a tenth more, with a quarter two tenths."""
_STAGE_SHARE_COMPRESSED = 3
"""Memory is reserved twice for rows that will be compressed."""
_RESERVED_SHARE = 0.75
"""A stage is full as well when this part of the memory is reserved for it. A record of send() of 100 bytes is reserved
three times as much; columns are full before, unless rows are tiny."""
_RATIO_SAFETY = 1.05  # an estimate of the compressed size is taken a little too high, as in Java


PartitionsOfTopic = Callable[[str, Rows, ClusterSnapshot], NDArray[np.int32]]
"""From rows of a topic to the partition of each."""


class BatchFiller:
    """See the module's docstring."""

    def __init__(  # noqa: PLR0913 - the accumulator's parts, each by its name
        self,
        config: ProducerConfig,
        *,
        pool: BufferPool,
        lock: threading.Lock,
        queues: PartitionQueues,
        incomplete: IncompleteBatches,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        partitions_of: PartitionsOfTopic,
    ) -> None:
        self._config = config
        require_codec(
            config.codec
        )  # a pickled configuration was checked where it was made, perhaps with another Python
        self._codec = config.codec
        self._compresses = config.codec is not Codec.NONE
        self._pool = pool
        self._lock = lock
        self._queues = queues
        self._incomplete = incomplete
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._partitions_of = partitions_of
        self._ratios = CompressionRatios()
        self._fill_locks: dict[str, threading.Lock] = {}
        # All below is guarded by the lock.
        self.stages: dict[str, Stage] = {}  # rows that wait, by topic
        self._taken: dict[str, Stage] = {}  # rows that are being filled into batches
        self._shared: weakref.WeakSet[MemoryLease] = weakref.WeakSet()  # memory that several batches lie in
        self._failed: list[ProducerBatch] = []

    # -- under the lock -----------------------------------------------------------------------------------------------

    def new_stage(self, topic: str, now: float) -> Stage:
        """For the first row of a topic that waits."""
        memory, share = self._config.buffer_memory, _STAGE_SHARE_COMPRESSED if self._compresses else _STAGE_SHARE
        stage = self.stages[topic] = Stage(topic, now, max(1, memory // share), max(1, int(_RESERVED_SHARE * memory)))
        return stage

    def all_stages(self) -> list[Stage]:
        """Rows that wait, and rows that are taken: of these some may wait on."""
        return [*self.stages.values(), *self._taken.values()]

    def is_taken(self, stage: Stage) -> bool:
        """Is a thread filling its rows into batches?"""
        return self._taken.get(stage.topic) is stage

    @property
    def has_rows(self) -> bool:
        """Are there rows that are in no batch yet?"""
        return bool(self.stages or self._taken)

    @property
    def some_failed(self) -> bool:
        """May be asked without the lock."""
        return bool(self._failed)

    def take_failed(self) -> list[ProducerBatch]:
        """Batches that could not be encoded, each once."""
        failed, self._failed = self._failed, []
        return failed

    def free_sparse_memory(self) -> None:
        """Copy the last few batches of a buffer out of it, so that its memory returns (buffer_pool.py)."""
        for lease in [lease for lease in self._shared if lease.is_sparse]:
            for batch in lease.holders:
                if isinstance(batch, ProducerBatch) and self._queues.is_waiting(batch):
                    batch.move_to_own_memory()

    # -- without the lock ---------------------------------------------------------------------------------------------

    def batch_bytes_max(self, topic: str) -> int:
        """Bytes of a batch before compression: those that are expected to become batch.size."""
        if not self._compresses:
            return self._config.batch_size
        most = max(self._config.batch_size, self._config.max_request_size)
        return min(int(self._config.batch_size / (self._ratios.get(topic, self._codec) * _RATIO_SAFETY)), most)

    def full_bytes(self, topic: str) -> int:
        """A partition with that many staged bytes has a full batch."""
        return self.batch_bytes_max(topic) - HEADER_BYTES

    def fill_lock(self, topic: str) -> threading.Lock:
        """One thread at a time fills a topic."""
        return self._fill_locks.setdefault(topic, threading.Lock())

    def topics(self) -> list[str]:
        """Topics that have rows in no batch, or had some."""
        return list({*self.stages, *self._fill_locks})

    def fill(self, topic: str, *, only_full: bool = False) -> bool:
        """Put the rows that wait for a topic into batches, after any other thread that is at it. Returns whether the
        sender must look again: rows have left the stage, or were due when it looked, and may wait on.

        `only_full`: nothing if the stage is not full and its single records cannot fill a batch, and of skewed rows
        only those that fill batches (staging.py).
        """
        with self.fill_lock(topic):
            stage = self._take(topic, only_full=only_full)
            return stage is not None and self._fill(stage, only_full=only_full)

    def fail_rows(self, topic: str, error: Exception) -> list[ProducerBatch]:
        """All rows of a topic that are in no batch, as failed batches. With the fill lock.

        A stage that is taken although no thread fills the topic was left by an interruption. What it had reserved is
        not known, and is not released: the producer ends.
        """
        with self._lock:
            waiting, left = self.stages.pop(topic, None), self._taken.pop(topic, None)
            failed: list[ProducerBatch] = []
            if waiting is not None:
                failed += waiting.failed_batches(error)
                self._pool.release(waiting.reserved)
            if left is not None and left is not waiting:
                failed += left.failed_batches(error)
            for batch in failed:
                self._incomplete.add(batch)
        return failed

    def close_batch(self, batch: ProducerBatch) -> None:
        """Compress, and learn from it how much more fits into the next batch."""
        if not self._compresses:
            batch.close()
            return
        try:
            batch.close(self._codec, self._config.compression_level)
        except Exception as error:
            _log.warning("%r could not be compressed (%r): it is sent as it is.", batch, error)
            batch.close()
        ratio = batch.body_bytes / batch.uncompressed_bytes
        self._ratios.update(batch.topic_partition.topic, self._codec, ratio)

    def forget_ratio(self, batch: ProducerBatch) -> None:
        """A batch was refused as too large: begin again with a careful estimate."""
        if self._compresses:
            observed = batch.body_bytes / batch.uncompressed_bytes
            self._ratios.reset(batch.topic_partition.topic, self._codec, max(1.0, observed))

    # -- with the topic's fill lock -----------------------------------------------------------------------------------

    def _take(self, topic: str, *, only_full: bool) -> Stage | None:
        """From here on the rows belong to this thread. None if there is nothing to do, or after an interruption."""
        with self._lock:
            stage = self.stages.get(topic)
            if stage is None or topic in self._taken:
                return None
            has_records_to_place = stage.place_due_ms < math.inf
            if only_full and not has_records_to_place and not stage.is_full(self.full_bytes(topic)):
                return None
            self._taken[topic] = stage
            del self.stages[topic]
            return stage

    def _fill(self, stage: Stage, *, only_full: bool) -> bool:
        try:
            runs = self._runs(stage, only_full=only_full)
        except Exception as error:
            self._give_up(stage, error)
            return True
        for run in runs:
            try:
                additions, queues = self._encode(stage, run)
            except Exception as error:
                self._give_up(stage, error)
                return True
            self._append(stage, run, additions, queues)
        self._end(stage)
        return len(runs) > 0 or stage.overlooked

    def _runs(self, stage: Stage, *, only_full: bool) -> list[list[Rows]]:
        """The rows of the stage, in columns that can be encoded together."""
        stage.place(partial(rows_of_records, partitions_of=partial(self._partitions_of, stage.topic)))
        if only_full:
            self._return_thin(stage)
        lease = MemoryLease(self._pool, stage.reserved)
        lease.hold(stage, 0)
        stage.leases.append(lease)
        return list(compatible(stage.rows))

    def _return_thin(self, stage: Stage) -> None:
        """Return the rows of thin partitions to the topic's stage, before rows that were staged since. If no partition
        is full, all rows return: with single records among them, that is known only now."""
        batch_bytes = self.full_bytes(stage.topic)
        leaving = stage.leaving(batch_bytes)
        if leaving is None:
            return
        leave, rest = stage.split(leaving)
        with self._lock:
            if stage.topic in self.stages:
                rest.extend(self.stages[stage.topic])
            if rest.is_full(batch_bytes):  # with what other threads have staged since: none of them fills it
                rest.place_due_ms = self._clock()
                stage.overlooked = True
            elif rest.schedule_placing(batch_bytes, self._config.linger_ms, self._clock):
                stage.overlooked = True
            stage.reserved = leave.reserved
            stage.entries, self.stages[stage.topic] = leave.entries, rest

    def _encode(self, stage: Stage, run: Sequence[Rows]) -> tuple[Additions, list[PartitionQueue]]:
        """What is to be added to batches, and to whose queues. The open batches among them are pinned from here on."""
        grouped = group(run)
        with self._lock:
            queues = self._queues.of_topic(stage.topic, grouped.partitions)
            pinned = [queue.pin_open_batch() for queue in queues]
        now_ms = self._wall_clock_ms()
        times = find_timestamp_range(grouped.columns, now_ms)
        cuts = split_into_batches(grouped.sizes, grouped.slices(pinned), self.batch_bytes_max(stage.topic), times)
        buffers = self._pieces_of(
            stage, cuts, encode_records(grouped.columns, cuts, now_ms, grouped.order), grouped.origins
        )
        deadline_ms = stage.oldest_ms + self._config.delivery_timeout_ms
        last = list(pinned)
        batches: list[ProducerBatch] = []
        for index, first_delta in zip(cuts.partition_indexes, cuts.first_offset_deltas, strict=True):
            batch = last[index]
            if batch is None or not first_delta:
                batch = last[index] = ProducerBatch(queues[index].topic_partition, stage.oldest_ms, deadline_ms)
            batches.append(batch)
        return Additions(buffers, batches, [queues[index] for index in cuts.partition_indexes]), queues

    def _pieces_of(
        self, stage: Stage, cuts: BatchSlices, encoded: Sequence[EncodedSlices], origins: RowOrigins
    ) -> list[Pieces]:
        """For each buffer its pieces, with a lease of what was reserved for them."""
        found: list[Pieces] = []
        staged = stage.leases[0]
        first = 0
        for buffer in encoded:
            ours = slice(first, first := first + len(buffer.sizes))
            starts, stops, first_deltas = cuts.starts[ours], cuts.stops[ours], cuts.first_offset_deltas[ours]
            lease = staged.sibling()
            lease.hold(stage, 0)
            stage.leases.append(lease)
            rows_bytes = origins.nbytes(starts[0], stops[-1])
            staged.move(buffer.data.nbytes * (2 if self._compresses else 1) + rows_bytes, lease)
            found.append(Pieces(buffer, lease, origins, starts, stops, first_deltas))
        return found

    def _append(
        self, stage: Stage, run: Sequence[Rows], additions: Additions, queues: Sequence[PartitionQueue]
    ) -> None:
        """Put the records into their batches, and the new ones of these into their queues."""
        full: list[ProducerBatch] = []
        with self._lock:
            stage.entries, stage.additions = stage.entries[len(run) :], additions
            first = 0
            for pieces in additions.buffers:
                ours = slice(first, first := first + len(pieces))
                batches = additions.batches[ours]
                self._shared.add(pieces.lease)
                pieces.lease.hold_each(batches, pieces.charges)
                for number, (batch, queue) in enumerate(zip(batches, additions.queues[ours], strict=True)):
                    if not pieces.first_offset_deltas[number]:
                        if queue.batches and queue.batches[-1].state is PINNED:
                            full.append(queue.batches[-1])
                        batch.pin()
                        queue.batches.append(batch)
                        self._incomplete.add(batch)
                    batch.append(pieces, number)
            full += self._unpin(queues, self.batch_bytes_max(stage.topic))
            if not full:
                self._schedule(queues)
        for batch in full:
            self.close_batch(batch)
        if full:
            with self._lock:
                self._schedule(queues)

    def _unpin(self, queues: Sequence[PartitionQueue], bytes_max: int) -> list[ProducerBatch]:
        """Let the last batch of each queue take more records. Returns those that are full."""
        full: list[ProducerBatch] = []
        for queue in queues:
            batch = queue.batches[-1]
            if batch.is_full(bytes_max):
                full.append(batch)
            else:
                batch.unpin()
        return full

    def _schedule(self, queues: Sequence[PartitionQueue]) -> None:
        """A sendable queue stays sendable when it gets more batches, so only the others are looked at."""
        now = self._clock()
        for queue in queues:
            if not queue.sendable:
                self._queues.schedule(queue, now)

    def _give_up(self, stage: Stage, error: Exception) -> None:
        """Fail the rows that are in no batch, and let go of the batches that they would have been added to."""
        with self._lock:
            queues = self._queues.all_of_topic(stage.topic)
            for queue in queues:
                for batch in queue.batches:
                    if batch.state is PINNED:
                        batch.unpin()
            self._schedule(queues)
            failed = stage.failed_batches(error)
            for batch in failed:
                self._incomplete.add(batch)
            stage.entries, self._failed = [], [*self._failed, *failed]
        self._end(stage)

    def _end(self, stage: Stage) -> None:
        """All rows are in batches, or have failed."""
        for lease in stage.leases:
            lease.let_go(stage)
        if not stage.leases:
            self._pool.release(stage.reserved)
        with self._lock:
            del self._taken[stage.topic]
