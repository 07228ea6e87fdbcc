"""EmbeddedCluster: nodes, topics, logs and the transaction coordinator, without sockets, threads or timers.

kafka_apis.py handles requests and control.py injects faults; the cluster depends on neither. It notifies the transport
through `listeners` when nodes stop or start.

All nodes share the logs, so there is no replication. Only a partition's leader serves it, and the high watermark equals
the log end offset. Every node is a replica of every partition, and the replicas on running nodes are in sync.

Locks: `lock` guards topics, nodes, the coordinator and group offsets. Each log has its own lock, so appends to
different partitions run concurrently. To avoid deadlocks, a handler acquires `lock` before a log's lock.
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

from spark_kafka_sink.broker.api_error import ApiError, build_storage_error
from spark_kafka_sink.broker.batch_validation import RecordValidator
from spark_kafka_sink.broker.log import DEFAULT_MAX_MESSAGE_BYTES, BatchFile, LogConfig, PartitionLog
from spark_kafka_sink.broker.offsets import OffsetStore
from spark_kafka_sink.broker.topics import Partition, Topic, TopicDefinition, build_log_config
from spark_kafka_sink.broker.transaction_coordinator import TransactionCoordinator, TransactionMetadata
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name, normalize_topic_name

MAX_PARTITIONS = 10_000
"""Default limit on the number of partitions in all topics together. Each partition needs a few kilobytes of memory."""

ABORT_RETRY_MS = 1_000.0
"""The pause before timed-out transactions are aborted again, if writing to disk failed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClusterConfig:
    """Settings of the cluster and its brokers."""

    nodes: int = 1
    racks: Sequence[str | None] = ()
    """`broker.rack` of each node. Nodes without an entry have no rack."""
    auto_create_topics: bool = False
    default_partitions: int = 1
    max_partitions: int = MAX_PARTITIONS
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    transaction_version: int = 2
    first_sequence_must_be_zero: bool = False
    """Whether a producer's first sequence number must be 0 in a partition that has never held a record, as from Kafka
    4.5 (KAFKA-15591). Earlier brokers accept any sequence number from an unknown producer."""
    verifies_transactions: bool = True
    """Whether a leader rejects a batch whose transaction is not open or does not contain the partition (version 1).
    Brokers before Kafka 3.6 accept it."""
    max_transaction_timeout_ms: int = 900_000
    check_records: bool = True
    """Whether to decode and validate the records of each batch. If False, only the header and CRC are validated."""
    discard: bool = False
    """Whether to acknowledge and count records without storing or validating them."""
    version_limits: Mapping[ApiKey, VersionRange] | None = None
    """Narrower version ranges, to emulate an older broker. VersionRange(0, -1) removes an API."""
    seed: int = 0

    @property
    def log_config(self) -> LogConfig:
        """The log configuration of a topic that has no settings of its own."""
        return LogConfig(
            max_message_bytes=self.max_message_bytes,
            check_records=self.check_records,
            discard=self.discard,
            first_sequence_must_be_zero=self.first_sequence_must_be_zero,
        )


@dataclass
class BrokerNode:
    """A broker in the cluster. The transport sets its host and port."""

    id: int
    host: str = "localhost"
    port: int = 0
    rack: str | None = None
    is_running: bool = True


class NodeListeners(Protocol):
    """Operations of the transport on a node's listener and connections."""

    def stop_node(self, node_id: int) -> None:
        """Close the node's connections and refuse new ones."""

    def start_node(self, node_id: int) -> None: ...

    def refuse_connections(self, node_id: int) -> None:
        """Refuse new connections, but keep open ones."""

    def accept_connections(self, node_id: int) -> None: ...


class ClusterStore(Protocol):
    """Persistent storage of a cluster (storage.py)."""

    def load(self, cluster: EmbeddedCluster) -> None: ...

    def save(self, cluster: EmbeddedCluster) -> None:
        """Save the cluster's state. If that fails, keep the previously saved state and raise OSError."""

    def log_file(self, topic: str, partition: int) -> BatchFile:
        """Return the file for a new partition. Raise OSError if the file cannot be used."""


class EmbeddedCluster:
    """The state of a Kafka cluster, with the operations that request handlers and tests need."""

    listeners: NodeListeners
    """The transport of the nodes. The owner of the SocketServer sets it, so do not stop or start nodes before that."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        topics: Mapping[str, int] | None = None,
        store: ClusterStore | None = None,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """Load the cluster from `store`, unless it is None, and create those `topics` that the store does not contain.

        `topics`: partition counts by topic name.
        """
        if config.nodes < 1:
            raise ConfigurationError("A cluster must have at least one node.")
        self.config = config
        self.lock = threading.RLock()
        if len(config.racks) > config.nodes:
            raise ConfigurationError(f"There are {len(config.racks)} racks for {config.nodes} nodes. Set one per node.")
        racks_by_node = dict(enumerate(config.racks))
        self.nodes = {node_id: BrokerNode(node_id, rack=racks_by_node.get(node_id)) for node_id in range(config.nodes)}
        self.topics: dict[str, Topic] = {}
        self._topics_by_id: dict[UUID, Topic] = {}
        self.offsets = OffsetStore()
        self._record_validator = RecordValidator()
        self.wall_ms = wall_ms
        self.change_count = 0
        """Number of changes so far that may complete a delayed Fetch."""
        self.coordinator = TransactionCoordinator(
            self._write_marker,
            self._end_group_offsets,
            version=config.transaction_version,
            max_timeout_ms=config.max_transaction_timeout_ms,
        )
        self._random = Random(config.seed)
        self.cluster_id = str(self._generate_uuid())
        self._moved_coordinators: dict[str, int] = {}
        """The coordinators that a test has moved: node id by transactional id or group."""
        self._next_timeout_ms: float | None = None
        """When to abort timed-out transactions, or None if no transaction is open."""
        self._store = store
        # Load first, because only the topics that the store does not contain are created.
        if store is not None:
            self._load(store)
        loaded_names = set(self.topics)
        missing_topics = [
            TopicDefinition(name, count) for name, count in (topics or {}).items() if name not in loaded_names
        ]
        if missing_topics:
            self.create_topics(missing_topics)

    def _load(self, store: ClusterStore) -> None:
        # A fixed seed would generate the topic ids of previous runs in the same directory again.
        self._random = Random()
        # Loading aborts open transactions, which requires the lock.
        with self.lock:
            store.load(self)

    def abort_due_transactions(self, now_ms: float) -> None:
        """Abort the transactions that have timed out. If that fails, schedule another attempt.

        kafka_apis.py calls this method before every request, so it takes the lock only when a timeout is due.
        """
        if self._next_timeout_ms is not None and now_ms >= self._next_timeout_ms:
            with self.lock:
                try:
                    self.coordinator.abort_timed_out_transactions(now_ms)
                    self.save_transactions()
                except ApiError as error:
                    _log.warning("Could not abort timed-out transactions. Retrying later: %s", error)
                    self._next_timeout_ms = now_ms + ABORT_RETRY_MS

    # --- topics

    def topic(self, name: str) -> Topic:
        """Return a topic. Raise KeyError if it does not exist."""
        with self.lock:
            if name not in self.topics:
                raise KeyError(f"Topic {name} does not exist in the embedded broker; it has {sorted(self.topics)}.")
            return self.topics[name]

    def find_topic(self, name: str) -> Topic | None:
        with self.lock:
            return self.topics.get(name)

    def find_topic_by_id(self, topic_id: UUID) -> Topic | None:
        with self.lock:
            return self._topics_by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition. Raise KeyError if it does not exist."""
        with self.lock:
            partitions = self.topic(topic).partitions
            if not 0 <= index < len(partitions):
                raise KeyError(f"Topic {topic} has no partition {index}: it has {len(partitions)}, numbered from 0.")
            return partitions[index]

    def has_partition(self, topic: str, index: int) -> bool:
        """Return whether the topic exists and has this partition."""
        with self.lock:
            return topic in self.topics and 0 <= index < len(self.topics[topic].partitions)

    def log(self, topic: str, partition: int) -> PartitionLog:
        return self.partition(topic, partition).log

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> Topic:
        """Create one topic. Raises the same errors as `create_topics`."""
        return self.create_topics([TopicDefinition(name, partitions, config or {}, topic_id)])[0]

    def create_topics(self, definitions: Sequence[TopicDefinition]) -> list[Topic]:
        """Create either all of the topics or none.

        Raise ConfigurationError for the first invalid definition, and ApiError if the disk cannot be written.
        """
        with self.lock:
            previous_topics = dict(self.topics)
            remaining_partition_count = self.count_available_partitions()
            names_by_normalized_name = self.index_normalized_names()
            created_topics: list[Topic] = []
            try:
                for definition in definitions:
                    created_topics.append(
                        self._create_topic(definition, remaining_partition_count, names_by_normalized_name)
                    )
                    remaining_partition_count -= definition.partition_count
                    names_by_normalized_name[normalize_topic_name(definition.name)] = definition.name
                self.save()
            except BaseException:
                self.topics = previous_topics
                raise
            self._topics_by_id.update((topic.id, topic) for topic in created_topics)
            return created_topics

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and its group offsets. Raise KeyError if the topic does not exist.

        Raise ApiError, and keep the topic, if the disk cannot be written.
        """
        with self.lock:
            topic = self.topic(name)
            del self.topics[name]
            try:
                self.save()
            except ApiError:
                self.topics[name] = topic
                raise
            del self._topics_by_id[topic.id]
            self.offsets.delete_topic(name)
            for partition in topic.partitions:
                partition.log.delete()
        self.record_change()

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partition count to `total`. Raise ConfigurationError if the limit is exceeded."""
        with self.lock:
            topic = self.topic(name)
            _check_partition_limit(
                total - len(topic.partitions), self.count_available_partitions(), self.config.max_partitions
            )
            self._add_partitions(topic, total)
            self.save()

    def count_available_partitions(self) -> int:
        """Return how many more partitions can be created. The caller must hold the lock until it has created them."""
        return self.config.max_partitions - sum(len(topic.partitions) for topic in self.topics.values())

    def index_normalized_names(self) -> dict[str, str]:
        """Return the topics' names by normalized name. The caller must hold the lock until it has created topics."""
        return {normalize_topic_name(name): name for name in self.topics}

    def _create_topic(
        self,
        definition: TopicDefinition,
        remaining_partition_count: int,
        names_by_normalized_name: Mapping[str, str],
    ) -> Topic:
        """Create a topic without saving the cluster. Raise ConfigurationError if the definition is invalid."""
        name, partition_count = definition.name, definition.partition_count
        if not is_topic_name(name):
            raise ConfigurationError(
                f"{name[:300]!r} is not a valid topic name. A topic name consists of {TOPIC_NAME_RULE}."
            )
        if name in self.topics:
            raise ConfigurationError(f"Topic {name} already exists.")
        colliding_name = names_by_normalized_name.get(normalize_topic_name(name))
        is_stored = definition.topic_id is not None  # Kafka checks for collisions only when a topic is created
        if colliding_name is not None and not is_stored:
            raise ConfigurationError(
                f"Topic {name} collides with existing topic {colliding_name}: the names differ only in '.' and '_'. "
                "Choose another name."
            )
        if partition_count < 1:
            raise ConfigurationError(f"Topic {name} must have at least one partition, not {partition_count}.")
        _check_partition_limit(partition_count, remaining_partition_count, self.config.max_partitions)
        topic = Topic(name, definition.topic_id or self._generate_uuid(), config=dict(definition.config))
        self._add_partitions(topic, partition_count)
        self.topics[name] = topic
        return topic

    def _add_partitions(self, topic: Topic, partition_count: int) -> None:
        """Create partitions until the topic has `partition_count`. Spread their leaders over the running nodes."""
        log_config = build_log_config(topic.config, self.config.log_config)
        node_ids = sorted(self.nodes)
        for index in range(len(topic.partitions), partition_count):
            log_file = None if log_config.discard else self._log_file(topic.name, index)
            # Successive partitions prefer different nodes as their leaders: with three nodes, partition 1 gets the
            # replicas (1, 2, 0).
            first_replica = index % len(node_ids)
            replicas = (*node_ids[first_replica:], *node_ids[:first_replica])
            log = PartitionLog(log_config, log_file, self._record_validator)
            topic.partitions.append(Partition(index, self._find_running_node(replicas), replicas, log))

    def _log_file(self, topic: str, index: int) -> BatchFile | None:
        """Return the file for a new partition; None if the cluster is not stored. Raise ApiError on a disk error."""
        try:
            return None if self._store is None else self._store.log_file(topic, index)
        except OSError as error:
            raise build_storage_error(f"topic {topic}", error) from error

    # --- nodes and leaders

    def node(self, node_id: int) -> BrokerNode:
        """Return a node. Raise KeyError if it does not exist."""
        if node_id not in self.nodes:
            raise KeyError(f"Node {node_id} does not exist in the embedded broker; it has {sorted(self.nodes)}.")
        return self.nodes[node_id]

    def list_running_nodes(self) -> list[BrokerNode]:
        return [node for node in self.nodes.values() if node.is_running]

    def _find_running_node(self, replicas: Sequence[int]) -> int | None:
        """Return the first of the replicas whose node is running, or None."""
        return next((node_id for node_id in replicas if self.nodes[node_id].is_running), None)

    def find_in_sync_replicas(self, topic: Topic, partition: Partition) -> tuple[int, ...]:
        """Return the replicas on running nodes, up to the limit that a test has set for the topic."""
        running_replicas = tuple(node_id for node_id in partition.replicas if self.nodes[node_id].is_running)
        return running_replicas[: topic.max_in_sync_replicas]  # a limit of None keeps all

    def limit_in_sync_replicas(self, topic: str, limit: int | None) -> None:
        """Limit the number of in-sync replicas of each partition. None removes the limit."""
        with self.lock:
            self.topic(topic).max_in_sync_replicas = limit

    def move_leader(self, topic: str, index: int, node_id: int) -> None:
        """Make a node the leader of a partition. Raise KeyError if the node or the partition does not exist."""
        with self.lock:
            self._set_leader(self.partition(topic, index), self.node(node_id).id)
        self.record_change()

    def stop_node(self, node_id: int) -> None:
        """Stop a node. For each partition that it leads, the partition's first running replica becomes the leader.

        If no other node is running, the partitions have no leader.
        """
        with self.lock:
            self.node(node_id).is_running = False
            for partition in self._iterate_partitions():
                if partition.leader == node_id:
                    self._set_leader(partition, self._find_running_node(partition.replicas))
        self.listeners.stop_node(node_id)
        self.record_change()

    def start_node(self, node_id: int) -> None:
        """Start a node. It becomes the leader of all partitions without one."""
        with self.lock:
            self.node(node_id).is_running = True
            for partition in self._iterate_partitions():
                if partition.leader is None:
                    self._set_leader(partition, node_id)
        self.listeners.start_node(node_id)

    def _iterate_partitions(self) -> Iterator[Partition]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)

    def _set_leader(self, partition: Partition, node_id: int | None) -> None:
        """Set the leader (None: no leader) and begin a new leader epoch."""
        partition.leader = node_id
        partition.leader_epoch += 1

    # --- coordinators and transactions

    def find_coordinator(self, key: str) -> BrokerNode | None:
        """Return the node that coordinates a transactional id or group, or None if no node is running.

        If the coordinator's node stops, one of the running nodes takes over.
        """
        with self.lock:
            running_nodes = self.list_running_nodes()
            if not running_nodes:
                return None
            assigned_id = self._moved_coordinators.get(key)
            if assigned_id is not None and self.nodes[assigned_id].is_running:
                return self.nodes[assigned_id]
            # Unlike hash(), crc32 selects the same node in every process.
            return running_nodes[zlib.crc32(key.encode()) % len(running_nodes)]

    def move_coordinator(self, key: str, node_id: int) -> None:
        """Make a node the coordinator of a transactional id or group, as long as the node is running."""
        with self.lock:
            self._moved_coordinators[key] = self.node(node_id).id

    def save_transactions(self) -> None:
        """Save the coordinator's state after a change, and reschedule the next transaction timeout."""
        self._next_timeout_ms = self.coordinator.next_timeout_ms()
        self.record_change()
        self.save()

    def record_change(self) -> None:
        """Increment the change count, so that delayed requests are resumed.

        Without the lock, an increment could be lost, and a Fetch could keep waiting although its data has arrived.
        """
        with self.lock:
            self.change_count += 1

    def save(self) -> None:
        """Save the cluster's state. If ApiError is raised, the changes since the last save exist in memory only."""
        if self._store is not None:
            try:
                self._store.save(self)
            except OSError as error:
                raise build_storage_error("the cluster's state", error) from error

    def _write_marker(self, topic_partition: tuple[str, int], producer_id: int, epoch: int, commit: bool) -> None:
        """Write a transaction marker to a partition's log, if the partition still exists."""
        name, index = topic_partition
        topic = self.topics.get(name)
        if topic is not None and index < len(topic.partitions):
            partition = topic.partitions[index]
            partition.log.append_end_marker(
                producer_id, epoch, commit=commit, wall_ms=self.wall_ms(), leader_epoch=partition.leader_epoch
            )

    def _end_group_offsets(self, transaction: TransactionMetadata, commit: bool) -> None:
        for group in transaction.groups:
            self.offsets.end_transaction(transaction.producer_id, group, commit=commit)

    def _generate_uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def _check_partition_limit(requested_count: int, remaining_count: int, max_partitions: int) -> None:
    if requested_count > remaining_count:
        raise ConfigurationError(
            f"Cannot create {requested_count} partitions: the embedded broker has at most {max_partitions} in all "
            f"topics together, so {remaining_count} more can be created."
        )
