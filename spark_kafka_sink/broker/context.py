"""RequestContext, the input of a handler, and the results that a handler can return."""

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
    """A handler result for requests that get no response, such as Produce with acks=0."""

    should_close: bool = False
    """Whether to close the connection, which is the only way to report an error without a response."""


@dataclass(frozen=True)
class DelayedResponse:
    """A handler result that delays the response. The handler runs again at the deadline or when the cluster changes."""

    deadline_ms: float


HandlerResult = Message | NoResponse | DelayedResponse


@dataclass
class RequestContext:
    """One request's header, times and injected faults, with the cluster and the node that received the request."""

    cluster: EmbeddedCluster
    node_id: int
    header: RequestHeader
    received_ms: float
    """When the request arrived, in milliseconds on the monotonic clock."""
    now_ms: float
    """When the handler runs, on the same clock. A delayed request is handled repeatedly, each time with a new value."""
    effects: FaultEffects = field(default_factory=FaultEffects)

    @property
    def version(self) -> int:
        return self.header.api_version

    def find_injected_error_code(self, topic: str | None = None, partition: int | None = None) -> int:
        """Return the injected error code to respond with instead of executing the request, or 0."""
        return self.effects.find_rejection_code(topic, partition)

    def get_partition_or_error_code(self, topic: Topic | None, index: int) -> tuple[Partition | None, int]:
        """Return (partition, 0) if this node leads the partition, else None and the error code to respond with."""
        if topic is None or not 0 <= index < len(topic.partitions):
            return None, error_codes.UNKNOWN_TOPIC_OR_PARTITION
        injected_code = self.find_injected_error_code(topic.name, index)
        if injected_code:
            return None, injected_code
        partition = topic.partitions[index]
        if partition.leader != self.node_id:
            return None, error_codes.NOT_LEADER_OR_FOLLOWER
        return partition, 0

    def find_coordinator_error_code(self, key: str) -> int:
        """Return 0 if this node coordinates a transactional id or group, else the error code to respond with."""
        injected_code = self.find_injected_error_code()
        if injected_code:
            return injected_code
        node = self.cluster.find_coordinator(key)
        return 0 if node is not None and node.id == self.node_id else error_codes.NOT_COORDINATOR
