"""RecordAccumulator: buffers the records of callers until the sender thread drains them in batches.

    append_columns, append_record      stage rows, for which memory is reserved first (staging.py)
    ready                              fills batches with rows that have lingered, and finds nodes with ready batches
    drain                              hands batches over to the sender
    reenqueue, split_and_reenqueue     return batches to their queues
    remove_completed                   forgets batches that are acknowledged or have failed

batch_filler.py groups staged rows by partition, encodes them and appends them to batches. It runs on the caller's
thread when the stage of a topic is full, so that encoding and sending overlap (Arrow and numpy release the GIL). It
runs on the sender thread when linger.ms has passed, when memory is short, and while a flush or the close is in
progress.

Memory. The reservation of staged rows covers both their Arrow bytes and their encoded form: the upper bound of the
encoded size, and twice that with compression, because the compressed form needs room until the batches are closed. So
no thread waits for memory while it holds rows that others wait for, and neither encoding nor compression can run out of
memory. While a thread encodes a stage, memory beyond buffer.memory is used for the second form of its rows: half of
buffer.memory for a stage that has just become full, and more if other rows were staged behind rows that remained. If
stages of several topics are encoded concurrently, it is at most as much as buffer.memory. The encoded rows of one
buffer share a lease (buffer_pool.py). When memory is short, the last few batches of a buffer are copied out of it. The
rows of a call that is larger than the pool are staged in chunks. max.block.ms applies to each chunk, so that a large
call to slow brokers does not fail while it makes progress. A record of send() also reserves memory for its future.

Locks. `_lock` guards stages, queues and batches that are not in flight. It is held only briefly, never while encoding,
compressing or waiting. The fill lock of a topic is acquired before `_lock`, never after it. The lock of the transaction
manager is acquired while `_lock` is held (`drain` asks whether a batch may be sent), never the other way round. Only
the sender thread calls the methods in the section "sender thread", except `unmute`, which any thread may call.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.backoff import ExponentialBackoff, SharedRetryBackoff
from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batching.batch import DRAINED, IN_FLIGHT, ProducerBatch
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, WaitForEvent
from spark_kafka_sink.producer.batching.incomplete_batches import Flush, IncompleteBatches
from spark_kafka_sink.producer.batching.node_latency_stats import NodeLatencyStats
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS, AdmitBatch, PartitionQueues
from spark_kafka_sink.producer.batching.staging import ASSIGNMENT_DELAY_MS, SingleRecord, Stage, split_into_chunks
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import FUTURE_BYTES, Callback, SendFuture
from spark_kafka_sink.producer.partitioner import Partitioner, PartitionLoads
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.compression import Codec

_MAX_CHUNK_ROWS = 16_384
_CHUNK_DIVISOR = 16
"""The encoded rows of a chunk have at most buffer.memory divided by this, unless the chunk is a single row."""


CountRows = Callable[[int, int, int, float], None]
"""Count rows for the metrics. Arguments: number of rows, their total bytes, bytes of the largest row, time."""


class _LingerSuspension:
    """A running `without_linger` block.

    The accumulator only has a weak reference to it. So the suspension ends even if an interrupt at any line prevents
    its removal.
    """


class ReadyCheckResult(NamedTuple):
    """The nodes that the sender can send to, and the delay until its next check if nothing else happens."""

    ready_node_ids: frozenset[int]
    next_ready_check_delay_ms: float
    """Is inf if no batch becomes ready by the passage of time."""
    unknown_leader_topics: frozenset[str]


class RecordAccumulator:
    """The staged rows, the batches and the memory of a producer."""

    def __init__(  # noqa: PLR0913 - the components that it uses, each by its name
        self,
        config: ProducerConfig,
        pool: BufferPool,
        *,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        wakeup: Callable[[], None],
        wait: WaitForEvent,
        random: Random,
        partitioner: Partitioner,
        count_rows: CountRows,
    ) -> None:
        """`wakeup`: makes the sender check again; called by appends on any thread. `wait`: used to wait for memory."""
        self._config = config
        self.pool = pool
        self._partitioner = partitioner
        self._count_rows = count_rows
        self._clock = clock
        self._wakeup = wakeup
        self._wait = wait
        self._max_chunk_bytes = max(1, config.buffer_memory // _CHUNK_DIVISOR)
        self._lock = threading.Lock()
        self._backoff = SharedRetryBackoff(
            ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        )
        self._queues = PartitionQueues(config.linger_ms, config.max_request_size)
        self._incomplete = IncompleteBatches()
        self._filler = BatchFiller(
            config,
            pool=pool,
            lock=self._lock,
            queues=self._queues,
            incomplete=self._incomplete,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
            assign_partitions=self._assign_partitions,
        )
        self._node_latency_stats = NodeLatencyStats(config.partitioner_availability_timeout_ms)
        self._encoded_copies = 1 if config.codec is Codec.NONE else 2  # compression needs room for a second copy
        self._is_closed = False
        self._linger_suspensions: WeakSet[_LingerSuspension] = WeakSet()

    # -- callers of send ----------------------------------------------------------------------------------------------

    def append_columns(
        self,
        topic: str,
        rows: Rows,
        *,
        max_block_ms: float | None = None,
        check_open: Callable[[], None] | None = None,
    ) -> tuple[int, KafkaSinkError | None]:
        """Stage rows that are assigned to partitions.

        `max_block_ms`: how long to wait for the memory of each chunk; defaults to max.block.ms. `check_open`: raises if
        rows may not be staged any more. It is called after the wait for memory.

        Return the number of staged rows, which are the first ones, and the error that stopped the others.
        """
        for start, stop, nbytes in split_into_chunks(rows.sizes, _MAX_CHUNK_ROWS, self._max_chunk_bytes):
            chunk = rows.slice(start, stop)
            try:
                self._stage_chunk(topic, chunk, nbytes, max_block_ms, check_open)
            except KafkaSinkError as error:
                return start, error
        return len(rows), None

    def append_record(  # noqa: PLR0913 - the properties of a record; an object for them would make send() 10 % slower
        self,
        topic: str,
        record: SingleRecord,
        size: int,
        snapshot: ClusterSnapshot,
        callbacks: tuple[Callback, ...] = (),
        *,
        max_block_ms: Callable[[], float] | None = None,
        check_open: Callable[[], None] | None = None,
    ) -> SendFuture:
        """Stage a single record of at most `size` bytes and return its future.

        The record is assigned to a partition later, by `snapshot` or newer metadata. `max_block_ms`: only called if the
        record has to wait for memory. `check_open`: as for append_columns. Raise BufferExhaustedError if the time is
        up before the memory is available.
        """
        reservation = self._reservation_bytes(size, size, FUTURE_BYTES)
        if not self.pool.try_reserve(reservation):
            self._wait_and_reserve(reservation, None if max_block_ms is None else max_block_ms())
        with self._lock:
            if self._is_closed or check_open is not None:
                self._ensure_open(reservation, check_open)
            stage = self._filler.stages.get(topic)
            is_new = stage is None
            if stage is None:
                stage = self._filler.new_stage(topic, self._clock())
            future = stage.add_record(record, size, reservation, snapshot, callbacks)
            batch_bytes = self._filler.max_batch_body_bytes(topic)
            is_full = stage.is_full(batch_bytes)
            has_new_due_time = is_new or (
                not is_full and stage.schedule_assignment(batch_bytes, self._config.linger_ms, self._clock)
            )
        if is_full or has_new_due_time:
            self._fill_or_wake_sender(topic, is_full=is_full, has_new_due_time=has_new_due_time)
        return future

    def partition_loads(
        self, topic: str, snapshot: ClusterSnapshot, candidates: Sequence[int]
    ) -> PartitionLoads | None:
        """Return the queue lengths of these partitions, or None if one of them was never written to."""
        info = snapshot.topics.get(topic)
        if info is None or not info.partitions:
            return None
        with self._lock:
            lengths = self._queues.queue_lengths(topic, candidates)
            if lengths is None:
                return None
            partitions = [info.partition(index) for index in candidates]
            return self._node_latency_stats.available_partition_loads(partitions, lengths, snapshot)

    def _assign_partitions(
        self,
        topic: str,
        rows: Rows,
        snapshot: ClusterSnapshot,
    ) -> NDArray[np.int32]:
        """Return the partitions of single records, and count the records.

        Counting them one by one in append_record would cost as much as staging them.
        """
        self._count_rows(len(rows), int(rows.sizes.sum()), int(rows.sizes.max()), self._clock())
        loads = partial(self.partition_loads, topic, snapshot)
        return self._partitioner.assign(topic, rows.columns, rows.sizes, rows.requested_partitions, snapshot, loads)

    def _stage_chunk(
        self,
        topic: str,
        rows: Rows,
        encoded_bytes: int,
        max_block_ms: float | None,
        check_open: Callable[[], None] | None,
    ) -> None:
        """Reserve memory for rows and add them to the stage of their topic."""
        reservation = self._reservation_bytes(encoded_bytes, rows.columns.nbytes, rows.row_indices.nbytes)
        if not self.pool.try_reserve(reservation):
            self._wait_and_reserve(reservation, max_block_ms)
        with self._lock:
            self._ensure_open(reservation, check_open)
            stage = self._filler.stages.get(topic)
            is_new = stage is None
            if stage is None:
                stage = self._filler.new_stage(topic, self._clock())
            stage.add(rows, reservation)
            batch_bytes = self._filler.max_batch_body_bytes(topic)
            is_full = stage.is_full(batch_bytes)
            has_new_due_time = is_new or (
                not is_full and stage.schedule_assignment(batch_bytes, self._config.linger_ms, self._clock)
            )
        self._fill_or_wake_sender(topic, is_full=is_full, has_new_due_time=has_new_due_time)

    def _ensure_open(self, reservation: int, check_open: Callable[[], None] | None) -> None:
        """Release the reservation and raise if rows may not be staged any more.

        `check_open` is called under the lock. So rows that it admits are seen by `has_incomplete`, and no transaction
        ends before they are staged.
        """
        try:
            if self._is_closed:
                raise ProducerClosedError("The producer was closed.")
            if check_open is not None:
                check_open()
        except KafkaSinkError:
            self.pool.release(reservation)
            raise

    def _fill_or_wake_sender(self, topic: str, *, is_full: bool, has_new_due_time: bool) -> None:
        """Fill batches if the stage is full, and wake the sender if it has to check again.

        `has_new_due_time`: the stage is due at a time that the sender does not know yet.
        """
        if (is_full and self._filler.fill_batches(topic, only_full=True)) or has_new_due_time:
            self._wakeup()

    def _reservation_bytes(self, encoded_bytes: int, staged_bytes: int, overhead_bytes: int) -> int:
        """Return the bytes to reserve for rows: for the larger of their forms, and for their overhead.

        `overhead_bytes`: needed besides the rows until their results are known. Raise RecordTooLargeError if the
        encoded rows do not fit into the pool. If only the reservation does not fit, all of the pool is reserved.
        """
        reservation = overhead_bytes + max(staged_bytes, self._encoded_copies * encoded_bytes)
        if reservation <= self.pool.total_bytes:
            return reservation
        if encoded_bytes > self.pool.total_bytes:
            raise RecordTooLargeError(
                f"A record of {encoded_bytes} bytes does not fit into buffer.memory ({self.pool.total_bytes} bytes)."
            )
        return self.pool.total_bytes

    def _wait_and_reserve(self, reservation: int, max_block_ms: float | None) -> None:
        with self._lock:
            self._filler.free_sparse_leases()
        max_block_ms = self._config.max_block_ms if max_block_ms is None else max_block_ms
        self.pool.reserve(reservation, max_block_ms, self._wait_for_memory)

    def _wait_for_memory(self, woken: threading.Event, timeout_ms: float | None) -> bool:
        self._wakeup()
        return self._wait(woken, timeout_ms)

    @contextmanager
    def without_linger(self) -> Iterator[None]:
        """Suspend linger.ms for all rows while the caller waits for acknowledgements in the `with` block."""
        suspension = _LingerSuspension()
        try:
            self._linger_suspensions.add(suspension)
            self._wakeup()
            yield
        finally:
            self._linger_suspensions.discard(suspension)

    # -- sender thread ------------------------------------------------------------------------------------------------

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheckResult:
        """Fill batches with the rows that have lingered, and return the nodes with batches that can be sent."""
        with self._lock:
            is_flushing = self._is_closed or self._incomplete.is_flush_in_progress
            is_memory_short = self.pool.waiter_count > 0
            is_linger_suspended = is_flushing or is_memory_short or len(self._linger_suspensions) > 0
            self._queues.set_snapshot(snapshot, now)
            self._queues.set_linger_suspended(is_linger_suspended, now)
            self._queues.fire_timers(now)
            if is_memory_short and not is_flushing:
                self._filler.free_sparse_leases()
            flushes = self._incomplete.unarmed_flushes()
            due_topics, next_ms = self._find_due_topics(
                now, is_flushing=is_flushing, is_linger_suspended=is_linger_suspended
            )
            if flushes:
                due_topics = dict.fromkeys(self._filler.known_topics(), False)
            elif not due_topics:
                return self._ready_check_result(now, next_ms)
        for topic, only_full in due_topics.items():
            started_ms = self._clock()
            has_changed = self._filler.fill_batches(topic, only_full=only_full)
            if not only_full:
                with self._lock:
                    self._queues.schedule_fill_pause(topic, started_ms, self._clock())
            elif has_changed:  # records that remain staged may have to be assigned again
                next_ms = min(next_ms, now + ASSIGNMENT_DELAY_MS)
        with self._lock:
            self._incomplete.arm(flushes)
            return self._ready_check_result(now, next_ms)

    def _find_due_topics(
        self, now: float, *, is_flushing: bool, is_linger_suspended: bool
    ) -> tuple[dict[str, bool], float]:
        """Return the topics whose stages are due, and the time at which the next stage is due.

        The value of a topic is True if only full batches are to be filled.
        """
        due_topics: dict[str, bool] = {}
        next_ms = INFINITE_MS
        for stage in self._filler.all_stages():
            due_ms = (
                -INFINITE_MS if is_flushing else self._stage_due_ms(stage, now, is_linger_suspended=is_linger_suspended)
            )
            only_full = due_ms > now
            if only_full:
                next_ms = min(next_ms, due_ms)
            if only_full and stage.assignment_due_ms > now:
                next_ms = min(next_ms, stage.assignment_due_ms)
            elif self._filler.is_being_filled(stage):
                stage.should_recheck = True
            else:
                due_topics[stage.topic] = only_full
        return due_topics, next_ms

    def _stage_due_ms(self, stage: Stage, now: float, *, is_linger_suspended: bool) -> float:
        """Return when batches are filled with the rows of a stage that is not full.

        If linger is suspended, rows that a leader could accept now are due immediately.
        """
        if is_linger_suspended and not self._queues.extra_linger_ms(stage.topic):
            return stage.oldest_row_ms
        due_ms = stage.oldest_row_ms + (0.0 if is_linger_suspended else self._config.linger_ms)
        due_ms = max(due_ms, self._queues.fill_pause_end_ms(stage.topic))
        return due_ms if due_ms > now else due_ms + self._queues.extra_linger_ms(stage.topic)

    def _ready_check_result(self, now: float, next_ms: float) -> ReadyCheckResult:
        delay_ms = max(0.0, min(next_ms, self._queues.next_due_ms()) - now)
        return ReadyCheckResult(self._queues.ready_node_ids(), delay_ms, self._queues.unknown_leader_topics())

    def drain(
        self, snapshot: ClusterSnapshot, node_ids: Iterable[int], max_request_size: int, now: float, admit: AdmitBatch
    ) -> dict[int, list[ProducerBatch]]:
        """Return the batches to send to each node: at most one per partition, and `max_request_size` bytes per node.

        The batches are closed and IN_FLIGHT.
        """
        drained: dict[int, list[ProducerBatch]] = {}
        with self._lock:
            self._queues.set_snapshot(snapshot, now)
            for node_id in node_ids:
                batches = self._queues.drain_node(node_id, max_request_size, now, admit)
                if batches:
                    drained[node_id] = batches
            unclosed = [batch for batch in itertools.chain.from_iterable(drained.values()) if batch.state is DRAINED]
        for batch in unclosed:
            self._filler.close_batch(batch)
        for batch in itertools.chain.from_iterable(drained.values()):
            batch.mark_in_flight(now)
        return drained

    def unmute(self, topic_partition: TopicPartition | None = None) -> None:
        """Unmute the queue of a topic-partition, or all queues, because idempotence may admit the head now.

        `reenqueue`, `split_and_reenqueue` and `remove_completed` include this for the queues of their batches.
        """
        with self._lock:
            now = self._clock()
            for queue in self._queues if topic_partition is None else (self._queues.get(topic_partition),):
                self._queues.unmute(queue, now)

    def reenqueue(self, batch: ProducerBatch, now: float, error: Exception) -> None:
        """Return a batch to its queue in sequence order, to be sent again after its backoff.

        No request of the batch may be in flight.
        """
        with self._lock:
            batch.mark_reenqueued(backoff_until_ms=self._backoff.next_attempt_ms(now, batch.attempts), error=error)
            self._queues.reenqueue([batch], now)

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Replace a batch that was rejected as too large by smaller ones, and return these.

        The rows of the batch get their results from the smaller batches.
        """
        self._filler.reset_compression_ratio(batch)
        # Batches are rarely split, and the import loads the decoder.
        from spark_kafka_sink.producer.batching.batch_splitting import split_batch

        max_bytes = batch.uncompressed_bytes // 2 if batch.is_split_batch else self._config.batch_size
        children = split_batch(batch, max_bytes)
        for child in children:
            self._filler.close_batch(child)
            child.copy_to_own_memory()  # otherwise the parent's buffer would be kept until all of them are done
        with self._lock:
            for child in children:
                self._incomplete.add(child)
            self._incomplete.remove(batch, successors=children)
            batch.mark_split()
            self._queues.reenqueue(children, now)
        return children

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """Return the batches whose delivery.timeout.ms has passed, each only once.

        Queued batches are removed from their queues; batches in flight remain in flight. The caller fails the batches
        and then calls remove_completed.
        """
        if now < self.next_expiry_ms():
            return []
        with self._lock:
            expired = self._incomplete.take_expired(now)
            for batch in expired:
                self._queues.remove(batch, now)
        return expired

    def remove_from_queue(self, batch: ProducerBatch) -> None:
        """Remove a batch from its queue. The caller fails the batch and then calls remove_completed."""
        with self._lock:
            self._queues.remove(batch, self._clock())

    def next_expiry_ms(self) -> float:
        """Return a time before which no batch expires, or inf if there is no batch.

        It is read without the lock, because adding a batch wakes the sender.
        """
        return self._incomplete.next_deadline_ms

    def take_failed_batches(self) -> list[ProducerBatch]:
        """Return the batches that could not be encoded, each only once. They are DONE and have their error.

        The caller fails the futures and then calls remove_completed.
        """
        if not self._filler.has_failed_batches:  # read without the lock: a fill that fails wakes the sender afterwards
            return []
        with self._lock:
            return self._filler.take_failed_batches()

    def remove_completed(self, *batches: ProducerBatch) -> None:
        """Remove batches that are DONE and whose futures are completed, and complete the flushes that waited for them.

        Must be called once for each batch.
        """
        with self._lock:
            self._incomplete.remove(*batches)
            if self._queues.has_muted:
                for batch in batches:
                    self._queues.unmute(self._queues.get(batch.topic_partition), self._clock())

    def update_node_latency_stats(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Record that a node has ready batches, and whether they can be drained.

        This is used for partitioner.availability.timeout.ms.
        """
        with self._lock:
            self._node_latency_stats.update(node_id, now, can_drain=can_drain)

    # -- flush and close ----------------------------------------------------------------------------------------------

    def flush(self, wait: Callable[[threading.Event], bool]) -> bool:
        """Make all rows ready immediately, and `wait` until all appended rows are acknowledged or have failed.

        Return the result of `wait`. Rows that are appended during the flush need not be waited for.
        """
        flush = Flush()
        try:
            with self._lock:
                self._incomplete.begin_flush(flush)
                if not self._filler.has_rows:
                    self._incomplete.arm([flush])
            self._wakeup()
            return wait(flush.done)
        finally:
            with self._lock:
                self._incomplete.end_flush(flush)

    def has_incomplete(self) -> bool:
        """Return whether any rows are staged, queued or in flight."""
        with self._lock:
            return self._filler.has_rows or len(self._incomplete) > 0

    def has_undrained(self) -> bool:
        """Return whether any rows are staged or queued."""
        with self._lock:
            return self._filler.has_rows or any(queue.batches for queue in self._queues)

    def queued_batches(self, topic_partition: TopicPartition) -> list[ProducerBatch]:
        """Return the batches in the queue of a topic-partition, in the order in which they will be drained."""
        with self._lock:
            return list(self._queues.get(topic_partition).batches)

    def close(self) -> None:
        """Reject further appends, and make all batches ready. Blocked appends raise ProducerClosedError.

        Must be called by the sender thread: the thread that closes the producer may be in a signal handler and hold the
        lock.
        """
        with self._lock:
            self._is_closed = True
        self.pool.close()

    def complete_flushes(self) -> None:
        """Complete all flushes, even those that have just begun, now that all batches are done."""
        with self._lock:
            self._incomplete.arm(self._incomplete.unarmed_flushes())

    def abort_incomplete_batches(self, error: Exception, *, includes_in_flight: bool = True) -> list[ProducerBatch]:
        """Fail all staged and queued rows and, by default, those in flight. Return the failed batches.

        Must be called by the sender thread, which fails the futures and then calls remove_completed.
        """
        aborted: list[ProducerBatch] = []
        for topic in self._filler.known_topics():
            with self._filler.fill_lock(topic):  # no thread fills batches of this topic now, so none of them is pinned
                unbatched = self._filler.fail_staged_rows(topic, error)
                with self._lock:
                    now = self._clock()
                    for batch in self._incomplete:
                        if batch.topic_partition.topic != topic or batch.is_done:
                            continue
                        if includes_in_flight or batch.state is not IN_FLIGHT:
                            self._queues.remove(batch, now)
                            batch.fail(error)
                            aborted.append(batch)
                aborted += unbatched  # these rows were appended after those in batches
        return aborted
