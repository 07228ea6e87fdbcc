"""RequestContext: all that a handler gets to see, and the three things that it may return."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.fault_rules import FaultEffects
from spark_kafka_sink.broker.topics import Partition, Topic
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.message import Message


@dataclass(frozen=True)
class NoResponse:
    """The client does not want one (acks=0)."""

    close: bool = False


@dataclass(frozen=True)
class DelayedResponse:
    """Call the handler again at that time, or when something has changed."""

    deadline_ms: float


HandlerResult = Message | NoResponse | DelayedResponse


@dataclass
class RequestContext:
    cluster: EmbeddedCluster
    node: int
    header: RequestHeader
    received_ms: float
    now: float
    effects: FaultEffects = field(default_factory=FaultEffects)

    @property
    def version(self) -> int:
        return self.header.api_version

    def injected(self, topic: str | None = None, partition: int | None = None) -> int:
        """The error that a test wants here, before anything is done."""
        return self.effects.error(topic, partition)

    def find_partition(self, topic: Topic | None, index: int) -> tuple[Partition | None, int]:
        """The partition if this node leads it, and the error to answer with if it does not."""
        if topic is None or not 0 <= index < len(topic.partitions):
            return None, error_codes.UNKNOWN_TOPIC_OR_PARTITION
        injected = self.injected(topic.name, index)
        if injected:
            return None, injected
        partition = topic.partitions[index]
        if partition.leader != self.node:
            return None, error_codes.NOT_LEADER_OR_FOLLOWER
        return partition, 0

    def coordinator_error(self, key: str) -> int:
        """The error for a transactional id or a group that is not this node's."""
        injected = self.injected()
        if injected:
            return injected
        node = self.cluster.coordinator_for(key)
        return 0 if node is not None and node.id == self.node else error_codes.NOT_COORDINATOR
