"""RecordAccumulator: where rows become batches, between the callers of send and the sender thread.

    append_columns, append_record      rows are staged (staging.py); their memory is reserved first
    grouping                           rows -> ordered by partition -> encoded -> batches in queues (partition_queues.py)
    ready, drain                       batches -> the sender
    reenqueue, split_and_reenqueue     back again
    finish                             forgotten

Grouping happens on the caller's thread when a topic's stage is full, so that encoding and sending overlap (Arrow and
numpy release the interpreter's lock), and on the sender's thread when linger.ms has passed, memory is short, or a flush
or the close is under way. Two threads never group one topic at once, which keeps the order of rows.

Memory. What is reserved for rows when they are staged is for both forms: their Arrow bytes and the upper bound of what
they are encoded to. After encoding the first part is given back; with compression it is kept until the batches are
closed, as room for the compressed form. So nobody ever waits for memory while he holds rows that others wait for, and
neither encoding nor compressing can run out of it. The encoded rows of one grouping share a lease, see buffer_pool.py.
A call larger than the memory is taken in chunks. What comes on top of buffer.memory for a moment are the working copies
of one grouping per thread (concatenation, ordering), an eighth of it or 64 k rows at most.

Locks: _lock guards stages, queues and batches that are not in flight; it is held for moments, never while encoding,
compressing or waiting. A stage's group_lock is taken before _lock. While records are encoded for an open batch, or a
full one is compressed, it is `pinned`: the sender leaves it alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.errors import BufferExhaustedError, KafkaSinkError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batch import BatchState, ProducerBatch, TopicPartition
from spark_kafka_sink.producer.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.partition_queues import INFINITE_MS, PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.partitioner import PartitionLoads
from spark_kafka_sink.producer.split import split_batch
from spark_kafka_sink.producer.staging import Grouped, Headers, Run, Stage, StagedRecord, Taken, compatible, group
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, CompressionRatios
from spark_kafka_sink.records.encoder import BatchSlice, EncodedPiece, PartitionSlice, encode, plan_batches

_CHUNK_ROWS_MAX = 16_384
_STAGE_ROWS_MAX = 65_536
_RATIO_SAFETY = 1.05  # as in Java: an estimate of the compressed size is taken a little too high
_DEAD_DEADLINES_MAX = 1024


class DrainGate(Protocol):
    """Who decides whether a partition's next batch may leave now (idempotence)."""

    def admit(self, batch: ProducerBatch, leader_id: int, now: float) -> bool:
        """May `batch`, the head of its partition's queue, be sent to `leader_id` now?

        If yes: set its sequence if it has none and count it as in flight. If no, the partition is set aside until
        recheck(), so that the sender does not spin. Called under the accumulator's lock: it must not call back.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """What the sender can do now, and when to look again if nothing happens."""

    ready_node_ids: frozenset[int]
    next_check_delay_ms: float  # inf if nothing waits for a time
    unknown_leader_topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows of a call were taken, from the first on, and why the others were not."""

    rows: int
    error: KafkaSinkError | None = None


class Flush:
    """What one flush() waits for. Guarded by the accumulator's lock."""

    __slots__ = ("batches", "done")

    def __init__(self) -> None:
        self.batches: set[ProducerBatch] = set()
        self.done = threading.Event()


class _TopicStage(Stage):
    """A stage, and the right to group it."""

    __slots__ = ("group_lock",)

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.group_lock = threading.Lock()


class RecordAccumulator:
    """See the module's docstring."""

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        *,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        wakeup: Callable[[], None],
    ) -> None:
        """`wakeup` makes the sender look again; it is called by appends, from any thread."""
        self._config = config
        self._pool = pool
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._wakeup = wakeup
        self._codec = config.codec
        self._group_bytes_max = max(1, config.buffer_memory // 8)
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())
        self._ratios = CompressionRatios()
        self._lock = threading.Lock()
        self._stages: dict[str, _TopicStage] = {}
        self._queues = PartitionQueues(config.linger_ms)
        self._incomplete: dict[ProducerBatch, None] = {}
        self._failed: list[ProducerBatch] = []
        self._deadlines: list[tuple[float, int, ProducerBatch]] = []
        self._tie_breaker = itertools.count()
        self._flushes: list[Flush] = []
        self._node_times: dict[int, tuple[float, float]] = {}  # when last ready, when last drained
        self._closed = False

    # -- callers of send ----------------------------------------------------------------------------------------------

    def append_columns(
        self,
        topic: str,
        columns: RecordColumns,
        sizes: NDArray[np.int64],
        partitions: NDArray[np.int32],
        rows: NDArray[np.int64],
        call: object,
    ) -> Appended:
        """Stage rows; blocks up to max.block.ms for the memory of each chunk.

        `sizes` = record_size_bounds(columns); `partitions` are all valid; `rows` = positions in what the caller gave
        (np.arange if nothing was filtered), told back in BatchPart.rows.
        """
        ends = np.cumsum(sizes)
        start, row_count = 0, columns.num_rows
        while start < row_count:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + self._group_bytes_max, "right"))
            stop = min(max(stop, start + 1), start + _CHUNK_ROWS_MAX, row_count)
            chunk = columns if stop - start == row_count else columns.slice(start, stop - start)
            run = Run(chunk, sizes[start:stop], partitions[start:stop], rows[start:stop], call)
            try:
                self._stage_run(topic, run, int(ends[stop - 1]) - before)
            except KafkaSinkError as error:
                return Appended(start, error)
            start = stop
        return Appended(row_count)

    def append_record(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size: int,
        call: object,
    ) -> None:
        """Stage one record; `size` is a bound of its encoded size. Raises BufferExhaustedError after max.block.ms."""
        reserved = self._reserve(size, size)
        record = StagedRecord(key, value, headers, timestamp_ms, partition, size, call)
        with self._lock:
            stage = self._open_stage(topic, reserved)
            first = not stage.row_count
            stage.add_record(record, reserved, self._clock())
            full = self._is_full(stage)
        self._after_staging(stage, first, full)

    def partition_loads(self, topic: str, snapshot: ClusterSnapshot) -> PartitionLoads | None:
        """For the adaptive partitioner; None while not all partitions have been written to."""
        info = snapshot.topics.get(topic)
        if info is None or not info.partitions:
            return None
        indexes = [partition.index for partition in info.partitions]
        with self._lock:
            lengths = self._queues.lengths(topic, indexes)
            if lengths is None:
                return None
            usable = [
                (partition.index, length)
                for partition, length in zip(info.partitions, lengths, strict=True)
                if partition.leader in snapshot.nodes and not self._is_stuck(partition.leader)
            ]
        return PartitionLoads([index for index, _ in usable], [length for _, length in usable], len(indexes))

    def _stage_run(self, topic: str, run: Run, size: int) -> None:
        reserved = self._reserve(size, run.columns.nbytes)
        with self._lock:
            stage = self._open_stage(topic, reserved)
            first = not stage.row_count
            stage.add_run(run, size, reserved, self._clock())
            full = self._is_full(stage)
        self._after_staging(stage, first, full)

    def _reserve(self, encoded: int, staged: int) -> int:
        """Bytes for both forms. One record that is larger than half of the memory gets all of it."""
        if encoded > self._pool.bytes_max:
            raise RecordTooLargeError(
                f"A record of up to {encoded} bytes does not fit into buffer.memory ({self._pool.bytes_max} bytes)."
            )
        wanted = min(encoded + max(encoded, staged), self._pool.bytes_max)
        if not self._pool.try_reserve(wanted):
            self._pool.reserve(wanted, self._config.max_block_ms, self._wakeup)
        return wanted

    def _open_stage(self, topic: str, reserved: int) -> _TopicStage:
        if self._closed:
            self._pool.release(reserved)
            raise ProducerClosedError("The producer was closed.")
        stage = self._stages.get(topic)
        if stage is None:
            stage = self._stages[topic] = _TopicStage(topic)
        return stage

    def _is_full(self, stage: Stage) -> bool:
        enough = min(self._group_bytes_max, self._config.batch_size * len(stage.hit))
        return stage.bytes >= enough or stage.row_count >= _STAGE_ROWS_MAX

    def _after_staging(self, stage: _TopicStage, first: bool, full: bool) -> None:
        if full:
            self._group(stage)
        elif first:
            self._wakeup()  # the sender has a new linger to wait for

    # -- grouping -----------------------------------------------------------------------------------------------------

    def _group(self, stage: _TopicStage) -> None:
        """Turn all that a stage holds into batches."""
        with stage.group_lock:
            with self._lock:
                taken = stage.take()
            if not taken.runs:
                return
            lease = MemoryLease(self._pool, taken.reserved)
            try:
                encoded = sum(self._encode(stage.topic, runs, taken, lease) for runs in compatible(taken.runs))
                lease.shrink_to(encoded if self._codec is Codec.NONE else 2 * encoded)
            finally:
                lease.let_go()
        self._wakeup()

    def _encode(self, topic: str, runs: Sequence[Run], taken: Taken, lease: MemoryLease) -> int:
        """Make batches of some runs; returns the bytes that they have become."""
        grouped = group(runs)
        with self._lock:
            queues = [self._queues.get(TopicPartition(topic, partition)) for partition in grouped.partitions]
            open_batches = [self._pin_open_batch(queue) for queue in queues]
        batch_bytes_max = self._batch_bytes_max(topic)
        try:
            plan = plan_batches(grouped.sizes, _slices(grouped, open_batches), batch_bytes_max)
            pieces = encode(grouped.columns, plan, self._wall_clock_ms())
        except Exception as error:
            # Whatever it was, the rows must not vanish: their calls are told.
            self._give_up(topic, grouped, open_batches, error)
            return 0
        to_close: list[ProducerBatch] = []
        with self._lock:
            self._enqueue(queues, open_batches, grouped, list(zip(plan, pieces, strict=True)), taken, lease, to_close)
        self._close_pinned(to_close)
        return sum(len(piece.segment) for piece in pieces)

    def _pin_open_batch(self, queue: PartitionQueue) -> ProducerBatch | None:
        batch = queue.open_batch
        if batch is not None:
            batch.pinned = True
            self._queues.place(queue, self._clock())
        return batch

    def _enqueue(
        self,
        queues: Sequence[PartitionQueue],
        open_batches: Sequence[ProducerBatch | None],
        grouped: Grouped,
        planned: Iterable[tuple[BatchSlice, EncodedPiece]],
        taken: Taken,
        lease: MemoryLease,
        to_close: list[ProducerBatch],
    ) -> None:
        """Put encoded rows into the open batches and into new ones. What is full is left pinned, to be closed."""
        now = self._clock()
        current = list(open_batches)
        for cut, piece in planned:
            queue, batch = queues[cut.slice_index], current[cut.slice_index]
            if not cut.first_offset_delta or batch is None:
                if batch is not None:
                    to_close.append(batch)
                batch = current[cut.slice_index] = self._new_batch(queue, taken.oldest_ms)
            batch.append(
                piece.segment,
                record_count=piece.record_count,
                base_timestamp=piece.base_timestamp,
                max_timestamp=piece.max_timestamp,
                parts=grouped.parts(cut.start, cut.stop, cut.first_offset_delta),
                leases=(lease,),
            )
        limit = self._batch_bytes_max(queues[0].topic_partition.topic)
        for batch in current:
            if batch is not None and batch.size_bytes + batch.body_bytes // max(1, batch.record_count) > limit:
                to_close.append(batch)
        waiting = set(to_close)
        for queue, batch in zip(queues, current, strict=True):
            if batch is not None and batch not in waiting:
                batch.pinned = False
            self._queues.place(queue, now)

    def _new_batch(self, queue: PartitionQueue, created_ms: float) -> ProducerBatch:
        batch = ProducerBatch(
            queue.topic_partition, created_ms=created_ms, deadline_ms=created_ms + self._config.delivery_timeout_ms
        )
        batch.pinned = True
        queue.batches.append(batch)
        self._track(batch)
        return batch

    def _close_pinned(self, batches: Sequence[ProducerBatch]) -> None:
        """Compress outside the lock, then let the sender have them."""
        for batch in batches:
            self._close_batch(batch)
        with self._lock:
            now = self._clock()
            for batch in batches:
                batch.pinned = False
                self._queues.place(self._queues.get(batch.topic_partition), now)

    def _close_batch(self, batch: ProducerBatch) -> None:
        batch.close(self._codec, self._config.compression_level)
        if self._codec is not Codec.NONE and batch.uncompressed_bytes:
            ratio = batch.body_bytes / batch.uncompressed_bytes
            self._ratios.update(batch.topic_partition.topic, self._codec, ratio)

    def _batch_bytes_max(self, topic: str) -> int:
        """Bytes of a batch before compression; as many as are expected to become batch.size."""
        if self._codec is Codec.NONE:
            return self._config.batch_size
        ratio = self._ratios.get(topic, self._codec) * _RATIO_SAFETY
        most = max(self._config.batch_size, self._config.max_request_size)
        return min(int(self._config.batch_size / ratio), most)

    def _give_up(
        self, topic: str, grouped: Grouped, open_batches: Sequence[ProducerBatch | None], error: Exception
    ) -> None:
        with self._lock:
            now = self._clock()
            for batch in open_batches:
                if batch is not None:
                    batch.pinned = False
                    self._queues.place(self._queues.get(batch.topic_partition), now)
            self._failed += self._stillborn(topic, grouped, error)

    def _stillborn(self, topic: str, grouped: Grouped, error: Exception) -> list[ProducerBatch]:
        """Batches that have never had bytes, to tell the calls of rows that cannot be sent."""
        batches = []
        for index, partition in enumerate(grouped.partitions):
            start, stop = grouped.starts[index], grouped.starts[index + 1]
            batch = ProducerBatch(TopicPartition(topic, partition), created_ms=0, deadline_ms=INFINITE_MS)
            batch.record_count = stop - start
            batch.parts = grouped.parts(start, stop, 0)
            batch.fail(error)
            self._incomplete[batch] = None
            batches.append(batch)
        return batches

    def _track(self, batch: ProducerBatch) -> None:
        self._incomplete[batch] = None
        if len(self._deadlines) > 2 * len(self._incomplete) + _DEAD_DEADLINES_MAX:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (batch.deadline_ms, next(self._tie_breaker), batch))

    # -- sender thread ------------------------------------------------------------------------------------------------

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheck:
        """Group what has lingered; which nodes have a batch that may be sent?"""
        hurry = self._closed or bool(self._flushes) or self._pool.waiters > 0
        next_ms = INFINITE_MS
        for stage in list(self._stages.values()):
            if not stage.row_count:
                continue
            linger_ends_ms = stage.oldest_ms + self._config.linger_ms
            if hurry or linger_ends_ms <= now:
                self._group(stage)
            else:
                next_ms = min(next_ms, linger_ends_ms)
        with self._lock:
            self._queues.set_snapshot(snapshot, now)
            self._queues.set_hurry(hurry, now)
            self._queues.fire_timers(now)
            next_ms = min(next_ms, self._queues.next_due_ms())
            return ReadyCheck(
                self._queues.sendable_nodes(), max(0.0, next_ms - now), self._queues.topics_without_leader()
            )

    def drain(
        self, snapshot: ClusterSnapshot, node_ids: Iterable[int], max_request_size: int, now: float, gate: DrainGate
    ) -> dict[int, list[ProducerBatch]]:
        """Take at most one batch per partition and `max_request_size` bytes per node; they are closed and IN_FLIGHT."""
        drained: dict[int, list[ProducerBatch]] = {}
        with self._lock:
            self._queues.set_snapshot(snapshot, now)
            for node_id in node_ids:
                batches = self._queues.take(
                    node_id, max_request_size, now, lambda batch, node=node_id: gate.admit(batch, node, now)
                )
                if batches:
                    drained[node_id] = batches
        for batches in drained.values():
            for batch in batches:
                self._close_batch(batch) if batch.state is BatchState.OPEN else None
                batch.depart(now)
        return drained

    def recheck(self, topic_partition: TopicPartition | None = None) -> None:
        """The gate may decide otherwise now, for one partition or for all.

        Done by itself by reenqueue, split_and_reenqueue, finish and unmute.
        """
        with self._lock:
            self._queues.bring_back(topic_partition, self._clock())

    def mute(self, topic_partition: TopicPartition) -> None:
        """Keep a partition's batches back, so that those in flight are settled first."""
        self._set_muted(topic_partition, True)

    def unmute(self, topic_partition: TopicPartition) -> None:
        """The opposite of mute."""
        self._set_muted(topic_partition, False)

    def _set_muted(self, topic_partition: TopicPartition, muted: bool) -> None:
        with self._lock:
            queue = self._queues.get(topic_partition)
            queue.muted, queue.aside = muted, False
            self._queues.place(queue, self._clock())

    def reenqueue(self, batch: ProducerBatch, now: float) -> None:
        """Send it again after its backoff. Its request must be off the wire. Kept in sequence order."""
        with self._lock:
            batch.requeue(backoff_until_ms=now + self._backoff.after(batch.attempts))
            queue = self._queues.get(batch.topic_partition)
            queue.insert_in_sequence(batch)
            queue.aside = False
            self._queues.place(queue, now)

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Replace a batch that was refused as too large by smaller ones, with consecutive sequences from its base."""
        topic = batch.topic_partition.topic
        if self._codec is not Codec.NONE:
            observed = batch.body_bytes / max(1, batch.uncompressed_bytes)
            self._ratios.reset(topic, self._codec, max(1.0, observed))
        limit = batch.uncompressed_bytes // 2 if batch.is_split else self._config.batch_size
        children = split_batch(batch, limit, self._config.compression_level)
        with self._lock:
            queue = self._queues.get(batch.topic_partition)
            for child in reversed(children):
                queue.insert_in_sequence(child)
                self._track(child)
            queue.aside = False
            self._queues.place(queue, now)
            for flush in self._flushes:
                if batch in flush.batches:
                    flush.batches.update(children)
            batch.split_up()
            self._forget(batch)
        return children

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """Batches whose delivery.timeout.ms has passed, each told once.

        Queued ones are taken out of their queue, those in flight stay in flight. The caller fails them, tells their
        calls and then calls finish().
        """
        expired: list[ProducerBatch] = []
        pinned: list[tuple[float, int, ProducerBatch]] = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now:
                entry = heapq.heappop(self._deadlines)
                batch = entry[2]
                if batch.pinned:
                    pinned.append(entry)
                elif not batch.done:
                    self._leave_queue(batch, now)
                    expired.append(batch)
            for entry in pinned:
                heapq.heappush(self._deadlines, entry)
        return expired

    def failed_batches(self) -> list[ProducerBatch]:
        """Batches that could not be encoded: DONE, with their error. The caller tells their calls, then finish()."""
        with self._lock:
            failed, self._failed = self._failed, []
        return failed

    def next_expiry_ms(self) -> float:
        """When the next batch expires, inf if there is none."""
        with self._lock:
            while self._deadlines and self._deadlines[0][2].done:
                heapq.heappop(self._deadlines)
            return self._deadlines[0][0] if self._deadlines else INFINITE_MS

    def finish(self, batch: ProducerBatch) -> None:
        """The batch is DONE and its calls have been told: forget it, wake flushes. Once per batch."""
        with self._lock:
            self._forget(batch)
            self._queues.bring_back(batch.topic_partition, self._clock())

    def node_latency(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Note when a node was last ready and last drained (partitioner.availability.timeout.ms)."""
        with self._lock:
            _, drained_ms = self._node_times.get(node_id, (now, now))
            self._node_times[node_id] = (now, now if can_drain else drained_ms)

    def _is_stuck(self, node_id: int | None) -> bool:
        timeout_ms = self._config.partitioner_availability_timeout_ms
        times = self._node_times.get(node_id) if node_id is not None else None
        return bool(timeout_ms) and times is not None and times[0] - times[1] > timeout_ms

    def _leave_queue(self, batch: ProducerBatch, now: float) -> None:
        queue = self._queues.get(batch.topic_partition)
        if batch.state is not BatchState.IN_FLIGHT and batch in queue.batches:
            queue.batches.remove(batch)
            self._queues.place(queue, now)

    def _forget(self, batch: ProducerBatch) -> None:
        self._incomplete.pop(batch, None)
        for flush in self._flushes:
            flush.batches.discard(batch)
            if not flush.batches:
                flush.done.set()

    # -- flush and close ----------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush:
        """From now on everything is sendable at once; await_flush waits for it and ends the flush."""
        flush = Flush()
        with self._lock:
            self._flushes.append(flush)
        for stage in list(self._stages.values()):
            self._group(stage)
        with self._lock:
            flush.batches.update(self._incomplete)
            if not flush.batches:
                flush.done.set()
        self._wakeup()
        return flush

    def await_flush(self, flush: Flush, timeout_ms: float | None = None) -> bool:
        """Wait until all that was appended before begin_flush is finished; False on timeout."""
        try:
            return flush.done.wait(None if timeout_ms is None else max(0.0, timeout_ms) / 1000)
        finally:
            with self._lock:
                self._flushes.remove(flush)

    def flush_in_progress(self) -> bool:
        return bool(self._flushes)

    def has_incomplete(self) -> bool:
        """Is anything staged, queued or in flight?"""
        with self._lock:
            return bool(self._incomplete) or any(stage.row_count for stage in self._stages.values())

    def has_undrained(self) -> bool:
        """Is anything staged or queued?"""
        with self._lock:
            return any(queue.batches for queue in self._queues) or any(s.row_count for s in self._stages.values())

    def close(self) -> None:
        """No more appends: blocked ones end with ProducerClosedError; everything queued becomes sendable."""
        with self._lock:
            self._closed = True
        self._pool.close()
        self._wakeup()

    def abort_incomplete(self, error: Exception) -> list[ProducerBatch]:
        """Fail everything staged, queued and in flight; the caller tells the calls and then calls finish()."""
        return self._abort(error, in_flight_too=True)

    def abort_undrained(self, error: Exception) -> list[ProducerBatch]:
        """Fail everything that is not in flight; the caller tells the calls and then calls finish()."""
        return self._abort(error, in_flight_too=False)

    def _abort(self, error: Exception, *, in_flight_too: bool) -> list[ProducerBatch]:
        aborted: list[ProducerBatch] = []
        for stage in list(self._stages.values()):
            with stage.group_lock, self._lock:  # nobody is grouping this topic now, so nothing of it is pinned
                aborted += self._abort_stage(stage, error)
                aborted += self._abort_batches(stage.topic, error, in_flight_too=in_flight_too)
        return aborted

    def _abort_stage(self, stage: _TopicStage, error: Exception) -> list[ProducerBatch]:
        taken = stage.take()
        self._pool.release(taken.reserved)
        return [batch for runs in compatible(taken.runs) for batch in self._stillborn(stage.topic, group(runs), error)]

    def _abort_batches(self, topic: str, error: Exception, *, in_flight_too: bool) -> list[ProducerBatch]:
        now = self._clock()
        aborted = []
        for batch in list(self._incomplete):
            if batch.topic_partition.topic != topic or batch.done:
                continue
            if in_flight_too or batch.state is not BatchState.IN_FLIGHT:
                self._leave_queue(batch, now)
                batch.fail(error)
                aborted.append(batch)
        return aborted


def _slices(grouped: Grouped, open_batches: Sequence[ProducerBatch | None]) -> list[PartitionSlice]:
    slices = []
    for index, batch in enumerate(open_batches):
        start, stop = grouped.starts[index], grouped.starts[index + 1]
        if batch is None:
            slices.append(PartitionSlice(start, stop))
        else:
            slices.append(PartitionSlice(start, stop, batch.record_count, batch.size_bytes, batch.base_timestamp))
    return slices


__all__ = [
    "Appended",
    "BufferExhaustedError",
    "DrainGate",
    "Flush",
    "PartitionLoads",
    "ReadyCheck",
    "RecordAccumulator",
]
