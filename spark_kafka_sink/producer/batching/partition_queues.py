"""PartitionQueues: one batch queue per topic-partition, and an index of the queues that are ready to be drained.

With a thousand partitions, most have nothing to send at any given moment, so the sender does not visit all queues. A
queue is scheduled only when its timer expires, or after an event that concerns it: a batch was added, completed or
retried; the leader changed; linger was suspended. Scheduling looks at the queue's head (its oldest batch) and adds the
queue to one of two indexes, or to neither:

    timers       the head lingers or backs off until a known time
    ready        the head can be sent now; ready queues are grouped by leader, so that draining a node needs no search
    neither      the queue is empty or muted, or its head is pinned: another thread is encoding records for it or
                 compressing it without the lock (batch_filler.py)

The ready queues of a node take turns. A queue from which a batch was drained moves to the end. If a queue's head does
not fit into the request, the queue stays at the front.

The idempotence check (`AdmitBatch`) may decide that a head must not be sent yet. Only that queue is then muted, and the
node's other queues are still drained. The queue is unmuted when one of its batches is completed or retried, or by a
call of `unmute`, whose caller knows that the head may be sent now. (The Java client stops draining the node and begins
with the same partition in the next round, so the node's other partitions wait and the sender spins.)

A fill turns the staged rows of a topic into batches (batch_filler.py). Two delays make the batches larger, which lowers
the cost per row:

    fill pause      after the sender has filled batches with rows that have lingered, the topic's next rows stay staged
                    for a while
    extra linger    rows that could not be sent yet anyway stay staged longer

The accumulator's lock guards everything in this module. Times are in milliseconds on the producer's monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import OPEN, PINNED, ProducerBatch
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.header import HEADER_BYTES

INFINITE_MS = float("inf")
"""The due time of something that only an event can make due."""
_NO_TOPICS: frozenset[str] = frozenset()
_MAX_EXTRA_LINGER_MS = 100.0
"""Duration of the extra linger (see `extra_linger_ms`), and the maximum duration of a fill pause. With a thousand
partitions, the extra linger halves the cost per row. It must be limited: until rows are in batches, they neither expire
nor release the memory reserved for encoding them, so unresponsive leaders would keep them staged forever."""
_FILL_PAUSE_FACTOR = 2
"""Duration of a fill pause, relative to the fill before it. With a factor of 2, the sender spends at most a third of
its time filling batches with rows that have lingered. With many partitions, a fill is slow, but the longer pause after
it also lets each batch collect more rows."""
_MIN_FILL_PAUSE_MS = 5.0
"""Minimum duration of a fill pause. Shorter pauses are skipped, because a wait may end up to a millisecond late."""


class AdmitBatch(Protocol):
    """The idempotence check: a function that decides whether a queue's oldest batch may be sent to the leader now.

    When it returns True, the batch has a sequence (unless idempotence is disabled) and counts as in flight. When it
    returns False, the queue is muted. The accumulator's lock is held during the call, so the function must not call the
    accumulator.
    """

    def __call__(self, batch: ProducerBatch, leader_id: int, /) -> bool: ...


class PartitionQueue:
    """The batches of one topic-partition that are not in flight, oldest first. Only the last batch may be open."""

    __slots__ = ("batches", "due_ms", "is_ready", "leader_epoch", "leader_id", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: list[ProducerBatch] = []  # with thousands of queues, deques would take megabytes
        self.is_ready = False
        self.due_ms = INFINITE_MS  # time of the current timer; the heap may contain stale timers with other times
        self.leader_id: int | None = None  # None if the leader is unknown or not among the known nodes
        self.leader_epoch: int | None = None

    def pin_open_batch(self) -> ProducerBatch | None:
        """Pin and return the last batch, to which this thread will append records. Return None if it is not open.

        A ready queue stays ready, because the sender skips pinned batches.
        """
        last_batch = self.batches[-1] if self.batches else None
        if last_batch is None or last_batch.state is not OPEN:
            return None
        last_batch.pin()
        return last_batch

    def insert_in_sequence_order(self, batch: ProducerBatch) -> None:
        """Put a batch back into the queue, before all batches that have a later sequence or no sequence.

        A batch that has no sequence itself goes to the front, where it was before it was drained.
        """
        if not batch.has_sequence:
            self.batches.insert(0, batch)
            return
        index = 0
        for queued_batch in self.batches:
            if not queued_batch.has_sequence or not has_earlier_sequence(queued_batch, batch):
                break
            index += 1
        self.batches.insert(index, batch)


def has_earlier_sequence(batch: ProducerBatch, other: ProducerBatch) -> bool:
    """Return whether `batch` precedes `other` by producer id, then epoch, then base sequence.

    Sequences wrap around: 0 follows 2^31 - 1.
    """
    if (batch.producer_id, batch.producer_epoch) != (other.producer_id, other.producer_epoch):
        return (batch.producer_id, batch.producer_epoch) < (other.producer_id, other.producer_epoch)
    return sequences.is_after(other.base_sequence, batch.base_sequence)


class PartitionQueues:
    """The batch queues of all topic-partitions, indexed by partition, leader and due time.

    The head of a queue is its oldest batch.
    """

    def __init__(self, linger_ms: float, max_request_size: int = 1 << 20) -> None:
        self._linger_ms = linger_ms
        self._max_request_size = max_request_size
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._queues_by_topic: dict[str, dict[int, PartitionQueue]] = {}  # by topic and partition
        self._ready_queues: defaultdict[int | None, dict[PartitionQueue, None]] = defaultdict(dict)
        """Ready queues by leader, in the order in which they are drained. The key None stands for an unknown leader."""
        self._timers: list[tuple[float, int, PartitionQueue]] = []  # heap of due time, tie breaker and queue
        self._tie_breakers = itertools.count()  # compared by heapq if times are equal, because queues have no order
        self._snapshot = ClusterSnapshot()
        self._topic_leaders: dict[str, frozenset[int]] = {}  # cached for the current snapshot
        self._fill_pause_ends_ms: dict[str, float] = {}  # by topic
        self._is_linger_suspended = False
        self._muted_queues: set[PartitionQueue] = set()

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._queues.values())

    def get(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the queue of a topic-partition. Create the queue if there is none."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
            self._queues_by_topic.setdefault(topic_partition.topic, {})[topic_partition.partition] = queue
            self._set_leader(queue)
        return queue

    def get_many(self, topic: str, partitions: Iterable[int]) -> list[PartitionQueue]:
        """Return the queues of a topic's partitions, in the order of `partitions`. Create missing queues."""
        queues = self._queues_by_topic.get(topic, {})
        return [queues.get(partition) or self.get(TopicPartition(topic, partition)) for partition in partitions]

    def find_topic_queues(self, topic: str) -> list[PartitionQueue]:
        """Return all queues that exist for a topic."""
        return list(self._queues_by_topic.get(topic, {}).values())

    def find_queue_lengths(self, topic: str, partitions: Sequence[int]) -> list[int] | None:
        """Return the number of queued batches of each partition, or None if any of the partitions has no queue yet."""
        queues = [self._queues.get(TopicPartition(topic, partition)) for partition in partitions]
        lengths = [len(queue.batches) for queue in queues if queue is not None]
        return lengths if len(lengths) == len(queues) else None

    # -- events -------------------------------------------------------------------------------------------------------

    def set_snapshot(self, snapshot: ClusterSnapshot, now_ms: float) -> None:
        """Update the leaders of the queues whose topic has changed, or of all queues if the nodes have changed.

        A metadata response about a few new topics does not touch the queues of other topics. Otherwise, if many topics
        became known one after another, visiting all queues each time would take quadratic time.
        """
        if snapshot is self._snapshot:
            return
        previous_snapshot, self._snapshot = self._snapshot, snapshot
        has_same_nodes = previous_snapshot.nodes == snapshot.nodes
        for topic in dict.fromkeys([*self._queues_by_topic, *self._topic_leaders]):
            if has_same_nodes and previous_snapshot.topics.get(topic) is snapshot.topics.get(topic):
                continue
            self._topic_leaders.pop(topic, None)
            self._update_leaders(self.find_topic_queues(topic), now_ms)

    def _update_leaders(self, queues: Iterable[PartitionQueue], now_ms: float) -> None:
        """Read the leaders of these queues from the current snapshot, and schedule the queues again."""
        for queue in queues:
            previous_leader = (queue.leader_id, queue.leader_epoch)
            # Remove the queue before its leader changes, because the ready queues are indexed by leader.
            self._remove_from_ready(queue)
            self._set_leader(queue)
            if previous_leader != (queue.leader_id, queue.leader_epoch):
                # KIP-951: the new leader may accept batches that the previous leader rejected, so retry them without a
                # backoff.
                for batch in queue.batches:
                    batch.skip_backoff()
            self.schedule(queue, now_ms)

    def set_linger_suspended(self, is_suspended: bool, now_ms: float) -> None:
        """Set whether linger is suspended, so that open batches are ready immediately.

        Linger is suspended while memory is short, during a flush or close, and inside `without_linger` blocks.
        """
        was_suspended, self._is_linger_suspended = self._is_linger_suspended, is_suspended
        if is_suspended and not was_suspended:
            for queue in self._queues.values():
                if queue.batches and not queue.is_ready:
                    self.schedule(queue, now_ms)
        # When a suspension ends, ready queues stay ready, because `drain_node` checks again whether their heads are
        # due.

    def schedule(self, queue: PartitionQueue, now_ms: float) -> None:
        """Make a queue ready, or set its timer, or do neither, depending on its head.

        Call this after every event that may change when the head can be sent.
        """
        due_ms = self._compute_head_due_ms(queue)
        if due_ms <= now_ms:
            queue.due_ms = INFINITE_MS  # a ready queue needs no timer; this makes any previous one stale
            if not queue.is_ready:
                queue.is_ready = True
                self._ready_queues[queue.leader_id][queue] = None
            return
        self._remove_from_ready(queue)
        if due_ms != queue.due_ms:
            queue.due_ms = due_ms  # any previous timer stays in the heap, but this makes it stale
            if due_ms < INFINITE_MS:
                heapq.heappush(self._timers, (due_ms, next(self._tie_breakers), queue))

    def fire_timers(self, now_ms: float) -> None:
        """Schedule the queues whose timer has expired."""
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, _, queue = heapq.heappop(self._timers)
            if due_ms == queue.due_ms:
                self.schedule(queue, now_ms)

    def find_next_due_ms(self) -> float:
        """Return the time of the next timer, or inf if there is none. Discard the stale timers before it."""
        while self._timers:
            due_ms, _, queue = self._timers[0]
            if due_ms == queue.due_ms:
                return due_ms
            heapq.heappop(self._timers)
        return INFINITE_MS

    @property
    def has_muted_queues(self) -> bool:
        """Whether any queue is muted."""
        return bool(self._muted_queues)

    def unmute(self, queue: PartitionQueue, now_ms: float) -> None:
        """Let `drain_node` try again to send the queue's head. Do nothing if the queue is not muted."""
        if queue in self._muted_queues:
            # Unmute the queue first, because a muted queue is never due.
            self._muted_queues.discard(queue)
            self.schedule(queue, now_ms)

    def reenqueue(self, batches: list[ProducerBatch], now_ms: float) -> None:
        """Put batches of one topic-partition back into their queue, for a retry or after a split. Unmute the queue.

        `batches`: the batches in sequence order.
        """
        queue = self.get(batches[0].topic_partition)
        # Start with the last batch, because batches without a sequence are inserted at the front.
        for batch in reversed(batches):
            # KIP-951: do not wait for the backoff if the leader has changed since the batch was drained.
            if batch.leader_epoch != queue.leader_epoch:
                batch.skip_backoff()
            queue.insert_in_sequence_order(batch)
        self._muted_queues.discard(queue)
        self.schedule(queue, now_ms)

    def remove(self, batch: ProducerBatch, now_ms: float) -> None:
        """Remove a batch from its queue. Do nothing if the batch is not queued."""
        queue = self.get(batch.topic_partition)
        if batch in queue.batches:
            queue.batches.remove(batch)
            self.schedule(queue, now_ms)

    def is_queued_and_unpinned(self, batch: ProducerBatch) -> bool:
        """Return whether a batch is in its queue and not pinned, so that whoever holds the lock may change it.

        A batch that has left its queue belongs to the sender, which may send or fail it at any moment without the lock.
        """
        return batch.state is not PINNED and batch in self.get(batch.topic_partition).batches

    def ready_node_ids(self) -> frozenset[int]:
        """Return the ids of the nodes that lead a partition with a ready queue."""
        return frozenset([node_id for node_id, queues in self._ready_queues.items() if queues and node_id is not None])

    def unknown_leader_topics(self) -> frozenset[str]:
        """Return the topics that have a ready queue whose leader is unknown."""
        leaderless_queues = self._ready_queues.get(None)
        if not leaderless_queues:  # the usual case
            return _NO_TOPICS
        return frozenset([queue.topic_partition.topic for queue in leaderless_queues])

    def extra_linger_ms(self, topic: str) -> float:
        """Return how long a topic's rows stay staged after linger.ms: 0 or _MAX_EXTRA_LINGER_MS.

        The extra linger applies while each of the topic's leaders already has enough ready batches to fill a request.
        More rows could not be sent yet anyway, so they stay staged. In the Java client, they would stay in open
        batches. Only the head of each queue counts, so that a long queue of one partition does not delay the rows of
        others.
        """
        leaders = self._topic_leaders.get(topic)
        if leaders is None:
            leaders = self._topic_leaders[topic] = self._find_leaders(topic)
        return _MAX_EXTRA_LINGER_MS if leaders and all(self._has_full_request(leader) for leader in leaders) else 0.0

    def begin_fill_pause(self, topic: str, fill_started_ms: float, fill_ended_ms: float) -> None:
        """Keep a topic's next rows staged for a time that is proportional to the duration of the last fill.

        If the pause would be shorter than _MIN_FILL_PAUSE_MS, there is none, and any earlier pause ends.
        """
        pause_ms = min(_FILL_PAUSE_FACTOR * (fill_ended_ms - fill_started_ms), _MAX_EXTRA_LINGER_MS)
        self._fill_pause_ends_ms[topic] = fill_ended_ms + pause_ms if pause_ms >= _MIN_FILL_PAUSE_MS else 0.0

    def fill_pause_end_ms(self, topic: str) -> float:
        """Return the time at which a topic's fill pause ends, or 0 if there is none.

        During the pause, the sender fills no batches with rows that have lingered. There are two exceptions: a flush or
        the close is in progress, or linger is suspended while no extra linger applies.
        """
        return self._fill_pause_ends_ms.get(topic, 0.0)

    # -- drain --------------------------------------------------------------------------------------------------------

    def drain_node(self, node_id: int, max_bytes: int, now_ms: float, admit: AdmitBatch) -> list[ProducerBatch]:
        """Remove and return the oldest batches of a node's ready queues, at most one batch per queue.

        The total size of the batches is at most `max_bytes`, unless the first batch alone is larger.

        `admit`: returns whether a batch may be sent now. If not, the batch's queue is muted.
        """
        drained_batches: list[ProducerBatch] = []
        drained_bytes = 0
        ready_queues = self._ready_queues[node_id]
        for queue in list(ready_queues):
            batches = queue.batches
            batch = batches[0]
            batch_bytes = batch.body_bytes + HEADER_BYTES  # batch.size_bytes, without a call
            if drained_batches and drained_bytes + batch_bytes > max_bytes:
                break
            # The queue is added again below if its next batch is ready. It is then behind the node's other queues.
            del ready_queues[queue]
            queue.is_ready = False
            # Most batches need no computation, because a closed batch is due unless it is backing off.
            may_not_be_due = batch.state is OPEN or batch.state is PINNED or batch.failed_attempts > 0
            if may_not_be_due and self._compute_head_due_ms(queue) > now_ms:
                self.schedule(queue, now_ms)
                continue
            if not admit(batch, node_id):
                self._muted_queues.add(queue)
                continue
            batch.mark_drained(queue.leader_epoch)
            drained_bytes += batch_bytes
            drained_batches.append(batches.pop(0))
            if not batches:
                continue
            head = batches[0]
            if head.state is OPEN or head.state is PINNED or head.failed_attempts:
                self.schedule(queue, now_ms)
            else:  # a closed batch without failed attempts is ready immediately
                queue.is_ready = True
                ready_queues[queue] = None
        return drained_batches

    # -- implementation -----------------------------------------------------------------------------------------------

    def _compute_head_due_ms(self, queue: PartitionQueue) -> float:
        """Return the time from which a queue's oldest batch may be sent.

        The result is -inf if the batch may be sent now, and inf if it must wait for an event rather than a time.
        """
        batches = queue.batches
        if not batches or (self._muted_queues and queue in self._muted_queues):
            return INFINITE_MS
        head = batches[0]
        if head.state is PINNED:
            return INFINITE_MS
        if head.is_backing_off:
            return head.backoff_until_ms
        if head.state is not OPEN or len(batches) > 1 or self._is_linger_suspended:
            return -INFINITE_MS
        return head.oldest_row_arrival_ms + self._linger_ms

    def _set_leader(self, queue: PartitionQueue) -> None:
        """Set a queue's leader to the one in the current metadata, or to None if it is unknown."""
        partition_info = self._snapshot.partition(*queue.topic_partition)
        if partition_info is None:
            queue.leader_id = queue.leader_epoch = None
            return
        queue.leader_id = partition_info.leader if partition_info.leader in self._snapshot.nodes else None
        queue.leader_epoch = partition_info.leader_epoch

    def _find_leaders(self, topic: str) -> frozenset[int]:
        """Return the known leaders of a topic's partitions."""
        topic_info = self._snapshot.topics.get(topic)
        if topic_info is None:
            return frozenset()
        leaders = {partition.leader for partition in topic_info.partitions}
        return frozenset(leader for leader in leaders if leader is not None and leader in self._snapshot.nodes)

    def _has_full_request(self, node_id: int) -> bool:
        """Return whether the oldest batches of a node's ready queues have at least max.request.size bytes in total."""
        total_bytes = 0
        for queue in self._ready_queues.get(node_id, ()):
            total_bytes += queue.batches[0].size_bytes
            if total_bytes >= self._max_request_size:
                return True
        return False

    def _remove_from_ready(self, queue: PartitionQueue) -> None:
        if queue.is_ready:
            queue.is_ready = False
            self._ready_queues[queue.leader_id].pop(queue, None)
