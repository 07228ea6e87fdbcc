"""RecordAccumulator: what lies between the callers of send and the sender thread.

    append_columns, append_record      rows are staged (staging.py); their memory is reserved first
    batch_filler.py                    rows -> in the order of their partitions -> encoded -> batches in queues
    ready, drain                       batches -> the sender
    reenqueue, split_and_reenqueue     back again
    finish                             forgotten

Rows are filled into batches on the caller's thread when a topic's stage is full, so that encoding and sending overlap
(Arrow and numpy release the interpreter's lock), and on the sender's thread when linger.ms has passed, memory is short,
or a flush or the close is under way.

Memory. What is reserved when rows are staged is enough for their Arrow bytes, and for what they become: the upper bound
of what they are encoded to, and with compression as much again, as room for the compressed form until the batches are
closed. So no thread waits for memory while it holds rows that others wait for, and neither encoding nor compressing can
run out of it. On top of buffer.memory comes, while a thread encodes a stage, the other form of its rows: half of the
memory for a stage that has just become full, and more where rows were staged behind some that wait on; where stages of
several topics are encoded at a time, as much as buffer.memory at most. The encoded rows of one buffer share a lease
(buffer_pool.py); when memory is short, the last few batches of a buffer are copied out of it. A call that is larger
than the memory is taken in chunks; max.block.ms is for each chunk, so that a large call to slow brokers does not fail
while it makes progress. A record of send() is charged for its future as well.

Locks. _lock guards stages, queues and batches that are not in flight; it is held for moments, never while encoding,
compressing or waiting. A topic's fill lock is taken before _lock, never after. Under _lock that of the transaction is
taken (`drain` asks whether a batch may leave), never the other way round. What is marked "sender thread" is called by
that thread alone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
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
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, Wait
from spark_kafka_sink.producer.batching.incomplete import Flush, IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS, Admit, PartitionQueues
from spark_kafka_sink.producer.batching.staging import PLACE_DELAY_MS, SingleRecord, Stage, chunks
from spark_kafka_sink.producer.batching.stuck_nodes import StuckNodes
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import FUTURE_BYTES, Callback, SendFuture
from spark_kafka_sink.producer.partitioner import Partitioner, PartitionLoads
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.compression import Codec

_CHUNK_ROWS_MAX = 16_384
_CHUNK_SHARE = 16
"""A call waits for this part of the memory at a time, counted in encoded bytes."""


RowsGiven = Callable[[int, int, int, float], None]
"""Counts rows: how many, their bytes together, those of the largest, and the time (metrics.py)."""


class _AnswerWaiter:
    """A caller of `without_linger`. The accumulator refers to it weakly: an interrupt at any line ends the wait."""


class ReadyCheck(NamedTuple):
    """What the sender can do now, and when to look again if nothing happens."""

    ready_node_ids: frozenset[int]
    next_check_delay_ms: float  # inf if nothing waits for a time
    unknown_leader_topics: frozenset[str]


class RecordAccumulator:
    """See the module's docstring."""

    def __init__(  # noqa: PLR0913 - the parts that it works with, each by its name
        self,
        config: ProducerConfig,
        pool: BufferPool,
        *,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        wakeup: Callable[[], None],
        wait: Wait,
        random: Random,
        partitioner: Partitioner,
        rows_given: RowsGiven,
    ) -> None:
        """`wakeup` makes the sender look again; it is called by appends, from any thread. `wait` waits for memory."""
        self._config = config
        self.pool = pool
        self._partitioner = partitioner
        self._rows_given = rows_given
        self._clock = clock
        self._wakeup = wakeup
        self._wait = wait
        self._chunk_bytes_max = max(1, config.buffer_memory // _CHUNK_SHARE)
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
            partitions_of=self._partitions_of,
        )
        self._stuck_nodes = StuckNodes(config.partitioner_availability_timeout_ms)
        self._encoded_copies = 1 if config.codec is Codec.NONE else 2  # a batch is compressed from a second copy
        self._closed = False
        self._answer_waiters: WeakSet[_AnswerWaiter] = WeakSet()

    # -- callers of send ----------------------------------------------------------------------------------------------

    def append_columns(
        self,
        topic: str,
        rows: Rows,
        *,
        block_ms: float | None = None,
        still: Callable[[], None] | None = None,
    ) -> tuple[int, KafkaSinkError | None]:
        """Stage rows that are assigned to partitions; returns how many of them, from the first on, and why the others
        were not.

        Waits up to `block_ms` for the memory of each chunk (max.block.ms). `still` raises if, after that, the rows may
        not be staged any more.
        """
        for start, stop, size in chunks(rows.sizes, _CHUNK_ROWS_MAX, self._chunk_bytes_max):
            chunk = rows.slice(start, stop)
            try:
                self._stage(topic, chunk, size, block_ms, still)
            except KafkaSinkError as error:
                return start, error
        return len(rows), None

    def append_record(  # noqa: PLR0913 - what a record brings along; an object for it would cost a tenth of send()
        self,
        topic: str,
        record: SingleRecord,
        size: int,
        snapshot: ClusterSnapshot,
        callbacks: tuple[Callback, ...] = (),
        *,
        block_ms: Callable[[], float] | None = None,
        still: Callable[[], None] | None = None,
    ) -> SendFuture:
        """Stage one record of at most `size` bytes. It gets its partition later, by `snapshot` or a newer one.

        BufferExhaustedError when no memory came within `block_ms` (max.block.ms), which is asked if there is none.
        """
        wanted = self._wanted(size, size, FUTURE_BYTES)
        if not self.pool.try_reserve(wanted):
            self._await_memory(wanted, None if block_ms is None else block_ms())
        with self._lock:
            if self._closed or still is not None:
                self._ensure_may_stage(wanted, still)
            stage = self._filler.stages.get(topic)
            is_new = stage is None
            if stage is None:
                stage = self._filler.new_stage(topic, self._clock())
            future = stage.add_record(record, size, wanted, snapshot, callbacks)
            batch_bytes = self._filler.full_bytes(topic)
            is_full = stage.is_full(batch_bytes)
            wakes = is_new or (not is_full and stage.schedule_placing(batch_bytes, self._config.linger_ms, self._clock))
        if is_full or wakes:
            self._staged(topic, is_full=is_full, wakes=wakes)
        return future

    def partition_loads(self, topic: str, snapshot: ClusterSnapshot) -> PartitionLoads | None:
        """For the adaptive partitioner; None while not all partitions have been written to."""
        info = snapshot.topics.get(topic)
        if info is None or not info.partitions:
            return None
        with self._lock:
            lengths = self._queues.lengths(topic, [partition.index for partition in info.partitions])
            return None if lengths is None else self._stuck_nodes.usable(info, lengths, snapshot)

    def _partitions_of(
        self,
        topic: str,
        rows: Rows,
        snapshot: ClusterSnapshot,
    ) -> NDArray[np.int32]:
        """Of single records, which are counted here: one by one, that would cost as much as their staging."""
        self._rows_given(len(rows), int(rows.sizes.sum()), int(rows.sizes.max()), self._clock())
        loads = partial(self.partition_loads, topic, snapshot)
        return self._partitioner.assign(topic, rows.columns, rows.sizes, rows.named, snapshot, loads)

    def _stage(
        self,
        topic: str,
        rows: Rows,
        encoded: int,
        block_ms: float | None,
        still: Callable[[], None] | None,
    ) -> None:
        """Reserve memory for some rows, and add them to their topic's stage."""
        wanted = self._wanted(encoded, rows.columns.nbytes, rows.row_indices.nbytes)
        if not self.pool.try_reserve(wanted):
            self._await_memory(wanted, block_ms)
        with self._lock:
            self._ensure_may_stage(wanted, still)
            stage = self._filler.stages.get(topic)
            is_new = stage is None
            if stage is None:
                stage = self._filler.new_stage(topic, self._clock())
            stage.add(rows, wanted)
            batch_bytes = self._filler.full_bytes(topic)
            is_full = stage.is_full(batch_bytes)
            wakes = is_new or (not is_full and stage.schedule_placing(batch_bytes, self._config.linger_ms, self._clock))
        self._staged(topic, is_full=is_full, wakes=wakes)

    def _ensure_may_stage(self, reserved: int, still: Callable[[], None] | None) -> None:
        """`still` is asked under the lock: what it lets pass is seen by `has_incomplete`, and no transaction ends
        before."""
        try:
            if self._closed:
                raise ProducerClosedError("The producer was closed.")
            if still is not None:
                still()
        except KafkaSinkError:
            self.pool.release(reserved)
            raise

    def _staged(self, topic: str, *, is_full: bool, wakes: bool) -> None:
        """Fill batches if the stage is full. Wake the sender if there may be something to send, or if `wakes`: the
        stage is due at a time that the sender has not seen."""
        if (is_full and self._filler.fill(topic, only_full=True)) or wakes:
            self._wakeup()

    def _wanted(self, encoded: int, staged: int, kept: int) -> int:
        """Bytes to reserve: for the larger form of the rows, and for what is `kept` beside them until their result."""
        wanted = kept + max(staged, self._encoded_copies * encoded)
        if wanted <= self.pool.bytes_max:
            return wanted
        if encoded > self.pool.bytes_max:
            raise RecordTooLargeError(
                f"A record of {encoded} bytes does not fit into buffer.memory ({self.pool.bytes_max} bytes)."
            )
        return self.pool.bytes_max

    def _await_memory(self, wanted: int, block_ms: float | None) -> None:
        with self._lock:
            self._filler.free_sparse_memory()
        self.pool.reserve(wanted, self._config.max_block_ms if block_ms is None else block_ms, self._wait_for_memory)

    def _wait_for_memory(self, woken: threading.Event, timeout_ms: float | None) -> bool:
        self._wakeup()
        return self._wait(woken, timeout_ms)

    @contextmanager
    def without_linger(self) -> Iterator[None]:
        """For a caller that waits for answers: as when memory is short, no row waits for linger.ms."""
        waiter = _AnswerWaiter()
        try:
            self._answer_waiters.add(waiter)
            self._wakeup()
            yield
        finally:
            self._answer_waiters.discard(waiter)

    # -- sender thread ------------------------------------------------------------------------------------------------

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheck:
        """Fill batches with the rows that have lingered; which nodes have a batch that may be sent?"""
        with self._lock:
            at_once = self._closed or self._incomplete.flushing
            short = self.pool.waiters > 0
            hurry = at_once or short or len(self._answer_waiters) > 0
            self._queues.set_snapshot(snapshot, now)
            self._queues.set_hurry(hurry, now)
            self._queues.fire_timers(now)
            if short and not at_once:
                self._filler.free_sparse_memory()
            flushes = self._incomplete.new_flushes()
            due, next_ms = self._find_due(now, at_once=at_once, hurry=hurry)
            if flushes:
                due = dict.fromkeys(self._filler.topics(), False)
            elif not due:
                return self._ready_check(now, next_ms)
        for topic, only_full in due.items():
            began = self._clock()
            is_changed = self._filler.fill(topic, only_full=only_full)
            if not only_full:
                with self._lock:
                    self._queues.note_fill(topic, began, self._clock())
            elif is_changed:  # records that wait on may have to be placed again
                next_ms = min(next_ms, now + PLACE_DELAY_MS)
        with self._lock:
            self._incomplete.arm(flushes)
            return self._ready_check(now, next_ms)

    def _find_due(self, now: float, *, at_once: bool, hurry: bool) -> tuple[dict[str, bool], float]:
        """Return the topics to fill batches of, True where only full batches leave, and when the next topic is due."""
        due: dict[str, bool] = {}
        next_ms = INFINITE_MS
        for stage in self._filler.all_stages():
            due_ms = -INFINITE_MS if at_once else self._due_ms(stage, now, hurry=hurry)
            only_full = due_ms > now
            if only_full:
                next_ms = min(next_ms, due_ms)
            if only_full and stage.place_due_ms > now:
                next_ms = min(next_ms, stage.place_due_ms)
            elif self._filler.is_taken(stage):
                stage.overlooked = True
            else:
                due[stage.topic] = only_full
        return due, next_ms

    def _due_ms(self, stage: Stage, now: float, *, hurry: bool) -> float:
        """When to fill batches with the rows of a stage that is not full. `hurry`: memory is short, so that rows
        which a leader could take wait for nothing."""
        if hurry and not self._queues.hold_ms(stage.topic):
            return stage.oldest_ms
        wanted_ms = stage.oldest_ms + (0.0 if hurry else self._config.linger_ms)
        wanted_ms = max(wanted_ms, self._queues.pause_until_ms(stage.topic))
        return wanted_ms if wanted_ms > now else wanted_ms + self._queues.hold_ms(stage.topic)

    def _ready_check(self, now: float, next_ms: float) -> ReadyCheck:
        delay_ms = max(0.0, min(next_ms, self._queues.next_due_ms()) - now)
        return ReadyCheck(self._queues.sendable_nodes(), delay_ms, self._queues.topics_without_leader())

    def drain(
        self, snapshot: ClusterSnapshot, node_ids: Iterable[int], max_request_size: int, now: float, admit: Admit
    ) -> dict[int, list[ProducerBatch]]:
        """Take at most one batch per partition and `max_request_size` bytes per node; they are closed and IN_FLIGHT."""
        drained: dict[int, list[ProducerBatch]] = {}
        with self._lock:
            self._queues.set_snapshot(snapshot, now)
            for node_id in node_ids:
                batches = self._queues.take(node_id, max_request_size, now, admit)
                if batches:
                    drained[node_id] = batches
            unfinished = [batch for batch in itertools.chain.from_iterable(drained.values()) if batch.state is DRAINED]
        for batch in unfinished:
            self._filler.close_batch(batch)
        for batch in itertools.chain.from_iterable(drained.values()):
            batch.depart(now)
        return drained

    def recheck(self, topic_partition: TopicPartition | None = None) -> None:
        """Idempotence may admit the head of a partition now, or of any. Done by reenqueue, split and finish."""
        with self._lock:
            now = self._clock()
            for queue in self._queues if topic_partition is None else (self._queues.get(topic_partition),):
                self._queues.unblock(queue, now)

    def reenqueue(self, batch: ProducerBatch, now: float, error: Exception) -> None:
        """Send it again after its backoff. Its request must be off the wire. Kept in sequence order."""
        with self._lock:
            batch.requeue(backoff_until_ms=self._backoff.next_attempt_ms(now, batch.attempts), error=error)
            self._queues.put_back([batch], now)

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Replace a batch that was refused as too large by smaller ones, from which its rows get their results."""
        self._filler.forget_ratio(batch)
        from spark_kafka_sink.producer.batching.split import split_batch  # rare, and it needs the decoder

        children = split_batch(batch, batch.uncompressed_bytes // 2 if batch.is_split else self._config.batch_size)
        for child in children:
            self._filler.close_batch(child)
            child.move_to_own_memory()  # else the parent's buffer stays until the last of them has gone
        with self._lock:
            for child in children:
                self._incomplete.add(child)
            self._incomplete.forget(batch, successors=children)
            batch.split_up()
            self._queues.put_back(children, now)
        return children

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """Batches whose delivery.timeout.ms has passed, each once. The caller fails them and then calls finish().

        Queued ones are taken out of their queue, those in flight stay in flight.
        """
        if now < self.next_expiry_ms():
            return []
        with self._lock:
            expired = self._incomplete.take_expired(now)
            for batch in expired:
                self._queues.remove(batch, now)
        return expired

    def withdraw(self, batch: ProducerBatch) -> None:
        """Take a batch out of its queue. The caller fails it and then calls finish()."""
        with self._lock:
            self._queues.remove(batch, self._clock())

    def next_expiry_ms(self) -> float:
        """No batch expires before; inf if there is none. Read without the lock: adding a batch wakes the sender."""
        return self._incomplete.next_deadline_ms

    def failed_batches(self) -> list[ProducerBatch]:
        """Batches that could not be encoded: DONE, with their error. The caller resolves the futures, then finish()."""
        if not self._filler.some_failed:  # what fails a moment later has woken the sender
            return []
        with self._lock:
            return self._filler.take_failed()

    def finish(self, *batches: ProducerBatch) -> None:
        """The batches are DONE and their futures resolved: forget them, wake flushes. Once per batch."""
        with self._lock:
            self._incomplete.forget(*batches)
            if self._queues.has_blocked:
                for batch in batches:
                    self._queues.unblock(self._queues.get(batch.topic_partition), self._clock())

    def note_node(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Note when a node was last ready and last drained (partitioner.availability.timeout.ms)."""
        with self._lock:
            self._stuck_nodes.note(node_id, now, can_drain=can_drain)

    # -- flush and close ----------------------------------------------------------------------------------------------

    def flush(self, wait: Callable[[threading.Event], bool]) -> bool:
        """Make everything sendable at once, and `wait` until what was appended before is acknowledged or has failed."""
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
        """Is anything staged, queued or in flight?"""
        with self._lock:
            return self._filler.has_rows or len(self._incomplete) > 0

    def has_undrained(self) -> bool:
        """Is anything staged or queued?"""
        with self._lock:
            return self._filler.has_rows or any(queue.batches for queue in self._queues)

    def queued(self, topic_partition: TopicPartition) -> list[ProducerBatch]:
        """The batches that wait in the partition's queue, in the order in which they will leave."""
        with self._lock:
            return list(self._queues.get(topic_partition).batches)

    def close(self) -> None:
        """No more appends: blocked ones end with ProducerClosedError; everything queued becomes sendable. Sender
        thread: the thread that closes the producer may be in a signal handler, and hold the lock."""
        with self._lock:
            self._closed = True
        self.pool.close()

    def end(self) -> None:
        """All batches are done, and none will come: end the flushes that wait, even those that have just begun."""
        with self._lock:
            self._incomplete.arm(self._incomplete.new_flushes())

    def abort_incomplete(self, error: Exception, *, in_flight_too: bool = True) -> list[ProducerBatch]:
        """Fail everything staged, queued and in flight. Sender thread; it resolves the futures, then calls finish()."""
        aborted: list[ProducerBatch] = []
        for topic in self._filler.topics():
            with self._filler.fill_lock(topic):  # no thread fills this topic now, so none of its batches is pinned
                in_no_batch = self._filler.fail_rows(topic, error)
                with self._lock:
                    now = self._clock()
                    for batch in self._incomplete:
                        if batch.topic_partition.topic != topic or batch.done:
                            continue
                        if in_flight_too or batch.state is not IN_FLIGHT:
                            self._queues.remove(batch, now)
                            batch.fail(error)
                            aborted.append(batch)
                aborted += in_no_batch  # they came after those in batches
        return aborted
