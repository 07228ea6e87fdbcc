"""BatchFiller: the staged rows of a topic become batches in the queues of its partitions.

    1. take the topic's stage                                 under the lock
    2. group: find the order of rows by partition             without the lock
    3. pin the open batches of these partitions               under the lock
    4. cut: where batches begin and end; encode               without the lock
    5. append the records to the batches                      under the lock
    6. compress the batches that are full                     without the lock, they stay pinned

A batch is pinned while a thread works on it without the lock: the sender may neither close nor send it. Otherwise it
could be sent between 3 and 5, and the records that were encoded to follow its last one would follow nothing.

Any thread may fill, one at a time for each topic, which keeps the order of rows. A stage stays in `_taken` until all of
its rows are in batches. If an exception interrupts the work (MemoryError, Ctrl-C), `_give_up` fails the rows that are
in no batch; if that is interrupted too, the next thread that fills the topic does it.

Rows that cannot be encoded become batches without bytes that have failed (`failed`), so that the sender reports them
like all others.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import groupby

from spark_kafka_sink.producer.batching.batch import PINNED, ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.grouping import compatible, group, in_columns
from spark_kafka_sink.producer.batching.incomplete import IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.batching.row_origins import BatchRows, RowOrigins
from spark_kafka_sink.producer.batching.staging import Entry, Stage, StagedRows
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.records.compression import Codec, CompressionRatios, require
from spark_kafka_sink.records.cutting import BatchSlice, cut_batches, times_of
from spark_kafka_sink.records.encoder import EncodedSlice, encode
from spark_kafka_sink.records.header import HEADER_BYTES

_log = logging.getLogger(__name__)
_STAGE_SHARE = 4
"""A stage is full when its rows, encoded, fill this part of the memory, even if no batch is full. With a thousand
partitions this limit decides: half of it would make batches half as large and cost 40 % more per row."""
_RATIO_SAFETY = 1.05  # an estimate of the compressed size is taken a little too high, as in Java


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
    ) -> None:
        self._config = config
        require(config.codec)  # a pickled configuration was checked where it was made, perhaps with another Python
        self._codec = config.codec
        self._compresses = config.codec is not Codec.NONE
        self._pool = pool
        self._lock = lock
        self._queues = queues
        self._incomplete = incomplete
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._ratios = CompressionRatios()
        self._fill_locks: dict[str, threading.Lock] = {}
        # All below is guarded by the lock.
        self.stages: dict[str, Stage] = {}  # rows that wait, by topic
        self._taken: dict[str, Stage] = {}  # rows that are being filled into batches
        self._shared: weakref.WeakSet[MemoryLease] = weakref.WeakSet()  # memory that several batches lie in
        self._failed: list[ProducerBatch] = []

    # -- under the lock -----------------------------------------------------------------------------------------------

    def stage_of(self, topic: str, now: float) -> Stage:
        """The rows of a topic that wait; made with its first row."""
        stage = self.stages.get(topic)
        if stage is None:
            stage = self.stages[topic] = Stage(topic, now, max(1, self._config.buffer_memory // _STAGE_SHARE))
        return stage

    def remove(self, topic: str, entry: Entry) -> int:
        """Take back an entry whose append was interrupted, if it still waits. Returns what was reserved for it."""
        stage = self.stages.get(topic)
        removed = 0 if stage is None else stage.remove(entry)
        if stage is not None and not stage.entries:
            del self.stages[topic]
        return removed

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

    def resume_interrupted(self) -> None:
        """Bring to an end what other threads have left when they were interrupted. Sender thread."""
        for topic in list(self._taken):
            if not self.fill_lock(topic).locked():
                self.fill(topic, 0)

    def fill(self, topic: str, timeout_seconds: float = -1, *, only_full: bool = False) -> bool:
        """Put the rows that wait for a topic into batches. False if another thread was at it until the timeout.

        `only_full`: nothing if the stage is not full, and of skewed rows only those that fill batches (staging.py).
        """
        lock = self.fill_lock(topic)
        locked = False
        try:
            locked = lock.acquire(timeout=timeout_seconds)
            if locked:
                self._resume(topic)
                stage = self._take(topic, only_full=only_full)
                if stage is not None:
                    self._fill(stage, only_full=only_full)
            return locked
        except BaseException as error:
            if locked:
                self._resume(topic, error)
            if not isinstance(error, Exception):
                raise
            return locked
        finally:
            if locked:
                lock.release()

    def fail_rows(self, topic: str, error: Exception) -> list[ProducerBatch]:
        """The rows that wait for a topic as failed batches, in place of filling them. With the fill lock."""
        self._resume(topic)
        stage = self._take(topic)
        return [] if stage is None else self._give_up(stage, error)

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

    def _take(self, topic: str, *, only_full: bool = False) -> Stage | None:
        """From here on the rows belong to this thread."""
        with self._lock:
            stage = self.stages.get(topic)
            if stage is None or (only_full and not stage.is_full(self.full_bytes(topic))):
                return None
            self._taken[topic] = stage
            del self.stages[topic]
            return stage

    def _return_thin(self, stage: Stage) -> None:
        """Of skewed rows, those that would make thin batches wait on, before what was staged since."""
        leaving = stage.leaving(self.full_bytes(stage.topic))
        if leaving is None:
            return
        leave, rest = stage.split(leaving)
        with self._lock:
            if stage.topic in self.stages:
                rest.extend(self.stages[stage.topic])
            stage.entries, self.stages[stage.topic] = [*leave], rest

    def _resume(self, topic: str, error: BaseException | None = None) -> None:
        """Bring to an end what an exception has interrupted, in this thread or in one before it."""
        with self._lock:
            stage = self._taken.get(topic)
            if stage is None:
                return
            if self.stages.get(topic) is stage:  # interrupted before it was really taken
                del self._taken[topic]
                return
        failed = self._give_up(stage, error if error is not None else KeyboardInterrupt())
        with self._lock:
            self._failed += failed

    def _fill(self, stage: Stage, *, only_full: bool) -> None:
        stage.entries = [*in_columns(stage.entries)]
        if only_full:
            self._return_thin(stage)
        lease = MemoryLease(self._pool, sum(reserved for _, reserved in stage.entries))
        lease.hold(stage, 0)
        stage.leases.append(lease)
        stage.entries = [(rows, 0) for rows, _ in stage.entries]
        for together in list(compatible([rows for rows, _ in stage.entries if isinstance(rows, StagedRows)])):
            self._fill_rows(stage, together)
        self._end(stage)

    def _fill_rows(self, stage: Stage, together: Sequence[StagedRows]) -> None:
        """Make batches of some rows; the stage's entries are those that are in no batch yet."""
        bytes_max = self.batch_bytes_max(stage.topic)
        grouped = group(together)
        with self._lock:
            queues = self._queues.of_topic(stage.topic, grouped.partitions)
            pinned = [queue.pin_open_batch() for queue in queues]
        now_ms = self._wall_clock_ms()
        times = times_of(grouped.columns, now_ms)
        cuts = cut_batches(grouped.sizes, grouped.slices(pinned), bytes_max, times)
        pieces = encode(grouped.columns, cuts, now_ms, grouped.order)
        leases = self._leases_of(stage, cuts, pieces, grouped.origins)
        rest = stage.entries[len(together) :]
        with self._lock:
            self._shared.update(set(leases))
            try:
                stage.entries = rest
                full = self._append(stage, grouped.origins, queues, pinned, cuts, pieces, leases)
            except BaseException as error:
                if stage.entries is rest:
                    self._fail_rest(queues, cuts, grouped.origins, stage, error)
                raise
            full += self._unpin(queues, bytes_max)
        for batch in full:
            self.close_batch(batch)
        if full:
            with self._lock:
                self._place(queues)

    def _leases_of(
        self, stage: Stage, cuts: Sequence[BatchSlice], pieces: Sequence[EncodedSlice], origins: RowOrigins
    ) -> list[MemoryLease]:
        """For each piece a lease of what was reserved for its buffer. Pieces that were encoded together share both."""
        leases: list[MemoryLease] = []
        staged = stage.leases[0]
        for _, same in groupby(zip(pieces, cuts, strict=True), lambda pair: id(pair[0].segment.obj)):
            pairs = list(same)
            encoded = memoryview(pairs[0][0].segment.obj).nbytes
            rows_bytes = origins.nbytes(pairs[0][1].start, pairs[-1][1].stop)
            lease = staged.sibling()
            lease.hold(stage, 0)
            stage.leases.append(lease)
            staged.move(encoded * (2 if self._compresses else 1) + rows_bytes, lease)
            leases += [lease] * len(pairs)
        return leases

    def _append(  # noqa: PLR0913 - what the steps before have made, each list beside the others
        self,
        stage: Stage,
        origins: RowOrigins,
        queues: Sequence[PartitionQueue],
        pinned: list[ProducerBatch | None],
        cuts: Sequence[BatchSlice],
        pieces: Sequence[EncodedSlice],
        leases: Sequence[MemoryLease],
    ) -> list[ProducerBatch]:
        """Put the pieces into the pinned batches, and into new ones where those are full; returns what to compress."""
        full: list[ProducerBatch] = []
        batches = list(pinned)
        deadline_ms = stage.oldest_ms + self._config.delivery_timeout_ms
        for cut, piece, lease in zip(cuts, pieces, leases, strict=True):
            index, start, stop, place, _ = cut
            batch = batches[index]
            if batch is not None and place:
                batch.append(piece, BatchRows(origins, start, stop, place), lease)
                continue
            if batch is not None and self._compresses:
                full.append(batch)
            elif batch is not None:
                batch.close()
            queue = queues[index]
            batches[index] = batch = ProducerBatch(queue.topic_partition, stage.oldest_ms, deadline_ms)
            batch.pin()
            queue.batches.append(batch)
            self._incomplete.add(batch)
            batch.append(piece, BatchRows(origins, start, stop, 0), lease)
        return full

    def _unpin(self, queues: Sequence[PartitionQueue], bytes_max: int) -> list[ProducerBatch]:
        """Let the last batch of each queue take more records, or return it to be closed if it is full."""
        full: list[ProducerBatch] = []
        for queue in queues:
            batch = queue.batches[-1]
            if batch.is_full(bytes_max):
                full.append(batch)
            else:
                batch.unpin()
        if not full:
            self._place(queues)
        return full

    def _place(self, queues: Sequence[PartitionQueue]) -> None:
        """A sendable queue stays sendable when it gets more batches, so only the others are looked at."""
        now = self._clock()
        for queue in queues:
            if not queue.sendable:
                self._queues.place(queue, now)

    def _end(self, stage: Stage) -> None:
        """All rows are in batches, or have failed."""
        for lease in stage.leases:
            lease.let_go(stage)
        with self._lock:
            del self._taken[stage.topic]

    # -- when something was raised ------------------------------------------------------------------------------------

    def _fail_rest(
        self,
        queues: Sequence[PartitionQueue],
        cuts: Sequence[BatchSlice],
        origins: RowOrigins,
        stage: Stage,
        error: BaseException,
    ) -> None:
        """Only a part of the rows was appended: fail the others. Under the lock, since the appending began."""
        appended = set()
        for queue in queues:
            for batch in list(queue.batches):
                appended |= {rows.start for rows in batch.rows if rows.origins is origins}
                if batch.record_count:
                    self._incomplete.add(batch)
                else:
                    queue.batches.remove(batch)
                    self._incomplete.forget(batch)
        for lease in stage.leases:
            for holder in lease.holders:
                if isinstance(holder, ProducerBatch) and lease not in holder.leases:
                    lease.let_go(holder)
        for cut in cuts:
            if cut.start not in appended:
                rows = BatchRows(origins, cut.start, cut.stop, 0)
                batch = ProducerBatch.failed(queues[cut.partition_index].topic_partition, rows, error)
                self._incomplete.add(batch)
                self._failed.append(batch)

    def _give_up(self, stage: Stage, error: BaseException) -> list[ProducerBatch]:
        """Fail the rows that are in no batch, and let go of what is pinned. No other thread fills this topic now."""
        with self._lock:
            if not stage.leases:
                lease = MemoryLease(self._pool, sum(reserved for _, reserved in stage.entries))
                lease.hold(stage, 0)
                stage.leases.append(lease)
            queues = self._queues.all_of_topic(stage.topic)
            for queue in queues:
                for batch in queue.batches:
                    if batch.state is PINNED:
                        batch.unpin()
            failed = stage.failed_batches(error)
            for batch in failed:
                self._incomplete.add(batch)
            self._place(queues)
        self._end(stage)
        return failed
