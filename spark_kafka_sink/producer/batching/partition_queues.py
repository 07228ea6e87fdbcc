"""The queues of batches per partition, and which of them may be sent now, without looking at all of them each time.

Most of a thousand partitions have nothing to say at any one moment. So a queue is looked at when something happens to
it (a batch added, finished, retried; its leader moved) or when a time that it waits for has come,
and is then put where the sender finds it:

    nowhere     empty, blocked by the gate, or its head is being worked on by another thread
    timers      its head lingers or backs off until a known time
    sendable    its head may go now; kept per leader, so that one node's queues are found without a search

The order of the sendable queues of a node is the order in which they are served: a queue that was served goes to the
end, one that did not fit into the request stays at the front. The gate (idempotence) may refuse a head. Java's client
then stops and comes back to the same partition in the next round, which stalls the whole node and spins; here the queue
is blocked, the others go on, and it is unblocked when something has happened to it or when the gate says so.

Everything here is guarded by the accumulator's lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import OPEN, PINNED, ProducerBatch
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.header import HEADER_BYTES

INFINITE_MS = float("inf")
_NO_TOPICS: frozenset[str] = frozenset()
_HOLD_MS_MAX = 100.0
"""The limit is for leaders that take nothing: rows must be seen to expire, and must give back the memory that is kept
for their encoding. With a thousand partitions, holding halves the cost of a row."""
_FILL_SHARE = 3
"""The sender spends at most this part of its time on rows of a topic that have lingered. With many partitions a fill
takes long; the longer the next one waits, the more rows each of its batches gets."""
_PAUSE_MS_MIN = 5.0
"""A wait ends up to a millisecond late. So a fill that takes no time is not followed by one."""


Admit = Callable[[ProducerBatch, int, float], bool]
"""(batch, leader id, now): may the batch, the head of its partition's queue, be sent to this leader now?

Idempotence decides. If yes, the batch has its sequence then and counts as in flight. If no, the partition is blocked
until recheck(), so that the sender does not spin. Called under the accumulator's lock: it must not call back."""


class PartitionQueue:
    """The batches of one partition that are not in flight, oldest first; only the last one may be open."""

    __slots__ = ("batches", "due_ms", "leader_epoch", "leader_id", "sendable", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: list[ProducerBatch] = []  # with thousands of queues, a deque would take megabytes
        self.sendable = False
        self.due_ms = INFINITE_MS  # the timer that counts; others of this queue are out of date
        self.leader_id: int | None = None
        self.leader_epoch: int | None = None

    def pin_open_batch(self) -> ProducerBatch | None:
        """The batch that takes more records, pinned; None if there is none.

        The queue stays where it is: the sender skips a head that is pinned.
        """
        last = self.batches[-1] if self.batches else None
        if last is None or last.state is not OPEN:
            return None
        last.pin()
        return last

    def insert_in_sequence(self, batch: ProducerBatch) -> None:
        """Put a batch back in front of all that were sent after it; without a sequence, in front of all."""
        if not batch.has_sequence:
            self.batches.insert(0, batch)
            return
        index = 0
        for queued in self.batches:
            if not queued.has_sequence or not sent_before(queued, batch):
                break
            index += 1
        self.batches.insert(index, batch)


def sent_before(first: ProducerBatch, second: ProducerBatch) -> bool:
    """By epoch, then by sequence on a circle: sequences wrap, so that 2^31 - 1 comes just before 0."""
    if (first.producer_id, first.producer_epoch) != (second.producer_id, second.producer_epoch):
        return (first.producer_id, first.producer_epoch) < (second.producer_id, second.producer_epoch)
    return sequences.is_after(second.base_sequence, first.base_sequence)


class PartitionQueues:
    """All queues; see the module's docstring."""

    def __init__(self, linger_ms: float, request_bytes: int = 1 << 20) -> None:
        """`request_bytes` is what one request to a leader takes."""
        self._linger_ms = linger_ms
        self._request_bytes = request_bytes
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._by_topic: dict[str, dict[int, PartitionQueue]] = {}
        self._sendable: defaultdict[int | None, dict[PartitionQueue, None]] = defaultdict(dict)
        self._timers: list[tuple[float, int, PartitionQueue]] = []
        self._tie_breaker = itertools.count()
        self._snapshot = ClusterSnapshot()
        self._leaders: dict[str, frozenset[int]] = {}  # by topic, of this snapshot; filled when they are asked for
        self._pauses: dict[str, float] = {}  # by topic
        self._hurry = False
        self._blocked: set[PartitionQueue] = set()

    def __iter__(self) -> Iterator[PartitionQueue]:
        return iter(self._queues.values())

    def get(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition; made when it is first asked for."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
            self._by_topic.setdefault(topic_partition.topic, {})[topic_partition.partition] = queue
            self._find_leader(queue)
        return queue

    def all_of_topic(self, topic: str) -> list[PartitionQueue]:
        """Every queue of a topic that was asked for before."""
        return list(self._by_topic.get(topic, {}).values())

    def of_topic(self, topic: str, partitions: Iterable[int]) -> list[PartitionQueue]:
        """The queues of some partitions of a topic."""
        known = self._by_topic.get(topic, {})
        return [known.get(partition) or self.get(TopicPartition(topic, partition)) for partition in partitions]

    def lengths(self, topic: str, partitions: list[int]) -> list[int] | None:
        """How many batches wait for each partition; None unless all have been written to."""
        found = [self._queues.get(TopicPartition(topic, partition)) for partition in partitions]
        lengths = [len(queue.batches) for queue in found if queue is not None]
        return lengths if len(lengths) == len(found) else None

    # -- when something happens ---------------------------------------------------------------------------------------

    def set_snapshot(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Look at the queues whose topic has changed, and at all of them if the brokers have.

        An answer about a few new topics leaves the others as they are. To visit every queue for it would cost
        quadratic time while many topics become known one after the other.
        """
        if snapshot is self._snapshot:
            return
        before, self._snapshot = self._snapshot, snapshot
        has_same_nodes = before.nodes == snapshot.nodes
        for topic in [*self._by_topic, *(topic for topic in self._leaders if topic not in self._by_topic)]:
            if has_same_nodes and before.topics.get(topic) is snapshot.topics.get(topic):
                continue
            self._leaders.pop(topic, None)
            self._update_leaders(self.all_of_topic(topic), now)

    def _update_leaders(self, queues: Iterable[PartitionQueue], now: float) -> None:
        for queue in queues:
            before = (queue.leader_id, queue.leader_epoch)
            self._unlist(queue)
            self._find_leader(queue)
            if before != (queue.leader_id, queue.leader_epoch):
                # KIP-951: what backs off need not wait longer once there is a new leader.
                for batch in queue.batches:
                    batch.skip_backoff()
            self.schedule(queue, now)

    def set_hurry(self, hurry: bool, now: float) -> None:
        """No batch may linger: memory is short, or a flush or the close is under way."""
        if hurry and not self._hurry:
            self._hurry = True
            for queue in self._queues.values():
                if queue.batches and not queue.sendable:
                    self.schedule(queue, now)
        self._hurry = hurry

    def schedule(self, queue: PartitionQueue, now: float) -> None:
        """Make a queue sendable, or set its timer, as its head needs it now."""
        due_ms = self._due_ms(queue)
        if due_ms <= now:
            queue.due_ms = INFINITE_MS
            if not queue.sendable:
                queue.sendable = True
                self._sendable[queue.leader_id][queue] = None
            return
        self._unlist(queue)
        if due_ms != queue.due_ms:
            queue.due_ms = due_ms
            if due_ms < INFINITE_MS:
                heapq.heappush(self._timers, (due_ms, next(self._tie_breaker), queue))

    def fire_timers(self, now: float) -> None:
        """Look at the queues whose time has come."""
        while self._timers and self._timers[0][0] <= now:
            due_ms, _, queue = heapq.heappop(self._timers)
            if due_ms == queue.due_ms:
                self.schedule(queue, now)

    def next_due_ms(self) -> float:
        while self._timers and self._timers[0][0] != self._timers[0][2].due_ms:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else INFINITE_MS

    @property
    def has_blocked(self) -> bool:
        """Return whether the gate has blocked a queue."""
        return bool(self._blocked)

    def unblock(self, queue: PartitionQueue, now: float) -> None:
        """Let the gate decide again about a queue, if it has blocked it."""
        if queue in self._blocked:
            self._blocked.discard(queue)
            self.schedule(queue, now)

    def put_back(self, batches: list[ProducerBatch], now: float) -> None:
        """Batches of one partition, oldest first, are to be sent again, or were split."""
        queue = self.get(batches[0].topic_partition)
        for batch in reversed(batches):
            if batch.leader_epoch != queue.leader_epoch:
                batch.skip_backoff()
            queue.insert_in_sequence(batch)
        self._blocked.discard(queue)
        self.schedule(queue, now)

    def remove(self, batch: ProducerBatch, now: float) -> None:
        """Take a batch out of its queue, if it is in it."""
        queue = self.get(batch.topic_partition)
        if batch in queue.batches:
            queue.batches.remove(batch)
            self.schedule(queue, now)

    def is_waiting(self, batch: ProducerBatch) -> bool:
        """Is it in its queue, with no thread at work on it? One that was taken out is the sender's, in every state: it
        may be sent, or fail, at any moment, without the lock."""
        return batch.state is not PINNED and batch in self.get(batch.topic_partition).batches

    def sendable_nodes(self) -> frozenset[int]:
        return frozenset([node for node, queues in self._sendable.items() if queues and node is not None])

    def topics_without_leader(self) -> frozenset[str]:
        leaderless = self._sendable.get(None)
        return frozenset([queue.topic_partition.topic for queue in leaderless]) if leaderless else _NO_TOPICS

    def hold_ms(self, topic: str) -> float:
        """The wait in ms, after linger.ms, before staged rows are filled into batches.

        Rows that could not leave yet go on waiting, as they would in Java's open batches: while each leader of their
        topic has a full request to take already. A request is counted with one batch of each partition, so that a
        partition with a long queue does not hold the rows of others.
        """
        leaders = self._leaders.get(topic)
        if leaders is None:
            leaders = self._leaders[topic] = self._leaders_of(topic)
        return _HOLD_MS_MAX if leaders and all(self._is_supplied(leader) for leader in leaders) else 0.0

    def note_fill(self, topic: str, began_ms: float, ended_ms: float) -> None:
        """Rows that had lingered were filled into batches. A pause follows, in proportion to the time it took."""
        pause_ms = min((_FILL_SHARE - 1) * (ended_ms - began_ms), _HOLD_MS_MAX)
        self._pauses[topic] = ended_ms + pause_ms if pause_ms >= _PAUSE_MS_MIN else 0.0

    def pause_until_ms(self, topic: str) -> float:
        """No rows that have lingered are filled before, unless memory is short."""
        return self._pauses.get(topic, 0.0)

    # -- drain --------------------------------------------------------------------------------------------------------

    def take(self, node_id: int, bytes_max: int, now: float, admit: Admit) -> list[ProducerBatch]:
        """Heads of a node's sendable queues, one of each, up to `bytes_max`; the first one may be larger."""
        taken: list[ProducerBatch] = []
        taken_bytes = 0
        sendable = self._sendable[node_id]
        for queue in list(sendable):
            batches = queue.batches
            batch = batches[0]
            size = batch.body_bytes + HEADER_BYTES
            if taken and taken_bytes + size > bytes_max:
                break
            del sendable[queue]  # goes to the end if it can be served again
            queue.sendable = False
            if (batch.state is OPEN or batch.state is PINNED or batch.attempts) and self._due_ms(queue) > now:
                self.schedule(queue, now)
                continue
            if not admit(batch, node_id, now):
                self._blocked.add(queue)
                continue
            batch.drained_for(queue.leader_epoch)
            taken_bytes += size
            taken.append(batches.pop(0))
            if not batches:
                continue
            head = batches[0]
            if head.state is OPEN or head.state is PINNED or head.attempts:
                self.schedule(queue, now)
            else:  # a full batch waits for nothing
                queue.sendable = True
                sendable[queue] = None
        return taken

    # -- inside -------------------------------------------------------------------------------------------------------

    def _due_ms(self, queue: PartitionQueue) -> float:
        """When the head may be sent; any time in the past means now."""
        batches = queue.batches
        if not batches or (self._blocked and queue in self._blocked):
            return INFINITE_MS
        head = batches[0]
        if head.state is PINNED:
            return INFINITE_MS
        if head.backs_off:
            return head.backoff_until_ms
        if head.state is not OPEN or len(batches) > 1 or self._hurry:
            return -INFINITE_MS
        return head.created_ms + self._linger_ms

    def _find_leader(self, queue: PartitionQueue) -> None:
        info = self._snapshot.partition(*queue.topic_partition)
        known = info is not None and info.leader in self._snapshot.nodes
        queue.leader_id = info.leader if info is not None and known else None
        queue.leader_epoch = info.leader_epoch if info is not None else None

    def _leaders_of(self, topic: str) -> frozenset[int]:
        info = self._snapshot.topics.get(topic)
        leaders = {partition.leader for partition in info.partitions} if info is not None else set()
        return frozenset(leader for leader in leaders if leader is not None and leader in self._snapshot.nodes)

    def _is_supplied(self, node_id: int) -> bool:
        size = 0
        for queue in self._sendable.get(node_id, ()):
            size += queue.batches[0].size_bytes
            if size >= self._request_bytes:
                return True
        return False

    def _unlist(self, queue: PartitionQueue) -> None:
        if queue.sendable:
            queue.sendable = False
            self._sendable[queue.leader_id].pop(queue, None)
