"""EmbeddedCluster: nodes, topics, logs and the coordinator, without sockets, threads or a clock.

Requests come to it through requests.py, faults through control.py, and it knows neither. Nodes that stop or start are
reported to the transport through `ports`. All nodes share the logs: there is no replication to wait for, a partition's
leader is the one node that answers for it. Replicas of a partition are all nodes; those that run are in sync.

Locks: `lock` guards topics, nodes, the coordinator and group offsets; each log guards itself, so appends to different
partitions run in parallel. A handler takes `lock` first, a log's second.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol
from uuid import UUID

from spark_kafka_sink.broker.api_error import ApiError, storage_error
from spark_kafka_sink.broker.batch_validation import RecordValidator
from spark_kafka_sink.broker.log import BatchFile, PartitionLog
from spark_kafka_sink.broker.offsets import OffsetStore
from spark_kafka_sink.broker.topics import Partition, Topic, TopicDefinition, log_config
from spark_kafka_sink.broker.transaction_coordinator import Transaction, TransactionCoordinator
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
MAX_PARTITIONS = 10_000
"""Of all topics together, unless the configuration says otherwise: each takes some kilobytes."""

ABORT_AGAIN_MS = 1_000.0
"""When the disk was full, overdue transactions are aborted after this time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterConfig:
    nodes: int = 1
    auto_create_topics: bool = False
    default_partitions: int = 1
    max_partitions: int = MAX_PARTITIONS
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    transaction_version: int = 2
    max_transaction_timeout_ms: int = 900_000
    check_records: bool = True
    """Look into the records of each batch; off, only its header and CRC are checked."""
    discard: bool = False
    """Acknowledge and count, keep nothing, check nothing."""
    version_limits: Mapping[ApiKey, VersionRange] | None = None
    """Narrower ranges of versions than are spoken, to play an older broker; VersionRange(0, -1) takes an API away."""
    seed: int = 0


@dataclass
class BrokerNode:
    id: int
    host: str = "localhost"
    port: int = 0
    is_running: bool = True


class NodeListeners(Protocol):
    """What the transport does for the cluster."""

    def stop_node(self, node: int) -> None:
        """Cut the node's connections and refuse new ones."""

    def start_node(self, node: int) -> None: ...

    def refuse_connections(self, node: int) -> None:
        """Refuse new connections only."""

    def accept_connections(self, node: int) -> None: ...


class ClusterStore(Protocol):
    """Where a cluster is kept besides memory (storage.py)."""

    def load(self, cluster: EmbeddedCluster) -> None: ...

    def save(self, cluster: EmbeddedCluster) -> None:
        """OSError: what was kept before is still there."""

    def log_file(self, topic: str, partition: int) -> BatchFile:
        """OSError: there cannot be one."""


class EmbeddedCluster:
    ports: NodeListeners

    def __init__(
        self,
        config: ClusterConfig,
        *,
        topics: Mapping[str, int] | None = None,
        store: ClusterStore | None = None,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        if config.nodes < 1:
            raise ConfigurationError("a cluster has at least one node")
        self.config = config
        self.lock = threading.RLock()
        self.nodes = {number: BrokerNode(number) for number in range(config.nodes)}
        self.topics: dict[str, Topic] = {}
        self._topics_by_id: dict[UUID, Topic] = {}
        self.offsets = OffsetStore()
        self._checks = RecordValidator()
        self.wall_ms = wall_ms
        self.change_count = 0
        """Grows with everything that a waiting Fetch may wait for."""
        self.coordinator = TransactionCoordinator(
            self._write_marker,
            self._end_offsets,
            version=config.transaction_version,
            max_timeout_ms=config.max_transaction_timeout_ms,
        )
        self._random = Random(config.seed)
        self.cluster_id = str(self._new_id())
        self._coordinators: dict[str, int] = {}
        self._next_timeout_ms: float | None = None
        self._store = store
        if store is not None:
            # Ids by the seed would be those that topics of earlier runs have, or had.
            self._random = Random()
            with self.lock:  # as for every end of a transaction
                store.load(self)
        loaded = set(self.topics)
        missing = [TopicDefinition(name, number) for name, number in (topics or {}).items() if name not in loaded]
        if missing:
            self.create_topics(missing)

    def tick(self, now: float) -> None:
        """What happens by itself as time passes: transactions are aborted that have lasted too long."""
        if self._next_timeout_ms is not None and now >= self._next_timeout_ms:
            with self.lock:
                try:
                    self.coordinator.abort_timed_out(now)
                    self.save_transactions()
                except ApiError as refusal:
                    _log.warning("overdue transactions are aborted later: %s", refusal)
                    self._next_timeout_ms = now + ABORT_AGAIN_MS

    # --- topics

    def topic(self, name: str) -> Topic:
        with self.lock:
            if name not in self.topics:
                raise KeyError(f"the embedded broker has no topic {name}; it has {sorted(self.topics)}")
            return self.topics[name]

    def find_topic(self, name: str) -> Topic | None:
        with self.lock:
            return self.topics.get(name)

    def find_topic_by_id(self, topic_id: UUID) -> Topic | None:
        with self.lock:
            return self._topics_by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> Partition:
        with self.lock:
            partitions = self.topic(topic).partitions
            if not 0 <= index < len(partitions):
                raise KeyError(f"topic {topic} has no partition {index}; it has {len(partitions)}, numbered from 0")
            return partitions[index]

    def log(self, topic: str, partition: int) -> PartitionLog:
        return self.partition(topic, partition).log

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> Topic:
        return self.create_topics([TopicDefinition(name, partitions, config or {}, topic_id)])[0]

    def create_topics(self, wanted: Sequence[TopicDefinition]) -> list[Topic]:
        """All of them, or none. ConfigurationError names the first that cannot be; Refusal: the disk is full."""
        with self.lock:
            before = dict(self.topics)
            left = self.partitions_left()
            created: list[Topic] = []
            try:
                for new in wanted:
                    created.append(self._create(new, left))
                    left -= new.partitions
                self.save()
            except BaseException:
                self.topics = before
                raise
            self._topics_by_id.update((topic.id, topic) for topic in created)
            return created

    def delete_topic(self, name: str) -> None:
        with self.lock:
            topic = self.topic(name)
            del self.topics[name]
            try:
                self.save()
            except ApiError:
                self.topics[name] = topic
                raise
            del self._topics_by_id[topic.id]
            for partition in topic.partitions:
                partition.log.delete()
        self.record_change()

    def add_partitions(self, name: str, total: int) -> None:
        with self.lock:
            topic = self.topic(name)
            _check_room(total - len(topic.partitions), self.partitions_left(), self.config.max_partitions)
            self._add_partitions(topic, total)
            self.save()

    def partitions_left(self) -> int:
        """How many more the cluster can have. The caller has the lock, and acts on the answer under it."""
        return self.config.max_partitions - sum(len(topic.partitions) for topic in self.topics.values())

    def _create(self, new: TopicDefinition, partitions_left: int) -> Topic:
        if not is_topic_name(new.name):
            raise ConfigurationError(f"{new.name[:300]!r} is no name for a topic: it takes {TOPIC_NAME_RULE}")
        if new.name in self.topics:
            raise ConfigurationError(f"topic {new.name} exists already")
        if new.partitions < 1:
            raise ConfigurationError(f"topic {new.name} cannot have {new.partitions} partitions")
        _check_room(new.partitions, partitions_left, self.config.max_partitions)
        topic = Topic(new.name, new.topic_id or self._new_id(), config=dict(new.config))
        self._add_partitions(topic, new.partitions)
        self.topics[new.name] = topic
        return topic

    def _add_partitions(self, topic: Topic, total: int) -> None:
        settings = log_config(
            topic.config,
            max_message_bytes=self.config.max_message_bytes,
            check_records=self.config.check_records,
            discard=self.config.discard,
        )
        ids = sorted(self.nodes)
        for index in range(len(topic.partitions), total):
            file = None if settings.discard else self._log_file(topic.name, index)
            replicas = tuple(ids[(index + step) % len(ids)] for step in range(len(ids)))
            leader = next((node for node in replicas if self.nodes[node].is_running), None)
            topic.partitions.append(Partition(index, leader, replicas, PartitionLog(settings, file, self._checks)))

    def _log_file(self, topic: str, index: int) -> BatchFile | None:
        try:
            return None if self._store is None else self._store.log_file(topic, index)
        except OSError as error:
            raise storage_error(f"topic {topic}", error) from error

    # --- nodes and leaders

    def node(self, number: int) -> BrokerNode:
        if number not in self.nodes:
            raise KeyError(f"the embedded broker has no node {number}; it has {sorted(self.nodes)}")
        return self.nodes[number]

    def in_sync_replicas(self, topic: Topic, partition: Partition) -> tuple[int, ...]:
        running = tuple(node for node in partition.replicas if self.nodes[node].is_running)
        return running if topic.max_in_sync_replicas is None else running[: topic.max_in_sync_replicas]

    def limit_in_sync_replicas(self, name: str, at_most: int | None) -> None:
        with self.lock:
            self.topic(name).max_in_sync_replicas = at_most

    def move_leader(self, name: str, index: int, node: int) -> None:
        with self.lock:
            self._lead(self.partition(name, index), self.node(node).id)
        self.record_change()

    def stop_node(self, node: int) -> None:
        with self.lock:
            self.node(node).is_running = False
            for partition in self._partitions():
                if partition.leader == node:
                    self._lead(partition, next((n for n in partition.replicas if self.nodes[n].is_running), None))
        self.ports.stop_node(node)
        self.record_change()

    def start_node(self, node: int) -> None:
        with self.lock:
            self.node(node).is_running = True
            for partition in self._partitions():
                if partition.leader is None:
                    self._lead(partition, node)
        self.ports.start_node(node)

    def running_nodes(self) -> list[BrokerNode]:
        return [node for node in self.nodes.values() if node.is_running]

    def _partitions(self) -> Iterator[Partition]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)

    def _lead(self, partition: Partition, node: int | None) -> None:
        partition.leader = node
        partition.leader_epoch += 1

    # --- coordination

    def coordinator_for(self, key: str) -> BrokerNode | None:
        """The node that answers for a transactional id or a group: it moves on when it stops."""
        with self.lock:
            running = self.running_nodes()
            if not running:
                return None
            chosen = self.nodes.get(self._coordinators.get(key, -1))
            return (
                chosen if chosen is not None and chosen.is_running else running[zlib.crc32(key.encode()) % len(running)]
            )

    def move_coordinator(self, key: str, node: int) -> None:
        with self.lock:
            self._coordinators[key] = self.node(node).id

    def save_transactions(self) -> None:
        """The coordinator's state has changed: keep it, and know when the next one is overdue."""
        self._next_timeout_ms = self.coordinator.next_timeout_ms()
        self.record_change()
        self.save()

    def record_change(self) -> None:
        """Under the lock: a step that another thread takes back would leave a Fetch asleep that waits for it."""
        with self.lock:
            self.change_count += 1

    def save(self) -> None:
        """Refusal: what was changed since the last time may be lost with this process."""
        if self._store is not None:
            try:
                self._store.save(self)
            except OSError as error:
                raise storage_error("the state of the cluster", error) from error

    def _write_marker(self, partition: tuple[str, int], producer_id: int, epoch: int, commit: bool) -> None:
        topic = self.topics.get(partition[0])
        if topic is not None and partition[1] < len(topic.partitions):
            found = topic.partitions[partition[1]]
            found.log.end_transaction(
                producer_id, epoch, commit=commit, wall_ms=self.wall_ms(), leader_epoch=found.leader_epoch
            )

    def _end_offsets(self, transaction: Transaction, commit: bool) -> None:
        for group in transaction.groups:
            self.offsets.end_transaction(transaction.producer_id, group, commit=commit)

    def _new_id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def _check_room(partitions: int, left: int, at_most: int) -> None:
    if partitions > left:
        raise ConfigurationError(
            f"{partitions} partitions are too many: the embedded broker has at most {at_most} in all topics together, "
            f"and {left} are left"
        )
