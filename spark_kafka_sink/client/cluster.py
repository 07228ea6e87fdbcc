"""ClusterSnapshot: an immutable view of a cluster's brokers and topics. Any thread may read it without a lock.

Each metadata update creates a new ClusterSnapshot. Unknown values are None, not the protocol's special numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from spark_kafka_sink.diagnostics.text import sanitize

NO_TOPIC_ID = UUID(int=0)
"""The topic id in responses of brokers that have no topic ids."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and its advertised address. A negative id marks a bootstrap server, whose broker id is unknown."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        host = sanitize(self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"bootstrap server {self.address}" if self.id < 0 else f"broker {self.id} ({self.address})"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition, with its leader and replicas as node ids. `leader` is None if the partition has none."""

    topic: str
    index: int
    leader: int | None
    leader_epoch: int | None
    """The leader epoch; None if it is unknown or if it came from a broker whose leader epochs are unreliable."""
    replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as of the latest response. If it has an error, `partitions` is empty or from an earlier response."""

    name: str
    topic_id: UUID = NO_TOPIC_ID
    error_code: int = 0
    partitions: tuple[PartitionInfo, ...] = ()
    """The partitions, sorted by index. There are usually no gaps, but a broker may omit partitions."""
    is_internal: bool = False

    def partition(self, index: int) -> PartitionInfo | None:
        """Return the partition with this index, or None."""
        # Without gaps, a partition's index is its position.
        if index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((partition for partition in self.partitions if partition.index == index), None)


@dataclass(frozen=True)
class ClusterSnapshot:
    """An immutable view of a cluster. If `is_bootstrap`, its nodes are the bootstrap servers and it has no topics."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    controller_id: int | None = None
    cluster_id: str | None = None
    is_bootstrap: bool = False
    """Whether the nodes are only the bootstrap servers, not brokers from a metadata response."""
    _names_by_id: Mapping[UUID, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names_by_id = {topic.topic_id: topic.name for topic in self.topics.values() if topic.topic_id != NO_TOPIC_ID}
        object.__setattr__(self, "nodes", MappingProxyType(dict(self.nodes)))
        object.__setattr__(self, "topics", MappingProxyType(dict(self.topics)))
        object.__setattr__(self, "_names_by_id", names_by_id)

    @property
    def controller(self) -> Node | None:
        return None if self.controller_id is None else self.nodes.get(self.controller_id)

    def partition_count(self, topic: str) -> int | None:
        """Return the topic's partition count; None if it is unknown."""
        info = self.topics.get(topic)
        return None if info is None or not info.partitions else len(info.partitions)

    def partition(self, topic: str, index: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return None if info is None else info.partition(index)

    def leader(self, topic: str, index: int) -> Node | None:
        """Return the partition's leader; None if the leader or its address is unknown."""
        partition = self.partition(topic, index)
        if partition is None or partition.leader is None:
            return None
        return self.nodes.get(partition.leader)

    def topic_id(self, topic: str) -> UUID | None:
        """Return the topic's id; None if the topic or its id is unknown."""
        info = self.topics.get(topic)
        return None if info is None or info.topic_id == NO_TOPIC_ID else info.topic_id

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._names_by_id.get(topic_id)


def build_bootstrap_snapshot(nodes: Iterable[Node]) -> ClusterSnapshot:
    return ClusterSnapshot(nodes={node.id: node for node in nodes}, is_bootstrap=True)


def replace_partitions(topic: TopicInfo, changed_partitions: Sequence[PartitionInfo]) -> TopicInfo:
    """Return a copy of the topic with these partitions added or replaced, all sorted by index."""
    partitions_by_index = {partition.index: partition for partition in (*topic.partitions, *changed_partitions)}
    partitions = tuple(partitions_by_index[index] for index in sorted(partitions_by_index))
    return TopicInfo(topic.name, topic.topic_id, topic.error_code, partitions, topic.is_internal)
