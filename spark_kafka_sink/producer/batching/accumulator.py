"""RecordAccumulator: stages rows and collects them in batches until the sender thread drains them.

    append_columns, append_record      reserve memory for rows and stage them (staging.py)
    fill_and_find_ready_nodes          fills batches with rows that have lingered, and finds nodes with ready batches
    drain                              hands batches over to the sender
    reenqueue, split_and_reenqueue     return batches to their queues
    remove_completed                   removes batches that were acknowledged or have failed

Each topic has a stage: a buffer in which its rows wait before they are encoded (staging.py). batch_filler.py groups the
staged rows by partition, encodes them and appends them to batches. When the stage is full, this happens on the caller's
thread, so that encoding and sending overlap (Arrow and numpy release the GIL). When linger.ms has passed, memory is
short, or a flush or the close is in progress, it happens on the sender thread.

Memory. A call reserves memory for its rows before they are staged: enough for their Arrow form or for their encoded
form, whichever is larger, but not for both. The encoded size is an upper bound. With compression, it counts twice,
because the compressed records are allocated before the uncompressed ones are freed. So encoding and compression never
wait for memory. If they did, a thread could wait for memory that is released only after its own rows have been sent.

While a thread encodes a stage, the stage's rows exist in both forms, but only one form is counted against
buffer.memory. The uncounted form takes

    half of buffer.memory           for a stage that has just become full
    more than half                  if new rows joined rows left over from a split of the stage
    at most all of buffer.memory    if the stages of several topics are encoded concurrently

The batches whose records the encoder has written to one buffer share a lease on its memory (buffer_pool.py). When
memory is short and only a small part of a buffer is still needed, that part is copied so that the buffer can be freed.

The rows of a large call are staged in chunks, so a call may be larger than the pool. max.block.ms applies to each
chunk: if the brokers are slow, the call does not fail as long as it makes progress. Each record passed to send() also
reserves memory for its future.

Locks. `_lock` guards the stages, the queues and all batches that are not in flight. It is held only briefly, and never
while a thread encodes, compresses or waits. A topic's fill lock is acquired before `_lock`, never after it. The
transaction manager's lock may be acquired while `_lock` is held (`drain` checks whether a batch may be sent), but not
the other way round. Only the sender thread calls the methods in the section "sender thread", except `unmute`, which any
thread may call.

Names that end in `_ms` are durations in milliseconds, or times on the producer's monotonic clock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.backoff import ExponentialBackoff, SharedRetryBackoff
from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batching.batch import AWAITING_CLOSE, IN_FLIGHT, ProducerBatch
from spark_kafka_sink.producer.batching.batch_compressor import BatchCompressor
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, WaitForEvent
from spark_kafka_sink.producer.batching.chunks import split_into_chunks
from spark_kafka_sink.producer.batching.incomplete_batches import Flush, IncompleteBatches
from spark_kafka_sink.producer.batching.node_availability import NodeAvailability
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS, AdmitBatch, PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.batching.staging import ASSIGNMENT_DELAY_MS, SingleRecord, Stage
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import FUTURE_BYTES, Callback, SendFuture
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.partitioner import Partitioner, PartitionLoads
from spark_kafka_sink.producer.rows import Rows

_MAX_CHUNK_ROWS = 16_384
"""Maximum number of rows in a chunk of a send_columns() call. A larger call is staged chunk by chunk."""
_CHUNK_DIVISOR = 16
"""The encoded rows of a chunk fill at most buffer.memory divided by this number, unless a single row is larger."""


class ReportAssignedRows(Protocol):
    """A function that counts rows in the metrics when they are assigned to partitions."""

    def __call__(self, row_count: int, total_bytes: int, max_row_bytes: int, now_ms: float, /) -> None: ...


class _LingerSuspension:
    """Marks a running `without_linger` block.

    Only the block holds a strong reference to this object. So the suspension ends with the block, even if an interrupt
    prevents the block from removing the object from the accumulator's weak set.
    """


class AppendResult(NamedTuple):
    """The number of a call's rows that were staged, and the error that stopped the others."""

    staged_row_count: int
    error: KafkaSinkError | None
    """The reason why the remaining rows were not staged; None if all rows were staged."""


class ReadyCheckResult(NamedTuple):
    """The nodes that have batches to send, and the time of the sender's next check."""

    ready_node_ids: frozenset[int]
    """The nodes that lead a partition with a batch that can be sent now."""
    next_ready_check_delay_ms: float
    """Delay until the next check if no event makes a batch ready earlier; inf if only an event can do so."""
    unknown_leader_topics: frozenset[str]
    """Topics with ready batches whose leader is not known."""


class _FillPlan(NamedTuple):
    """The work on staged rows that the sender thread does before it looks for ready nodes."""

    is_stage_due_by_topic: dict[str, bool]
    """The topics to fill batches for.

    If the value is True, the topic's stage is due: all of its rows become batches. If it is False, only the stage's
    single records (those passed to send()) are due: they are assigned to partitions, which may complete batches.
    """
    next_due_ms: float
    """Time at which staged rows next need work after this plan; inf if no rows will."""
    flushes: list[Flush]
    """Flushes that do not know yet which batches to wait for. Once the plan has put all rows into batches,
    `assign_batches_to_flushes` gives the flushes these batches."""


class RecordAccumulator:
    """The staged rows and batches of one producer, and the memory reserved for them (see the module's docstring)."""

    def __init__(  # noqa: PLR0913 - one parameter per component; most are keyword-only
        self,
        config: ProducerConfig,
        pool: BufferPool,
        *,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        wake_sender: Callable[[], None],
        wait_for_event: WaitForEvent,
        random: Random,
        partitioner: Partitioner,
        report_assigned_rows: ReportAssignedRows,
    ) -> None:
        """Create an accumulator that shares its pool, clock and partitioner with the producer.

        `wake_sender`: makes the sender call `fill_and_find_ready_nodes` again. Any thread may call it.
        `wait_for_event`: blocks an appending thread until memory is available.
        `report_assigned_rows`: called for single records only, when they are assigned to partitions.
        """
        self._config = config
        self.pool = pool
        self._partitioner = partitioner
        self._report_assigned_rows = report_assigned_rows
        self._clock = clock
        self._wake_sender = wake_sender
        self._wait_for_event = wait_for_event
        self._max_chunk_bytes = max(1, config.buffer_memory // _CHUNK_DIVISOR)
        self._lock = threading.Lock()
        self._backoff = SharedRetryBackoff(
            ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        )
        self._queues = PartitionQueues(config.linger_ms, config.max_request_size)
        self._incomplete_batches = IncompleteBatches()
        self._compressor = BatchCompressor(config)
        self._max_encoded_copy_count = self._compressor.max_encoded_copy_count
        self._batch_filler = BatchFiller(
            config,
            pool=pool,
            compressor=self._compressor,
            lock=self._lock,
            queues=self._queues,
            incomplete_batches=self._incomplete_batches,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
            assign_partitions=self._assign_partitions,
        )
        self._node_availability = NodeAvailability(config.partitioner_availability_timeout_ms)
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
    ) -> AppendResult:
        """Stage rows that have already been assigned to partitions.

        An error is returned instead of raised, because some of the rows may already be staged when it occurs.

        `max_block_ms`: how long to wait for the memory of each chunk; defaults to max.block.ms.
        `check_open`: raises KafkaSinkError if rows may no longer be staged, for example because their transaction has
        ended. It is called with the lock held, after memory has been reserved.
        """
        for start, stop, nbytes in split_into_chunks(rows.sizes, _MAX_CHUNK_ROWS, self._max_chunk_bytes):
            chunk = rows.slice(start, stop)
            try:
                self._stage_chunk(topic, chunk, nbytes, max_block_ms, check_open)
            except KafkaSinkError as error:
                return AppendResult(staged_row_count=start, error=error)
        return AppendResult(staged_row_count=len(rows), error=None)

    def append_record(  # noqa: PLR0913 - the properties of a record; an object for them would make send() 10% slower
        self,
        topic: str,
        record: SingleRecord,
        encoded_bytes: int,
        snapshot: ClusterSnapshot,
        callbacks: tuple[Callback, ...] = (),
        *,
        get_max_block_ms: Callable[[], float] | None = None,
        check_open: Callable[[], None] | None = None,
    ) -> SendFuture:
        """Stage a single record and return its future.

        The record is assigned to a partition later, based on `snapshot` or newer metadata.

        `encoded_bytes`: upper bound on the record's encoded size.
        `get_max_block_ms`: returns how long to wait for memory; called only if the record has to wait.
        `check_open`: raises KafkaSinkError if the record may no longer be staged. It is called with the lock held,
        after memory has been reserved. Before its error propagates, the memory is released.

        Raise BufferExhaustedError if the memory does not become available in time, RecordTooLargeError if the record
        does not fit into buffer.memory, and ProducerClosedError if the producer was closed.
        """
        reserved_bytes = self._compute_reserved_bytes(encoded_bytes, encoded_bytes, FUTURE_BYTES)
        if not self.pool.try_reserve(reserved_bytes):
            self._wait_and_reserve(reserved_bytes, None if get_max_block_ms is None else get_max_block_ms())
        with self._lock:
            # Skip the call in the usual case, in which there is nothing to check.
            if self._is_closed or check_open is not None:
                self._ensure_open_or_release(reserved_bytes, check_open)
            stage = self._batch_filler.stages.get(topic)
            is_new_stage = stage is None
            if stage is None:
                stage = self._batch_filler.create_stage(topic, self._clock())
            future = stage.add_record(record, encoded_bytes, reserved_bytes, snapshot, callbacks)
            max_body_bytes = self._compressor.compute_max_batch_body_bytes(topic)
            is_full = stage.is_full(max_body_bytes)
            # `schedule_record_assignment` has a side effect: it may set a due time. A full stage needs none, because
            # its batches are filled right away. A new stage needs none either, because it wakes the sender in any case.
            has_new_due_time = is_new_stage or (
                not is_full and stage.schedule_record_assignment(max_body_bytes, self._config.linger_ms, self._clock)
            )
        if is_full or has_new_due_time:
            self._fill_or_wake_sender(topic, is_full=is_full, has_new_due_time=has_new_due_time)
        return future

    def find_partition_loads(
        self, topic: str, snapshot: ClusterSnapshot, candidates: Sequence[int]
    ) -> PartitionLoads | None:
        """Return the number of queued batches of each candidate partition whose leader accepts batches.

        Return None if the topic is unknown, or if there is a candidate for which no rows have ever been queued.
        """
        topic_info = snapshot.topics.get(topic)
        if topic_info is None or not topic_info.partitions:
            return None
        with self._lock:
            queue_lengths = self._queues.find_queue_lengths(topic, candidates)
            if queue_lengths is None:
                return None
            partitions = [topic_info.partition(index) for index in candidates]
            return self._node_availability.filter_available_partitions(partitions, queue_lengths, snapshot)

    def _assign_partitions(
        self,
        topic: str,
        rows: Rows,
        snapshot: ClusterSnapshot,
    ) -> NDArray[np.int32]:
        """Assign single records to partitions, and return the partition of each.

        Also count the records in the metrics. They are counted here, all at once, because counting each one in
        append_record would cost as much as staging it.
        """
        self._report_assigned_rows(len(rows), int(rows.sizes.sum()), int(rows.sizes.max()), self._clock())
        find_partition_loads = partial(self.find_partition_loads, topic, snapshot)
        return self._partitioner.assign(
            topic, rows.columns, rows.sizes, rows.requested_partitions, snapshot, find_partition_loads
        )

    def _stage_chunk(
        self,
        topic: str,
        rows: Rows,
        encoded_bytes: int,
        max_block_ms: float | None,
        check_open: Callable[[], None] | None,
    ) -> None:
        """Reserve memory for rows and stage them. If their topic's stage is then full, fill batches on this thread.

        `encoded_bytes`: upper bound on the rows' encoded size.
        `max_block_ms`, `check_open`: as for append_columns.

        Raise KafkaSinkError if the rows cannot be staged.
        """
        reserved_bytes = self._compute_reserved_bytes(encoded_bytes, rows.columns.nbytes, rows.row_indices.nbytes)
        if not self.pool.try_reserve(reserved_bytes):
            self._wait_and_reserve(reserved_bytes, max_block_ms)
        with self._lock:
            self._ensure_open_or_release(reserved_bytes, check_open)
            stage = self._batch_filler.stages.get(topic)
            is_new_stage = stage is None
            if stage is None:
                stage = self._batch_filler.create_stage(topic, self._clock())
            stage.add(rows, reserved_bytes)
            max_body_bytes = self._compressor.compute_max_batch_body_bytes(topic)
            is_full = stage.is_full(max_body_bytes)
            # Do not schedule a full stage or a new stage, for the reasons given in append_record.
            has_new_due_time = is_new_stage or (
                not is_full and stage.schedule_record_assignment(max_body_bytes, self._config.linger_ms, self._clock)
            )
        self._fill_or_wake_sender(topic, is_full=is_full, has_new_due_time=has_new_due_time)

    def _ensure_open_or_release(self, reserved_bytes: int, check_open: Callable[[], None] | None) -> None:
        """Release the memory reserved for rows and raise KafkaSinkError if the rows may no longer be staged.

        The caller must hold the lock from this call until the rows are staged. Otherwise, their transaction could end
        in between, because `has_incomplete_rows` does not count rows that are not staged yet.
        """
        try:
            if self._is_closed:
                raise ProducerClosedError("The producer was closed.")
            if check_open is not None:
                check_open()
        except KafkaSinkError:
            self.pool.release(reserved_bytes)
            raise

    def _fill_or_wake_sender(self, topic: str, *, is_full: bool, has_new_due_time: bool) -> None:
        """Fill batches if a topic's stage is full. Wake the sender if there is something new for it to look at.

        `has_new_due_time`: whether the stage has a due time that the sender does not know yet.
        """
        has_filled_batches = is_full and self._batch_filler.fill_batches(topic, full_batches_only=True)
        if has_filled_batches or has_new_due_time:
            self._wake_sender()

    def _compute_reserved_bytes(self, encoded_bytes: int, staged_bytes: int, overhead_bytes: int) -> int:
        """Return how many bytes to reserve for rows.

        The result is the overhead plus the larger of two sizes: that of the staged rows, and that of all encoded copies
        that exist at the same time (two with compression). Only the larger one is needed, because the rows are never
        counted in both forms.

        `encoded_bytes`: upper bound on the rows' encoded size.
        `staged_bytes`: size of the rows while they are staged.
        `overhead_bytes`: size of the row indices and futures, which are kept until the rows' results are known.

        The result is at most the size of the pool, because a larger reservation could never succeed. Raise
        RecordTooLargeError if the encoded rows alone are larger than the pool.
        """
        reserved_bytes = overhead_bytes + max(staged_bytes, self._max_encoded_copy_count * encoded_bytes)
        if reserved_bytes <= self.pool.total_bytes:
            return reserved_bytes
        if encoded_bytes > self.pool.total_bytes:
            # This can only be a single record, because a chunk of several rows has at most _max_chunk_bytes.
            raise RecordTooLargeError(
                f"A record of {encoded_bytes} bytes does not fit into buffer.memory ({self.pool.total_bytes} bytes)."
            )
        return self.pool.total_bytes

    def _wait_and_reserve(self, reserved_bytes: int, max_block_ms: float | None) -> None:
        """Reserve memory, waiting for it if necessary.

        Before waiting, free buffers of which only a small part is still needed.

        `max_block_ms`: how long to wait; None for max.block.ms.

        Raise the errors of BufferPool.reserve.
        """
        with self._lock:
            self._batch_filler.free_sparse_leases()
        max_block_ms = self._config.max_block_ms if max_block_ms is None else max_block_ms
        self.pool.reserve(reserved_bytes, max_block_ms, self._wait_for_memory)

    def _wait_for_memory(self, wake_event: OneTimeEvent, timeout_ms: float | None) -> bool:
        """Wait for an event that is set when memory has become free. Return whether it was set in time."""
        # While a thread waits for memory, the sender sends batches without lingering, so wake it to do that now.
        self._wake_sender()
        return self._wait_for_event(wake_event, timeout_ms)

    @contextmanager
    def without_linger(self) -> Iterator[None]:
        """Suspend linger.ms for all of the producer's rows while the `with` block waits for acknowledgements."""
        suspension = _LingerSuspension()
        try:
            self._linger_suspensions.add(suspension)
            self._wake_sender()
            yield
        finally:
            self._linger_suspensions.discard(suspension)

    # -- sender thread ------------------------------------------------------------------------------------------------

    def fill_and_find_ready_nodes(self, snapshot: ClusterSnapshot, now_ms: float) -> ReadyCheckResult:
        """Fill batches with the rows that are due, and return the nodes with batches that can be sent."""
        with self._lock:
            is_flushing_or_closed = self._is_closed or self._incomplete_batches.is_flush_in_progress
            is_memory_short = self.pool.waiter_count > 0
            is_linger_suspended = is_flushing_or_closed or is_memory_short or len(self._linger_suspensions) > 0
            # Update the queues before the plan is made, because the leaders and the ready batches determine how long
            # rows linger.
            self._update_queues(snapshot, now_ms, is_linger_suspended=is_linger_suspended)
            # A flush or the close sends all batches anyway, so copying them out of sparse leases would be wasted.
            if is_memory_short and not is_flushing_or_closed:
                self._batch_filler.free_sparse_leases()
            plan = self._plan_fill(
                now_ms, is_flushing_or_closed=is_flushing_or_closed, is_linger_suspended=is_linger_suspended
            )
            if not plan.is_stage_due_by_topic and not plan.flushes:
                return self._build_ready_check_result(now_ms, plan.next_due_ms)
        # Fill batches without the lock, because encoding and compression take a long time. Meanwhile, other threads may
        # stage rows, fill batches from full stages and begin flushes. Each of these events wakes the sender, so the
        # next call handles it.
        next_due_ms = self._fill_batches(plan, now_ms)
        with self._lock:
            # A planned flush may have ended by now, because its caller has stopped waiting. It does no harm to assign
            # batches to such a flush.
            self._incomplete_batches.assign_batches_to_flushes(plan.flushes)
            return self._build_ready_check_result(now_ms, next_due_ms)

    def _update_queues(self, snapshot: ClusterSnapshot, now_ms: float, *, is_linger_suspended: bool) -> None:
        """Update the leaders and the readiness of the queues. The caller must hold the lock."""
        self._queues.set_snapshot(snapshot, now_ms)
        self._queues.set_linger_suspended(is_linger_suspended, now_ms)
        self._queues.fire_timers(now_ms)

    def _plan_fill(self, now_ms: float, *, is_flushing_or_closed: bool, is_linger_suspended: bool) -> _FillPlan:
        """Decide which batches to fill. The caller must hold the lock.

        The only change that this makes is to mark due stages that other threads are using (`_find_due_topics`).
        """
        is_stage_due_by_topic, next_due_ms = self._find_due_topics(
            now_ms, is_flushing_or_closed=is_flushing_or_closed, is_linger_suspended=is_linger_suspended
        )
        flushes = self._incomplete_batches.find_flushes_without_batches()
        if flushes:
            # A flush can get its batches only when every row is in a batch, even if another thread is still filling
            # batches from a stage. So treat every stage as due: fill_batches waits for such a thread.
            is_stage_due = True
            is_stage_due_by_topic = dict.fromkeys(self._batch_filler.list_topics(), is_stage_due)
        return _FillPlan(is_stage_due_by_topic, next_due_ms, flushes)

    def _fill_batches(self, plan: _FillPlan, now_ms: float) -> float:
        """Fill the planned batches without the lock. Return the time at which staged rows next need work."""
        next_due_ms = plan.next_due_ms
        for topic, is_stage_due in plan.is_stage_due_by_topic.items():
            started_ms = self._clock()
            should_recheck = self._batch_filler.fill_batches(topic, full_batches_only=not is_stage_due)
            if is_stage_due:
                with self._lock:
                    self._queues.begin_fill_pause(topic, started_ms, self._clock())
            elif should_recheck:
                # Check again soon, because single records that were staged in the meantime may need to be assigned.
                next_due_ms = min(next_due_ms, now_ms + ASSIGNMENT_DELAY_MS)
        return next_due_ms

    def _find_due_topics(
        self, now_ms: float, *, is_flushing_or_closed: bool, is_linger_suspended: bool
    ) -> tuple[dict[str, bool], float]:
        """Return the topics whose staged rows need work now, and the time at which the remaining rows next need work.

        A stage has two due times. At the first, all of its rows become batches. At the second, its single records are
        assigned to partitions, which may complete batches.

        The dict maps a topic to True if the first time has been reached, and to False if only the second one has been.
        The time is inf if no rows will need work.

        If another thread is filling batches from a due stage, leave the topic out and set the stage's `should_recheck`.
        The other thread then wakes the sender when it has finished.
        """
        is_stage_due_by_topic: dict[str, bool] = {}
        next_due_ms = INFINITE_MS
        for stage in self._batch_filler.list_stages():
            # A flush and the close make every stage due, regardless of linger and fill pauses.
            due_ms = now_ms
            if not is_flushing_or_closed:
                due_ms = self._compute_stage_due_ms(stage, now_ms, is_linger_suspended=is_linger_suspended)
            is_due = due_ms <= now_ms
            is_assignment_due = stage.record_assignment_due_ms <= now_ms
            if not is_due and not is_assignment_due:
                next_due_ms = min(next_due_ms, due_ms, stage.record_assignment_due_ms)
                continue
            if not is_due:  # the rows that stay staged after the assignment are due later
                next_due_ms = min(next_due_ms, due_ms)
            if self._batch_filler.is_in_use(stage):
                stage.should_recheck = True
            else:
                is_stage_due_by_topic[stage.topic] = is_due
        return is_stage_due_by_topic, next_due_ms

    def _compute_stage_due_ms(self, stage: Stage, now_ms: float, *, is_linger_suspended: bool) -> float:
        """Return the time at which a stage's rows become batches, even if the stage is not full by then.

        Normally, that is linger.ms after the oldest row arrived. Two delays may postpone it (partition_queues.py): a
        fill pause, which may follow a fill, and the extra linger, which applies while each of the topic's leaders
        already has enough batches to fill a request.

        While linger is suspended, the rows are due immediately, unless the extra linger applies. In that case, both
        delays apply, but linger.ms does not.
        """
        if is_linger_suspended and not self._queues.extra_linger_ms(stage.topic):
            return stage.oldest_row_arrival_ms
        due_ms = stage.oldest_row_arrival_ms + (0.0 if is_linger_suspended else self._config.linger_ms)
        due_ms = max(due_ms, self._queues.fill_pause_end_ms(stage.topic))
        # Add the extra linger only once the rows would be due without it, because it depends on what is queued then.
        return due_ms if due_ms > now_ms else due_ms + self._queues.extra_linger_ms(stage.topic)

    def _build_ready_check_result(self, now_ms: float, next_due_ms: float) -> ReadyCheckResult:
        """Return the ready nodes and the delay until the next check. The caller must hold the lock.

        `next_due_ms`: time at which staged rows next need work.
        """
        delay_ms = max(0.0, min(next_due_ms, self._queues.find_next_due_ms()) - now_ms)
        return ReadyCheckResult(self._queues.ready_node_ids(), delay_ms, self._queues.unknown_leader_topics())

    def drain(
        self,
        snapshot: ClusterSnapshot,
        node_ids: Iterable[int],
        max_request_size: int,
        now_ms: float,
        admit: AdmitBatch,
    ) -> dict[int, list[ProducerBatch]]:
        """Remove the next batches from their queues, close them, mark them IN_FLIGHT, and return them by node.

        A node gets at most one batch per partition and at most `max_request_size` bytes, unless its first batch alone
        is larger.

        `admit`: decides whether a batch may be sent now; see AdmitBatch.
        """
        drained_by_node: dict[int, list[ProducerBatch]] = {}
        with self._lock:
            self._queues.set_snapshot(snapshot, now_ms)
            for node_id in node_ids:
                batches = self._queues.drain_node(node_id, max_request_size, now_ms, admit)
                if batches:
                    drained_by_node[node_id] = batches
        drained_batches = list(itertools.chain.from_iterable(drained_by_node.values()))
        for batch in drained_batches:
            # Close the batches that were still open when they left their queues. Do this without the lock, because
            # compression is slow.
            if batch.state is AWAITING_CLOSE:
                self._compressor.close_batch(batch)
        for batch in drained_batches:
            batch.mark_in_flight(now_ms)
        return drained_by_node

    def unmute(self, topic_partition: TopicPartition | None = None) -> None:
        """Let `drain` try again to send the oldest batches of muted queues.

        `drain` mutes a queue if its oldest batch must not be sent yet. Call this once the batch may be sent.
        `reenqueue`, `split_and_reenqueue` and `remove_completed` unmute the queues of their batches themselves.

        `topic_partition`: the partition whose queue to unmute; None for all queues.
        """
        with self._lock:
            now_ms = self._clock()
            queues: Iterable[PartitionQueue] = self._queues
            if topic_partition is not None:
                queues = [self._queues.get(topic_partition)]
            for queue in queues:
                self._queues.unmute(queue, now_ms)

    def reenqueue(self, batch: ProducerBatch, now_ms: float, error: Exception) -> None:
        """Put a batch, whose request must have ended, back into its queue so that it is sent again after a backoff.

        The queue stays in sequence order.

        `error`: the reason for the retry.
        """
        with self._lock:
            backoff_until_ms = self._backoff.next_attempt_ms(now_ms, batch.failed_attempts)
            batch.mark_reenqueued(backoff_until_ms=backoff_until_ms, error=error)
            self._queues.reenqueue([batch], now_ms)

    def split_and_reenqueue(self, batch: ProducerBatch, now_ms: float) -> list[ProducerBatch]:
        """Replace a batch that was rejected as too large with smaller batches in its queue, and return these batches.

        The futures of the rows are completed with the results of the smaller batches.
        """
        self._compressor.reset_ratio(batch)
        # Imported here because batches are rarely split, and the import loads the decoder.
        from spark_kafka_sink.producer.batching.batch_splitting import split_batch

        # If a batch is too large even after a split, the broker's limit must be below batch.size, so halve the batch.
        max_bytes = batch.uncompressed_bytes // 2 if batch.is_split_batch else self._config.batch_size
        children: list[ProducerBatch] = []
        try:
            for child in split_batch(batch, max_bytes):
                children.append(child)
                self._compressor.close_batch(child)
                # Without a copy, the memory of the split batch could not be freed before all of its children are done.
                child.copy_to_own_memory()
        except Exception as error:  # usually a MemoryError
            for child in children:
                child.fail(error)  # so that it no longer holds the memory of the split batch
            raise
        with self._lock:
            for child in children:
                self._incomplete_batches.add(child)
            self._incomplete_batches.remove(batch, successors=children)
            batch.mark_split()
            self._queues.reenqueue(children, now_ms)
        return children

    def take_expired_batches(self, now_ms: float) -> list[ProducerBatch]:
        """Return the batches whose delivery.timeout.ms has passed. Each batch is returned only once.

        Expired batches are removed from their queues, except those in flight, which remain in flight. The caller must
        fail all of them and then call remove_completed.
        """
        if now_ms < self.next_expiry_ms():
            return []
        with self._lock:
            expired_batches = self._incomplete_batches.take_expired(now_ms)
            for batch in expired_batches:
                self._queues.remove(batch, now_ms)
        return expired_batches

    def remove_from_queue(self, batch: ProducerBatch) -> None:
        """Remove a batch from its queue. The caller must fail the batch and then call remove_completed."""
        with self._lock:
            self._queues.remove(batch, self._clock())

    def next_due_ms(self) -> float:
        """Return the time at which the next queued batch may be sent, or inf if none is lingering or backing off."""
        with self._lock:
            return self._queues.find_next_due_ms()

    def next_expiry_ms(self) -> float:
        """Return a time before which no batch expires, or inf if there is no batch.

        The time is read without the lock. A stale value is harmless, because a thread that adds a batch wakes the
        sender afterwards, and the sender then reads the time again.
        """
        return self._incomplete_batches.next_deadline_ms

    def take_failed_batches(self) -> list[ProducerBatch]:
        """Return the batches whose rows could not be encoded. Each batch is returned only once.

        The batches are DONE and have an error. The caller must fail their futures and then call remove_completed.
        """
        # Reading this without the lock may miss a new failed batch, but the thread that adds it then wakes the sender.
        if not self._batch_filler.has_failed_batches:
            return []
        with self._lock:
            return self._batch_filler.take_failed_batches()

    def remove_completed(self, *batches: ProducerBatch) -> None:
        """Forget DONE batches whose futures are completed, and complete the flushes that waited only for these batches.

        Call this once for each batch.
        """
        with self._lock:
            self._incomplete_batches.remove(*batches)
            if self._queues.has_muted_queues:
                for batch in batches:
                    self._queues.unmute(self._queues.get(batch.topic_partition), self._clock())

    def record_node_availability(self, node_id: int, now_ms: float, *, is_accepting: bool) -> None:
        """Record that batches are waiting for a node, and whether the node can accept them now.

        The partitioner avoids a node that has accepted none for partitioner.availability.timeout.ms.
        """
        with self._lock:
            self._node_availability.record_ready_batches(node_id, now_ms, is_accepting=is_accepting)

    # -- flush and close ----------------------------------------------------------------------------------------------

    def flush(self, wait_for_event: Callable[[OneTimeEvent], bool]) -> bool:
        """Send all rows without lingering, and wait until the rows appended so far are acknowledged or have failed.

        Rows that are appended during the flush are not necessarily included.

        `wait_for_event`: waits for an event, and returns whether the event was set in time.

        Return the result of `wait_for_event`. The event is set when the flush has no batch left to wait for:
        immediately, or when the sender removes the last batch (`remove_completed`). When the sender ends, it sets the
        events of all flushes (`complete_flushes`).
        """
        flush = Flush()
        try:
            with self._lock:
                self._incomplete_batches.begin_flush(flush)
                # If rows are still staged, the sender decides which batches the flush waits for, once it has put those
                # rows into batches (`fill_and_find_ready_nodes`).
                if not self._batch_filler.has_rows:
                    self._incomplete_batches.assign_batches_to_flushes([flush])
            self._wake_sender()
            return wait_for_event(flush.done_event)
        finally:
            with self._lock:
                self._incomplete_batches.end_flush(flush)

    def has_incomplete_rows(self) -> bool:
        """Return whether any rows are staged, or are in batches that `remove_completed` has not removed yet."""
        with self._lock:
            return self._batch_filler.has_rows or len(self._incomplete_batches) > 0

    def has_undrained_rows(self) -> bool:
        """Return whether any rows are staged or queued."""
        with self._lock:
            return self._batch_filler.has_rows or any(queue.batches for queue in self._queues)

    def list_queued_batches(self, topic_partition: TopicPartition) -> list[ProducerBatch]:
        """Return a topic-partition's queued batches in the order in which they will be drained."""
        with self._lock:
            return list(self._queues.get(topic_partition).batches)

    def close(self) -> None:
        """Reject further appends, and make all batches ready. Blocked appends raise ProducerClosedError.

        Only the sender thread may call this: the producer's close() may run in a signal handler whose thread already
        holds the lock.
        """
        with self._lock:
            self._is_closed = True
        self.pool.close()

    def complete_flushes(self) -> None:
        """Complete all flushes, including those that have just begun. Call this after all batches were removed."""
        with self._lock:
            self._incomplete_batches.assign_batches_to_flushes(self._incomplete_batches.find_flushes_without_batches())

    def abort_incomplete_batches(
        self, error: Exception, *, include_in_flight: bool = True, kept_batches: Collection[ProducerBatch] = ()
    ) -> list[ProducerBatch]:
        """Fail all rows that are staged, queued or, by default, in flight. Return the failed batches.

        Only the sender thread may call this. It must then fail the futures and call remove_completed.

        `kept_batches`: batches that do not fail.
        """
        aborted_batches: list[ProducerBatch] = []
        for topic in self._batch_filler.list_topics():
            # While this thread holds the fill lock, no other thread fills this topic's batches or pins them.
            with self._batch_filler.fill_lock(topic):
                staged_rows_as_batches = self._batch_filler.fail_staged_rows(topic, error)
                aborted_batches += self._abort_topic_batches(
                    topic, error, include_in_flight=include_in_flight, kept_batches=kept_batches
                )
                # Staged rows were appended after the rows that are in batches, so they also fail after them.
                aborted_batches += staged_rows_as_batches
        return aborted_batches

    def _abort_topic_batches(
        self, topic: str, error: Exception, *, include_in_flight: bool, kept_batches: Collection[ProducerBatch]
    ) -> list[ProducerBatch]:
        """Fail a topic's incomplete batches and return them."""
        aborted_batches: list[ProducerBatch] = []
        with self._lock:
            now_ms = self._clock()
            for batch in self._incomplete_batches:
                if batch.topic_partition.topic != topic or batch.is_done or batch in kept_batches:
                    continue
                if include_in_flight or batch.state is not IN_FLIGHT:
                    self._queues.remove(batch, now_ms)
                    batch.fail(error)
                    aborted_batches.append(batch)
        return aborted_batches
