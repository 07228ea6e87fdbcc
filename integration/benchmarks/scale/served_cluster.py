"""ServedCluster: simulated brokers that take time, bear a number of connections, are slow, or die.

Each broker takes one request after the other. A request costs `request_ms`, `partition_ms` for each batch in it and its
bytes at `bytes_per_ms`; the slow broker takes SLOWNESS times as long. Where not all producers of a write are simulated,
each request takes `weight` times as long, and each connection counts as `weight`: as those that it stands for.
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
"""From the death of a broker until its partitions have other leaders: broker.session.timeout.ms in part."""


@dataclass(frozen=True)
class Service:
    """What a broker does. `connections_max`: it closes those beyond, as with max.connections.per.ip."""

    request_ms: float = 0.2
    partition_ms: float = 0.01
    bytes_per_ms: float = 200_000.0
    connections_max: int = 1_000_000


class ServedCluster(SimulatedCluster):
    def __init__(self, system: FakeSystem, service: Service, **options: Any) -> None:
        self.service = service
        self.weight = 1.0
        self.slow: int | None = None
        self.mortal: int | None = None
        """It dies with its second produce request."""
        self.open = Counter[int]()
        self.most_open = Counter[int]()
        self.opened = 0
        self.refused = 0
        self.produced = Counter[int]()
        """Produce requests by node."""
        self.busy_ms = defaultdict[int, float](float)
        self._free_at_ms = defaultdict[int, float](float)
        super().__init__(system, **options)

    def new_peer(self, node: int) -> NodePeer:
        return _CountedPeer(self, node)

    def record_request(self, conversation: Conversation, frame: bytes) -> None:
        """Counted, not kept: there are too many."""

    def handle_frame(self, conversation: Conversation, frame: bytes) -> None:
        now, node = self.system.now(), conversation.node
        service_ms = self._service_ms(node, frame)
        if node == self.mortal and self.produced[node] == 2:
            self.mortal = None
            self.die(node)
            return
        self.busy_ms[node] += service_ms
        done_ms = max(now, self._free_at_ms[node]) + service_ms
        self._free_at_ms[node] = done_ms
        self.system.at(done_ms, lambda: self._served(conversation, frame))

    def die(self, node: int) -> None:
        """Connections end, and its partitions have no leader that answers until they get another."""
        self.stop_node(node)
        self.system.after(ELECTION_MS, lambda: self.control.stop_node(node))

    def _service_ms(self, node: int, frame: bytes) -> float:
        service, batches = self.service, 0
        if struct.unpack_from(">h", frame)[0] == ApiKey.PRODUCE:
            _, request = decode_request(memoryview(bytearray(frame)))
            assert isinstance(request, ProduceRequest)
            batches = sum(len(topic.partition_data) for topic in request.topic_data)
            self.produced[node] += 1
        cost_ms = service.request_ms + batches * service.partition_ms + len(frame) / service.bytes_per_ms
        return cost_ms * self.weight * (SLOWNESS if node == self.slow else 1)

    def _served(self, conversation: Conversation, frame: bytes) -> None:
        if conversation.connection.open:
            super().handle_frame(conversation, frame)


class _CountedPeer(NodePeer):
    def __init__(self, cluster: ServedCluster, node: int) -> None:
        super().__init__(cluster, node)
        self._counts = cluster

    def on_connect(self, connection: FakeConnection) -> None:
        cluster = self._counts
        if (cluster.open[self._node] + 1) * cluster.weight > cluster.service.connections_max:
            cluster.refused += 1
            connection.close()
            return
        super().on_connect(connection)
        cluster.opened += 1
        cluster.open[self._node] += 1
        cluster.most_open[self._node] = max(cluster.most_open[self._node], cluster.open[self._node])

    def on_close(self, connection: FakeConnection) -> None:
        if connection in self._conversations:
            self._counts.open[self._node] -= 1
        super().on_close(connection)

    def close_connections(self) -> None:
        self._counts.open[self._node] = 0
        super().close_connections()
