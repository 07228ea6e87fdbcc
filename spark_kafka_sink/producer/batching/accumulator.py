"""RecordAccumulator: the queues of batches between the callers of send and the sender thread.

    append_columns, append_record      rows are staged (staging.py); their memory is reserved first
    grouping.py                        rows -> ordered by partition -> encoded -> batches in partition_queues.py
    ready, drain                       batches -> the sender
    reenqueue, split_and_reenqueue     back again
    finish                             forgotten

Grouping happens on the caller's thread when a topic's stage is full, so that encoding and sending overlap (Arrow and
numpy release the interpreter's lock), and on the sender's thread when linger.ms has passed, memory is short, or a flush
or the close is under way; but rows stay staged a while longer where they could not leave yet (stages.py).

Memory. What is reserved when rows are staged is for both of their forms: their Arrow bytes, and the upper bound of what
they are encoded to. After encoding the first part is given back; with compression it is kept until the batches are
closed, as room for the compressed form. So nobody ever waits for memory while he holds rows that others wait for, and
neither encoding nor compressing can run out of it. The encoded rows of one grouping share a lease, see buffer_pool.py.
A call that is larger than the memory is taken in chunks; max.block.ms is for each chunk, so that a large call to slow
brokers does not fail while it makes progress. A single record that needs more than half of the memory gets all of it.
A record of send() is charged for its future as well: small records take less room than that.
On top of buffer.memory comes, for a moment, the working copy of one grouping per thread: a quarter of it at most.

Locks. _lock guards stages, queues and batches that are not in flight; it is held for moments, never while encoding,
compressing or waiting. A stage's group_lock is taken before _lock, never after. What is marked "sender thread" is
called by that thread alone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.errors import KafkaSinkError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batching.batch import IN_FLIGHT, OPEN, ProducerBatch, TopicPartition
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.batching.grouping import Grouping
from spark_kafka_sink.producer.batching.incomplete import Flush, IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS, DrainGate, PartitionQueues
from spark_kafka_sink.producer.batching.row_origins import FUTURE_BYTES
from spark_kafka_sink.producer.batching.split import split_batch
from spark_kafka_sink.producer.batching.stages import Stages
from spark_kafka_sink.producer.batching.staging import Headers, Run, Stage, StagedRecord, chunks
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.node_latency import NodeLatency
from spark_kafka_sink.producer.partitioner import PartitionLoads
from spark_kafka_sink.records.columns import RecordColumns

_CHUNK_ROWS_MAX = 16_384
_CHUNK_SHARE = 16
"""A call waits for this part of the memory at a time, counted in encoded bytes."""


class ReadyCheck(NamedTuple):
    """What the sender can do now, and when to look again if nothing happens."""

    ready_node_ids: frozenset[int]
    next_check_delay_ms: float
    """inf if nothing waits for a time."""
    unknown_leader_topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows of a call were taken, from the first on, and why the others were not."""

    rows: int
    error: KafkaSinkError | None = None


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
        random: Random,
    ) -> None:
        """`wakeup` makes the sender look again; it is called by appends, from any thread."""
        self._config = config
        self._pool = pool
        self._clock = clock
        self._wakeup = wakeup
        self._chunk_bytes_max = max(1, config.buffer_memory // _CHUNK_SHARE)
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._lock = threading.Lock()
        self._queues = PartitionQueues(config.linger_ms)
        self._stages = Stages(config, self._queues)
        self._incomplete = IncompleteBatches()
        self._grouping = Grouping(
            config, pool, self._lock, self._queues, self._incomplete, clock=clock, wall_clock_ms=wall_clock_ms
        )
        self._node_latency = NodeLatency(config.partitioner_availability_timeout_ms)
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

        `sizes` = record_size_bounds(columns); `partitions` are all valid; `rows` = positions in what the caller gave,
        told back in BatchPart.rows (owners.py).
        """
        for start, stop, size in chunks(sizes, _CHUNK_ROWS_MAX, self._chunk_bytes_max):
            chunk = columns if stop - start == len(sizes) else columns.slice(start, stop - start)
            run = Run(chunk, sizes[start:stop], partitions[start:stop], rows[start:stop], call)
            try:
                self._stage_run(topic, run, size)
            except KafkaSinkError as error:
                return Appended(start, error)
        return Appended(len(sizes))

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
        reserved = 2 * size + FUTURE_BYTES
        if not self._pool.try_reserve(reserved):
            reserved = self._reserve(size, size + FUTURE_BYTES)
        record = StagedRecord(key, value, headers, timestamp_ms, partition, size, call)
        with self._lock:
            stage = self._stage_of(topic, reserved)
            first = not stage.row_count
            stage.add_record(record, reserved, self._clock() if first else 0.0)
            full = self._stages.is_full(stage)
        if first or full:
            self._after_staging(stage, first=first, full=full)

    def partition_loads(self, topic: str, snapshot: ClusterSnapshot) -> PartitionLoads | None:
        """For the adaptive partitioner; None while not all partitions have been written to."""
        info = snapshot.topics.get(topic)
        if info is None or not info.partitions:
            return None
        with self._lock:
            lengths = self._queues.lengths(topic, [partition.index for partition in info.partitions])
            return None if lengths is None else self._node_latency.usable(info, lengths, snapshot)

    def _stage_run(self, topic: str, run: Run, size: int) -> None:
        reserved = self._reserve(size, run.columns.nbytes)
        with self._lock:
            stage = self._stage_of(topic, reserved)
            first = not stage.row_count
            before = stage.reserved
            try:
                stage.add_run(run, size, reserved, self._clock())
            except BaseException:
                if stage.reserved == before:
                    self._pool.release(reserved)
                raise
            full = self._stages.is_full(stage)
        self._after_staging(stage, first=first, full=full)

    def _reserve(self, encoded: int, staged: int) -> int:
        """Bytes for both forms, and with compression for the compressed one in the place of the staged one."""
        if encoded > self._pool.bytes_max:
            raise RecordTooLargeError(
                f"A record of {encoded} bytes does not fit into buffer.memory ({self._pool.bytes_max} bytes)."
            )
        wanted = min(encoded + max(encoded, staged), self._pool.bytes_max)
        if not self._pool.try_reserve(wanted):
            self._pool.reserve(wanted, self._config.max_block_ms, self._wakeup)
        return wanted

    def _stage_of(self, topic: str, reserved: int) -> Stage:
        if self._closed:
            self._pool.release(reserved)
            raise ProducerClosedError("The producer was closed.")
        return self._stages.of(topic)

    def _after_staging(self, stage: Stage, *, first: bool, full: bool) -> None:
        if full:
            self._grouping.run(stage)
        if full or first:  # there is something to send, or a new linger to wait for
            self._wakeup()

    # -- sender thread ------------------------------------------------------------------------------------------------

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheck:
        """Group what has lingered; which nodes have a batch that may be sent?"""
        at_once = self._closed or self._incomplete.flushing
        hurry = at_once or self._pool.waiters > 0
        due: list[Stage] = []
        next_ms = INFINITE_MS
        with self._lock:
            self._queues.set_snapshot(snapshot, now)
            self._queues.set_hurry(hurry, now)
            self._queues.fire_timers(now)
            for stage in self._stages:
                if stage.row_count:
                    due_ms = self._stages.due_ms(stage, now, hurry=hurry)
                    if at_once or due_ms <= now:
                        due.append(stage)
                    elif due_ms < next_ms:
                        next_ms = due_ms
            if not due:
                return self._ready_check(now, next_ms)
        for stage in due:
            self._grouping.run(stage)
        with self._lock:
            return self._ready_check(now, next_ms)

    def _ready_check(self, now: float, next_ms: float) -> ReadyCheck:
        delay_ms = max(0.0, min(next_ms, self._queues.next_due_ms()) - now)
        return ReadyCheck(self._queues.sendable_nodes(), delay_ms, self._queues.topics_without_leader())

    def drain(
        self, snapshot: ClusterSnapshot, node_ids: Iterable[int], max_request_size: int, now: float, gate: DrainGate
    ) -> dict[int, list[ProducerBatch]]:
        """Take at most one batch per partition and `max_request_size` bytes per node; they are closed and IN_FLIGHT."""
        drained: dict[int, list[ProducerBatch]] = {}
        with self._lock:
            self._queues.set_snapshot(snapshot, now)
            for node_id in node_ids:
                batches = self._queues.take(node_id, max_request_size, now, gate)
                if batches:
                    drained[node_id] = batches
        for batch in itertools.chain.from_iterable(drained.values()):
            if batch.state is OPEN:
                self._grouping.close_batch(batch)
            batch.depart(now)
        return drained

    def recheck(self, topic_partition: TopicPartition | None = None) -> None:
        """The gate may decide otherwise now, for one partition or for all.

        Done by itself by reenqueue, split_and_reenqueue and finish.
        """
        with self._lock:
            now = self._clock()
            for queue in self._queues if topic_partition is None else (self._queues.get(topic_partition),):
                self._queues.bring_back(queue, now)

    def reenqueue(self, batch: ProducerBatch, now: float, error: Exception) -> None:
        """Send it again after its backoff. Its request must be off the wire. Kept in sequence order."""
        with self._lock:
            batch.requeue(backoff_until_ms=now + self._backoff.after(batch.attempts), error=error)
            self._put_back([batch], now)

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Replace a batch that was refused as too large by smaller ones, with consecutive sequences from its base.

        The batch itself is done and forgotten; its calls are told by the smaller ones.
        """
        self._grouping.forget_ratio(batch)
        limit = batch.uncompressed_bytes // 2 if batch.is_split else self._config.batch_size
        children = split_batch(batch, limit, self._config.compression_level)
        with self._lock:
            for child in children:
                self._incomplete.add(child)
            self._incomplete.forget(batch, successors=children)
            batch.split_up()
            self._put_back(children, now)
        return children

    def _put_back(self, batches: list[ProducerBatch], now: float) -> None:
        queue = self._queues.get(batches[0].topic_partition)
        for batch in reversed(batches):
            if batch.leader_epoch != queue.leader_epoch:
                batch.attempts_at_leader_change = batch.attempts
            queue.insert_in_sequence(batch)
        self._queues.bring_back(queue, now)
        self._queues.place(queue, now)

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """Batches whose delivery.timeout.ms has passed, each told once.

        Queued ones are taken out of their queue, those in flight stay in flight. The caller fails them, tells their
        calls and then calls finish().
        """
        if now < self.next_expiry_ms():
            return []
        with self._lock:
            expired = self._incomplete.take_expired(now)
            for batch in expired:
                self._queues.remove(batch, now)
        return expired

    def withdraw(self, batch: ProducerBatch) -> None:
        """Take a batch out of its queue. The caller fails it, tells its calls and then calls finish()."""
        with self._lock:
            self._queues.remove(batch, self._clock())

    def next_expiry_ms(self) -> float:
        """No batch expires before; inf if there is none. No lock: who adds a batch wakes the sender."""
        return self._incomplete.next_deadline_ms

    def failed_batches(self) -> list[ProducerBatch]:
        """Batches that could not be encoded: DONE, with their error. The caller tells their calls, then finish()."""
        if not self._grouping.some_failed:  # what fails a moment later has woken the sender
            return []
        with self._lock:
            return self._grouping.take_failed()

    def finish(self, *batches: ProducerBatch) -> None:
        """The batches are DONE and their calls have been told: forget them, wake flushes. Once per batch."""
        with self._lock:
            self._incomplete.forget(*batches)
            if self._queues.some_aside:
                for batch in batches:
                    self._queues.bring_back(self._queues.get(batch.topic_partition), self._clock())

    def node_latency(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Note when a node was last ready and last drained (partitioner.availability.timeout.ms)."""
        with self._lock:
            self._node_latency.note(node_id, now, can_drain=can_drain)

    # -- flush and close ----------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush:
        """From now on everything is sendable at once; await_flush waits for what was there, and ends the flush."""
        with self._lock:
            flush = self._incomplete.begin_flush()
            stages = list(self._stages)
        for stage in stages:
            self._grouping.run(stage)
        with self._lock:
            self._incomplete.arm(flush)
        self._wakeup()
        return flush

    def await_flush(self, flush: Flush, timeout_ms: float | None = None) -> bool:
        """Wait until all that was appended before begin_flush is finished; False on timeout."""
        try:
            return flush.wait(timeout_ms)
        finally:
            with self._lock:
                self._incomplete.end_flush(flush)

    def has_incomplete(self) -> bool:
        """Is anything staged, being grouped, queued or in flight?"""
        with self._lock:
            return self._has_unbatched() or len(self._incomplete) > 0

    def has_undrained(self) -> bool:
        """Is anything staged, being grouped or queued?"""
        with self._lock:
            return self._has_unbatched() or any(queue.batches for queue in self._queues)

    def _has_unbatched(self) -> bool:
        return self._grouping.under_way > 0 or any(stage.row_count for stage in self._stages)

    def close(self) -> None:
        """No more appends: blocked ones end with ProducerClosedError; everything queued becomes sendable."""
        with self._lock:
            self._closed = True
        self._pool.close()
        self._wakeup()

    def abort_incomplete(self, error: Exception, *, in_flight_too: bool = True) -> list[ProducerBatch]:
        """Fail everything staged, queued and in flight. Sender thread; it tells the calls and then calls finish()."""
        aborted: list[ProducerBatch] = []
        for stage in self._stages:
            with stage.group_lock, self._lock:  # nobody is grouping this topic now, so nothing of it is pinned
                taken = stage.take()
                self._pool.release(taken.reserved)
                aborted += self._grouping.stillborn(stage.topic, taken.runs, error)
                now = self._clock()
                for batch in self._incomplete:
                    flying = batch.state is IN_FLIGHT
                    if batch.topic_partition.topic == stage.topic and not batch.done and (in_flight_too or not flying):
                        self._queues.remove(batch, now)
                        batch.fail(error)
                        aborted.append(batch)
        return aborted

    def abort_undrained(self, error: Exception) -> list[ProducerBatch]:
        """Fail everything that is not in flight. Sender thread; it tells the calls and then calls finish()."""
        return self.abort_incomplete(error, in_flight_too=False)
