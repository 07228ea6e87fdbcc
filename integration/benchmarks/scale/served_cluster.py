"""ServedCluster: simulated brokers with service times, connection limits, a slow node and a node that fails.

Each broker serves one request at a time. A request takes `request_ms`, plus `partition_ms` for each batch, plus its
size at `bytes_per_ms`; the slow broker takes SLOWNESS times as long. If only a sample of a write's producers is
simulated, each request takes `weight` times as long and each connection counts `weight` times, to represent the others.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.protocol.headers import decode_request
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from tests.fake_system import FakeConnection, FakeSystem
from tests.simulated_cluster import Conversation, NodePeer, SimulatedCluster

SLOWNESS = 10
ELECTION_MS = 3_000.0
"""Time from the failure of a broker to the election of new leaders, mostly broker.session.timeout.ms."""


@dataclass(frozen=True)
class Service:
    """Service times of a broker, and the number of connections above which it closes new ones."""

    request_ms: float = 0.2
    partition_ms: float = 0.01
    bytes_per_ms: float = 200_000.0
    max_connections: int = 1_000_000


class ServedCluster(SimulatedCluster):
    """A simulated cluster that counts its connections and requests, and takes time to serve them."""

    def __init__(self, system: FakeSystem, service: Service, **options: Any) -> None:
        self.service = service
        self.weight = 1.0
        self.slow_node: int | None = None
        self.failing_node: int | None = None
        """Node that fails at its second produce request."""
        self.open_connections = Counter[int]()
        self.max_open_connections = Counter[int]()
        self.opened_count = 0
        self.rejected_count = 0
        self.produce_requests = Counter[int]()
        """Produce requests by node."""
        self.busy_ms = defaultdict[int, float](float)
        self._free_at_ms = defaultdict[int, float](float)
        super().__init__(system, **options)

    def new_peer(self, node: int) -> NodePeer:
        return _CountedPeer(self, node)

    def record_request(self, conversation: Conversation, frame: bytes) -> None:
        """Do nothing, because there are too many requests to keep them. They are only counted."""

    def handle_frame(self, conversation: Conversation, frame: bytes) -> None:
        now, node = self.system.now(), conversation.node
        service_ms = self._compute_service_ms(node, frame)
        if node == self.failing_node and self.produce_requests[node] == 2:
            self.failing_node = None
            self.fail(node)
            return
        self.busy_ms[node] += service_ms
        done_ms = max(now, self._free_at_ms[node]) + service_ms
        self._free_at_ms[node] = done_ms
        self.system.at(done_ms, lambda: self._complete(conversation, frame))

    def fail(self, node: int) -> None:
        """Close all connections of a node. Its partitions have no working leader until others are elected."""
        self.stop_node(node)
        self.system.after(ELECTION_MS, lambda: self.control.stop_node(node))

    def _compute_service_ms(self, node: int, frame: bytes) -> float:
        """Return the service time of a request, and count the request if it is a produce request."""
        service, batches = self.service, 0
        if struct.unpack_from(">h", frame)[0] == ApiKey.PRODUCE:
            _, request = decode_request(memoryview(bytearray(frame)))
            assert isinstance(request, ProduceRequest)
            batches = sum(len(topic.partition_data) for topic in request.topic_data)
            self.produce_requests[node] += 1
        cost_ms = service.request_ms + batches * service.partition_ms + len(frame) / service.bytes_per_ms
        return cost_ms * self.weight * (SLOWNESS if node == self.slow_node else 1)

    def _complete(self, conversation: Conversation, frame: bytes) -> None:
        if conversation.connection.open:
            super().handle_frame(conversation, frame)


class _CountedPeer(NodePeer):
    """Counts and limits the connections of a node."""

    def __init__(self, cluster: ServedCluster, node: int) -> None:
        super().__init__(cluster, node)
        self._served_cluster = cluster

    def on_connect(self, connection: FakeConnection) -> None:
        cluster = self._served_cluster
        if (cluster.open_connections[self._node] + 1) * cluster.weight > cluster.service.max_connections:
            cluster.rejected_count += 1
            connection.close()
            return
        super().on_connect(connection)
        cluster.opened_count += 1
        cluster.open_connections[self._node] += 1
        cluster.max_open_connections[self._node] = max(
            cluster.max_open_connections[self._node], cluster.open_connections[self._node]
        )

    def on_close(self, connection: FakeConnection) -> None:
        if connection in self._conversations:
            self._served_cluster.open_connections[self._node] -= 1
        super().on_close(connection)

    def close_connections(self) -> None:
        self._served_cluster.open_connections[self._node] = 0
        super().close_connections()
