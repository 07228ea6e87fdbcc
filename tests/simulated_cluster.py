"""The embedded broker's core behind a FakeSystem: a cluster in virtual time, in the thread of the test.

    system = FakeSystem()
    cluster = SimulatedCluster(system, nodes=2, topics={"t": 3})
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).drop(applied=True)
    ... a client of `system` connects to cluster.bootstrap_servers: broker0:9092, broker1:9093 ...
    assert cluster.values("t", 0) == [b"a", b"b"]

Node n is at host `broker<n>`, port 9092 + n. Requests of one connection are taken one after the other, each when the
one before it was answered, as the socket server does it by muting. Delays, long polls and transaction timeouts pass in
virtual time; a delay of a thousand seconds costs nothing.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.kafka_apis import handle_request
from spark_kafka_sink.broker.log import PartitionLog
from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse, DelayedRequest, RequestOutcome
from spark_kafka_sink.broker.transaction_coordinator import Transaction
from spark_kafka_sink.records.decoder import SCHEMA, decode_batches
from tests.fake_system import FakeConnection, FakeSocket, FakeSystem, Peer

FIRST_PORT = 9092
FRAME_BYTES_MAX = 100 * 1024 * 1024


class SimulatedCluster:
    def __init__(self, system: FakeSystem, *, topics: Mapping[str, int] | None = None, **options: Any) -> None:
        """`options` are those of ClusterConfig."""
        self.system = system
        self.core = EmbeddedCluster(ClusterConfig(**options), topics=topics, wall_ms=system.wall_ms)
        self.core.listeners = self
        self.control = Control(self.core, self.core.config.seed)
        self.requests: list[tuple[float, int, bytes]] = []
        """(time, node, frame) of all requests that were taken, oldest first."""
        self.outlives_connections = False
        """True: a delayed request is still carried out after its connection was closed."""
        self._peers: dict[int, NodePeer] = {}
        self._parked: dict[_Parked, None] = {}
        self._timeouts_ms: set[float] = set()
        for node in self.core.nodes.values():
            node.host, node.port = f"broker{node.id}", FIRST_PORT + node.id
            self._peers[node.id] = self.new_peer(node.id)
            self.accept_connections(node.id)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.core.nodes.values())

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.core.log(topic, partition)

    # --- what is stored, as a reader would get it

    def table(self, topic: str, partition: int = 0, *, committed: bool = False) -> pa.Table:
        """offset, timestamp, key, value, headers of all data records; with `committed`, of no aborted transaction."""
        return stored_records(self.log(topic, partition), committed=committed)

    def values(self, topic: str, partition: int = 0, *, committed: bool = False) -> list[bytes | None]:
        values: list[bytes | None] = self.table(topic, partition, committed=committed).column("value").to_pylist()
        return values

    # --- NodeListeners

    def stop_node(self, node: int) -> None:
        self.refuse_connections(node)
        self.close_connections(node)

    def close_connections(self, node: int) -> None:
        """End the node's connections; it accepts new ones."""
        self._peers[node].close_connections()

    def start_node(self, node: int) -> None:
        self.accept_connections(node)

    def refuse_connections(self, node: int) -> None:
        self.system.refuse(self.core.nodes[node].host, self.core.nodes[node].port)

    def accept_connections(self, node: int) -> None:
        self.system.listen(self.core.nodes[node].host, self.core.nodes[node].port, self._peers[node])

    # --- requests

    def handle_frame(self, conversation: Conversation, frame: bytes) -> None:
        self.record_request(conversation, frame)
        outcome = handle_request(
            self.core, self.control, conversation.node, memoryview(bytearray(frame)), self.system.now()
        )
        self._follow(conversation, outcome)
        self._resume_parked()
        self._await_timeout()

    def _await_timeout(self) -> None:
        """Of the transaction that is overdue first. When it was aborted, the next one is awaited."""
        timeout_ms = self.core.coordinator.next_timeout_ms()
        if timeout_ms is not None and timeout_ms not in self._timeouts_ms:
            self._timeouts_ms.add(timeout_ms)
            self.system.at(timeout_ms, self._abort_overdue)

    def record_request(self, conversation: Conversation, frame: bytes) -> None:
        self.requests.append((self.system.now(), conversation.node, frame))

    def new_peer(self, node: int) -> NodePeer:
        return NodePeer(self, node)

    def execute_late(self, sock: FakeSocket, data: bytes) -> None:
        """Carry out what was sent over a connection that has ended. No one gets the answers."""
        node = sock.address.port - FIRST_PORT
        connection = FakeConnection(self.system, sock, self._peers[node])
        connection.open = False
        while data:
            size = struct.unpack_from(">i", data)[0]
            self.handle_frame(Conversation(self, node, connection), data[4 : 4 + size])
            data = data[4 + size :]

    def complete(self, transaction: Transaction) -> None:
        """Write the markers that the coordinator has left for later (`coordinator.should_defer_completion`)."""
        self.core.coordinator.complete_transaction(transaction)
        self.core.save_transactions()
        self._resume_parked()

    def _follow(self, conversation: Conversation, outcome: RequestOutcome) -> None:
        if isinstance(outcome, DelayedRequest):
            parked = _Parked(conversation, outcome)
            self._parked[parked] = None
            self.system.at(outcome.deadline_ms, lambda: self._resume(parked))
        else:
            conversation.reply(outcome)

    def _resume(self, parked: _Parked) -> None:
        if parked in self._parked:
            del self._parked[parked]
            if parked.conversation.connection.open or self.outlives_connections:
                self._follow(parked.conversation, parked.later.resume(self.system.now()))

    def _resume_parked(self) -> None:
        """Resumes each parked request whose progress is out of date. It may be parked again, under the new progress."""
        for parked in [p for p in self._parked if p.later.change_count not in (None, self.core.change_count)]:
            self._resume(parked)

    def _abort_overdue(self) -> None:
        self.core.tick(self.system.now())
        self._resume_parked()
        self._await_timeout()


class _Parked:
    def __init__(self, conversation: Conversation, later: DelayedRequest) -> None:
        self.conversation = conversation
        self.later = later


class NodePeer(Peer):
    """All connections of one node."""

    def __init__(self, cluster: SimulatedCluster, node: int) -> None:
        self._cluster = cluster
        self._node = node
        self._conversations: dict[FakeConnection, Conversation] = {}

    def on_connect(self, connection: FakeConnection) -> None:
        self._conversations[connection] = Conversation(self._cluster, self._node, connection)

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        self._conversations[connection].on_bytes(data)

    def on_close(self, connection: FakeConnection) -> None:
        connection.open = False
        self._conversations.pop(connection, None)

    def close_connections(self) -> None:
        for connection in list(self._conversations):
            connection.reset()
        self._conversations.clear()


class Conversation:
    """The frames of one connection, one at a time."""

    def __init__(self, cluster: SimulatedCluster, node: int, connection: FakeConnection) -> None:
        self.node = node
        self.connection = connection
        self._cluster = cluster
        self._bytes = bytearray()
        self._frames: deque[bytes] = deque()
        self._muted = False

    def on_bytes(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4:
            size = struct.unpack_from(">i", self._bytes)[0]
            if not 0 <= size <= FRAME_BYTES_MAX:
                self.connection.close()
                return
            if len(self._bytes) < 4 + size:
                break
            self._frames.append(bytes(self._bytes[4 : 4 + size]))
            del self._bytes[: 4 + size]
        self._next()

    def reply(self, reply: ChannelResponse) -> None:
        if not self.connection.open:
            return
        if reply.raw_bytes is not None:
            self.connection.send(reply.raw_bytes)
        elif reply.frame is not None:
            payload = b"".join(reply.frame)
            self.connection.send(struct.pack(">i", len(payload)) + payload)
        if reply.action is ChannelAction.CLOSE:
            self.connection.close()
        elif reply.action is ChannelAction.UNMUTE:
            self._muted = False
            self._next()

    def _next(self) -> None:
        while self._frames and not self._muted and self.connection.open:
            self._muted = True
            self._cluster.handle_frame(self, self._frames.popleft())


def stored_records(log: PartitionLog, *, committed: bool = False) -> pa.Table:
    """The data records; with `committed` up to the last stable offset, without those of aborted transactions."""
    read = log.read(log.log_start_offset, 2**62, committed=committed)
    tables = []
    for batch in read.batches:
        for header, columns in decode_batches(batch):
            aborted = header.is_transactional and any(
                a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                for a in read.aborted
            )
            if not header.is_control and not aborted:
                tables.append(pa.Table.from_batches([columns]))
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()
