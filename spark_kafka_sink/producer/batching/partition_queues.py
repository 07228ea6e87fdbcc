"""PartitionQueues: one queue of batches per topic-partition, and an index of the queues that are ready to be drained.

At any moment, most of a thousand partitions have nothing to send. So the sender does not visit all queues. A queue is
examined only when an event concerns it (a batch was added, completed or retried; the leader changed), or when the time
for which it waits has come. It is then in one of these places:

    none         it is empty or muted, or its head is pinned by another thread
    timers       its head lingers or backs off until a known time
    ready        its head can be sent now; ready queues are kept by leader, so that no search is needed for a node

The ready queues of a node are drained in turn. A queue that was drained goes to the end; a queue whose head did not fit
into the request stays at the front.

Idempotence may refuse to admit a head (`AdmitBatch`). Java's client then stops draining the node and begins with the
same partition in the next round, which stalls the node and spins. Here the queue is muted and the other queues are
drained. It is unmuted by the next event that concerns it, or when idempotence asks for it.

Everything here is guarded by the accumulator's lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import OPEN, PINNED, ProducerBatch
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.header import HEADER_BYTES

INFINITE_MS = float("inf")
_NO_TOPICS: frozenset[str] = frozenset()
_MAX_EXTRA_LINGER_MS = 100.0
"""The limit matters when leaders are unresponsive: staged rows must be able to expire, and must release the memory that
is reserved for encoding them. With a thousand partitions, the extra linger halves the cost of a row."""
_FILL_PAUSE_FACTOR = 2
"""After batches were filled with rows of a topic that had lingered, the sender pauses this many times as long before it
fills them again, so that it spends at most a third of its time on them. With many partitions, filling takes long; but
the longer the pause, the more rows each batch gets."""
_MIN_FILL_PAUSE_MS = 5.0
"""Shorter pauses are omitted, because a wait may end up to a millisecond late."""


AdmitBatch = Callable[[ProducerBatch, int, float], bool]
"""Decide whether the head of a queue may be sent to a leader now. Arguments: batch, node id of the leader, time.

Implemented by idempotence. If the result is True, the batch has been assigned a sequence and counts as in flight. If it
is False, the queue is muted until `unmute` is called, so that the sender does not spin. The function is called under
the accumulator's lock and must not call the accumulator."""


class PartitionQueue:
    """The batches of one topic-partition that are not in flight, oldest first. Only the last one may be open."""

    __slots__ = ("batches", "due_ms", "is_ready", "leader_epoch", "leader_id", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: list[ProducerBatch] = []  # with thousands of queues, deques would take megabytes
        self.is_ready = False
        self.due_ms = INFINITE_MS  # time of the current timer; timers of this queue with other times are stale
        self.leader_id: int | None = None
        self.leader_epoch: int | None = None

    def pin_open_batch(self) -> ProducerBatch | None:
        """Pin and return the batch that accepts more records; None if there is none.

        A ready queue remains ready, because the sender skips a pinned head.
        """
        last = self.batches[-1] if self.batches else None
        if last is None or last.state is not OPEN:
            return None
        last.pin()
        return last

    def insert_in_sequence_order(self, batch: ProducerBatch) -> None:
        """Insert a batch before all batches with later sequences. A batch without a sequence becomes the head."""
        if not batch.has_sequence:
            self.batches.insert(0, batch)
            return
        index = 0
        for queued in self.batches:
            if not queued.has_sequence or not has_earlier_sequence(queued, batch):
                break
            index += 1
        self.batches.insert(index, batch)


def has_earlier_sequence(first: ProducerBatch, second: ProducerBatch) -> bool:
    """Return whether the first batch precedes the second one by producer identity and sequence.

    Sequences wrap around: 2^31 - 1 is followed by 0.
    """
    if (first.producer_id, first.producer_epoch) != (second.producer_id, second.producer_epoch):
        return (first.producer_id, first.producer_epoch) < (second.producer_id, second.producer_epoch)
    return sequences.is_after(second.base_sequence, first.base_sequence)


class PartitionQueues:
    """The queues of all topic-partitions, by partition, leader and due time."""

    def __init__(self, linger_ms: float, max_request_size: int = 1 << 20) -> None:
        self._linger_ms = linger_ms
        self._max_request_size = max_request_size
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._by_topic: dict[str, dict[int, PartitionQueue]] = {}
        self._ready_queues: defaultdict[int | None, dict[PartitionQueue, None]] = defaultdict(dict)
        """Ready queues by leader, in the order in which they are drained. The key None stands for no known leader."""
        self._timers: list[tuple[float, int, PartitionQueue]] = []
        self._tie_breaker = itertools.count()
        self._snapshot = ClusterSnapshot()
        self._topic_leaders: dict[str, frozenset[int]] = {}  # a cache for the current snapshot
        self._fill_pause_ends_ms: dict[str, float] = {}  # by topic
        self._is_linger_suspended = False
        self._muted: set[PartitionQueue] = set()

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._queues.values())

    def get(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the queue of a topic-partition, which is created on first use."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
            self._by_topic.setdefault(topic_partition.topic, {})[topic_partition.partition] = queue
            self._set_leader(queue)
        return queue

    def get_many(self, topic: str, partitions: Iterable[int]) -> list[PartitionQueue]:
        """Return the queues of some partitions of a topic, which are created on first use."""
        existing = self._by_topic.get(topic, {})
        return [existing.get(partition) or self.get(TopicPartition(topic, partition)) for partition in partitions]

    def topic_queues(self, topic: str) -> list[PartitionQueue]:
        """Return all existing queues of a topic."""
        return list(self._by_topic.get(topic, {}).values())

    def queue_lengths(self, topic: str, partitions: Sequence[int]) -> list[int] | None:
        """Return the number of batches in the queue of each partition, or None unless all of them have a queue."""
        queues = [self._queues.get(TopicPartition(topic, partition)) for partition in partitions]
        lengths = [len(queue.batches) for queue in queues if queue is not None]
        return lengths if len(lengths) == len(queues) else None

    # -- events -------------------------------------------------------------------------------------------------------

    def set_snapshot(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Update the leaders of the queues whose topic has changed, or of all queues if the brokers have changed.

        A metadata response about a few new topics does not touch the queues of the others. Visiting all queues each
        time would take quadratic time while many topics become known one after another.
        """
        if snapshot is self._snapshot:
            return
        previous, self._snapshot = self._snapshot, snapshot
        has_same_nodes = previous.nodes == snapshot.nodes
        for topic in [*self._by_topic, *(topic for topic in self._topic_leaders if topic not in self._by_topic)]:
            if has_same_nodes and previous.topics.get(topic) is snapshot.topics.get(topic):
                continue
            self._topic_leaders.pop(topic, None)
            self._update_leaders(self.topic_queues(topic), now)

    def _update_leaders(self, queues: Iterable[PartitionQueue], now: float) -> None:
        for queue in queues:
            previous = (queue.leader_id, queue.leader_epoch)
            self._remove_from_ready(queue)
            self._set_leader(queue)
            if previous != (queue.leader_id, queue.leader_epoch):
                # KIP-951: after a leader change, retries need not wait for the end of their backoff.
                for batch in queue.batches:
                    batch.skip_backoff()
            self.schedule(queue, now)

    def set_linger_suspended(self, suspended: bool, now: float) -> None:
        """Set whether batches are ready without lingering.

        They are while memory is short, during a flush or the close, and while a caller waits in `without_linger`.
        """
        if suspended and not self._is_linger_suspended:
            self._is_linger_suspended = True
            for queue in self._queues.values():
                if queue.batches and not queue.is_ready:
                    self.schedule(queue, now)
        self._is_linger_suspended = suspended

    def schedule(self, queue: PartitionQueue, now: float) -> None:
        """Make a queue ready or set its timer, depending on the current state of its head."""
        due_ms = self._head_due_ms(queue)
        if due_ms <= now:
            queue.due_ms = INFINITE_MS
            if not queue.is_ready:
                queue.is_ready = True
                self._ready_queues[queue.leader_id][queue] = None
            return
        self._remove_from_ready(queue)
        if due_ms != queue.due_ms:
            queue.due_ms = due_ms
            if due_ms < INFINITE_MS:
                heapq.heappush(self._timers, (due_ms, next(self._tie_breaker), queue))

    def fire_timers(self, now: float) -> None:
        """Schedule the queues whose timer has expired."""
        while self._timers and self._timers[0][0] <= now:
            due_ms, _, queue = heapq.heappop(self._timers)
            if due_ms == queue.due_ms:
                self.schedule(queue, now)

    def next_due_ms(self) -> float:
        """Return the time of the next timer, or inf. Stale timers at the front are removed."""
        while self._timers and self._timers[0][0] != self._timers[0][2].due_ms:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else INFINITE_MS

    @property
    def has_muted(self) -> bool:
        """Whether any queue is muted."""
        return bool(self._muted)

    def unmute(self, queue: PartitionQueue, now: float) -> None:
        """Let the head of a queue be offered to `AdmitBatch` again. No effect if the queue is not muted."""
        if queue in self._muted:
            self._muted.discard(queue)
            self.schedule(queue, now)

    def reenqueue(self, batches: list[ProducerBatch], now: float) -> None:
        """Put batches of one topic-partition, oldest first, back into their queue for a retry or after a split."""
        queue = self.get(batches[0].topic_partition)
        for batch in reversed(batches):
            if batch.leader_epoch != queue.leader_epoch:
                batch.skip_backoff()
            queue.insert_in_sequence_order(batch)
        self._muted.discard(queue)
        self.schedule(queue, now)

    def remove(self, batch: ProducerBatch, now: float) -> None:
        """Remove a batch from its queue. No effect if it is not queued."""
        queue = self.get(batch.topic_partition)
        if batch in queue.batches:
            queue.batches.remove(batch)
            self.schedule(queue, now)

    def is_queued_and_unpinned(self, batch: ProducerBatch) -> bool:
        """Return whether a batch is in its queue and no thread works on it.

        A batch that has left its queue belongs to the sender in every state: without taking the lock, the sender may
        send or fail it at any moment.
        """
        return batch.state is not PINNED and batch in self.get(batch.topic_partition).batches

    def ready_node_ids(self) -> frozenset[int]:
        """Return the nodes that lead a partition with a ready queue."""
        return frozenset([node_id for node_id, queues in self._ready_queues.items() if queues and node_id is not None])

    def unknown_leader_topics(self) -> frozenset[str]:
        """Return the topics that have a ready queue without a known leader."""
        leaderless = self._ready_queues.get(None)
        return frozenset([queue.topic_partition.topic for queue in leaderless]) if leaderless else _NO_TOPICS

    def extra_linger_ms(self, topic: str) -> float:
        """Return how long staged rows remain staged after linger.ms has passed.

        It is above 0 while each leader of the topic already has enough ready batches to fill a request. Rows that could
        not be sent anyway remain staged, just as they would remain in open batches in Java's client. Only one batch of
        each partition is counted, so that a long queue of one partition does not delay the rows of the others.
        """
        leaders = self._topic_leaders.get(topic)
        if leaders is None:
            leaders = self._topic_leaders[topic] = self._find_leaders(topic)
        return _MAX_EXTRA_LINGER_MS if leaders and all(self._has_full_request(leader) for leader in leaders) else 0.0

    def schedule_fill_pause(self, topic: str, started_ms: float, ended_ms: float) -> None:
        """Begin a pause after batches were filled with rows that had lingered, in proportion to the time it took."""
        pause_ms = min(_FILL_PAUSE_FACTOR * (ended_ms - started_ms), _MAX_EXTRA_LINGER_MS)
        self._fill_pause_ends_ms[topic] = ended_ms + pause_ms if pause_ms >= _MIN_FILL_PAUSE_MS else 0.0

    def fill_pause_end_ms(self, topic: str) -> float:
        """Return the time before which no batches are filled with rows that have lingered, unless memory is short."""
        return self._fill_pause_ends_ms.get(topic, 0.0)

    # -- drain --------------------------------------------------------------------------------------------------------

    def drain_node(self, node_id: int, max_bytes: int, now: float, admit: AdmitBatch) -> list[ProducerBatch]:
        """Remove and return the heads of a node's ready queues, at most one of each.

        The batches have at most `max_bytes` together, except for a first batch that is larger.
        """
        drained: list[ProducerBatch] = []
        drained_bytes = 0
        ready_queues = self._ready_queues[node_id]
        for queue in list(ready_queues):
            batches = queue.batches
            batch = batches[0]
            size = batch.body_bytes + HEADER_BYTES
            if drained and drained_bytes + size > max_bytes:
                break
            del ready_queues[queue]  # it is added at the end if its next batch is ready
            queue.is_ready = False
            if (batch.state is OPEN or batch.state is PINNED or batch.attempts) and self._head_due_ms(queue) > now:
                self.schedule(queue, now)
                continue
            if not admit(batch, node_id, now):
                self._muted.add(queue)
                continue
            batch.mark_drained(queue.leader_epoch)
            drained_bytes += size
            drained.append(batches.pop(0))
            if not batches:
                continue
            head = batches[0]
            if head.state is OPEN or head.state is PINNED or head.attempts:
                self.schedule(queue, now)
            else:  # a closed batch without failed attempts is ready immediately
                queue.is_ready = True
                ready_queues[queue] = None
        return drained

    # -- implementation -----------------------------------------------------------------------------------------------

    def _head_due_ms(self, queue: PartitionQueue) -> float:
        """Return when the head may be sent: -inf for immediately, inf if only an event can make it ready."""
        batches = queue.batches
        if not batches or (self._muted and queue in self._muted):
            return INFINITE_MS
        head = batches[0]
        if head.state is PINNED:
            return INFINITE_MS
        if head.is_backing_off:
            return head.backoff_until_ms
        if head.state is not OPEN or len(batches) > 1 or self._is_linger_suspended:
            return -INFINITE_MS
        return head.created_ms + self._linger_ms

    def _set_leader(self, queue: PartitionQueue) -> None:
        info = self._snapshot.partition(*queue.topic_partition)
        is_known = info is not None and info.leader in self._snapshot.nodes
        queue.leader_id = info.leader if info is not None and is_known else None
        queue.leader_epoch = info.leader_epoch if info is not None else None

    def _find_leaders(self, topic: str) -> frozenset[int]:
        info = self._snapshot.topics.get(topic)
        leaders = {partition.leader for partition in info.partitions} if info is not None else set()
        return frozenset(leader for leader in leaders if leader is not None and leader in self._snapshot.nodes)

    def _has_full_request(self, node_id: int) -> bool:
        """Return whether the heads of a node's ready queues have at least max.request.size bytes."""
        size = 0
        for queue in self._ready_queues.get(node_id, ()):
            size += queue.batches[0].size_bytes
            if size >= self._max_request_size:
                return True
        return False

    def _remove_from_ready(self, queue: PartitionQueue) -> None:
        if queue.is_ready:
            queue.is_ready = False
            self._ready_queues[queue.leader_id].pop(queue, None)
