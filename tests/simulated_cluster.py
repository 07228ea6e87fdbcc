"""SimulatedCluster: an embedded cluster behind a FakeSystem, in virtual time and in the test's thread.

    system = FakeSystem()
    cluster = SimulatedCluster(system, nodes=2, topics={"t": 3})
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).drop(execute_first=True)
    ... a client that uses `system` connects to cluster.bootstrap_servers: broker0:9092, broker1:9093 ...
    assert cluster.values("t", 0) == [b"a", b"b"]

Node n listens on host `broker<n>`, port 9092 + n. As in the socket server, which mutes connections, the requests of one
connection are handled one at a time: each after the response to the previous one. Delays, long polls and transaction
timeouts pass in virtual time, so a delay of a thousand seconds takes no real time.
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
from spark_kafka_sink.broker.transaction_coordinator import TransactionMetadata
from spark_kafka_sink.records.decoder import SCHEMA, decode_batches
from tests.fake_system import FakeConnection, FakeSocket, FakeSystem, Peer

FIRST_PORT = 9092
DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024


class SimulatedCluster:
    def __init__(self, system: FakeSystem, *, topics: Mapping[str, int] | None = None, **options: Any) -> None:
        """`options` are the fields of ClusterConfig."""
        self.system = system
        self.core = EmbeddedCluster(ClusterConfig(**options), topics=topics, wall_ms=system.wall_ms)
        self.core.listeners = self
        self.control = Control(self.core, self.core.config.seed)
        self.requests: list[tuple[float, int, bytes]] = []
        """(time, node, frame) of all requests so far, oldest first."""
        self.executes_after_disconnect = False
        """Whether a delayed request is executed even if its connection was closed in the meantime."""
        self._peers: dict[int, NodePeer] = {}
        self._delayed: dict[_DelayedEntry, None] = {}
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

    # --- stored records

    def table(self, topic: str, partition: int = 0, *, committed: bool = False) -> pa.Table:
        """Return the records of a partition. `committed`: only those that a read_committed consumer receives."""
        return stored_records(self.log(topic, partition), committed=committed)

    def values(self, topic: str, partition: int = 0, *, committed: bool = False) -> list[bytes | None]:
        values: list[bytes | None] = self.table(topic, partition, committed=committed).column("value").to_pylist()
        return values

    # --- NodeListeners

    def stop_node(self, node: int) -> None:
        self.refuse_connections(node)
        self.close_connections(node)

    def close_connections(self, node: int) -> None:
        """Close the node's connections. It still accepts new ones."""
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
        self._process_outcome(conversation, outcome)
        self._resume_changed()
        self._schedule_timeout()

    def _schedule_timeout(self) -> None:
        """Schedule the abort of the transaction that times out first. The abort schedules the next one."""
        timeout_ms = self.core.coordinator.next_timeout_ms()
        if timeout_ms is not None and timeout_ms not in self._timeouts_ms:
            self._timeouts_ms.add(timeout_ms)
            self.system.at(timeout_ms, self._abort_timed_out)

    def record_request(self, conversation: Conversation, frame: bytes) -> None:
        self.requests.append((self.system.now(), conversation.node, frame))

    def new_peer(self, node: int) -> NodePeer:
        return NodePeer(self, node)

    def execute_late(self, sock: FakeSocket, data: bytes) -> None:
        """Handle requests that were sent over a connection which has been closed. Nobody receives the responses."""
        node = sock.address.port - FIRST_PORT
        connection = FakeConnection(self.system, sock, self._peers[node])
        connection.open = False
        while data:
            size = struct.unpack_from(">i", data)[0]
            self.handle_frame(Conversation(self, node, connection), data[4 : 4 + size])
            data = data[4 + size :]

    def complete_transaction(self, transaction: TransactionMetadata) -> None:
        """Write the markers that the coordinator has deferred (`coordinator.should_defer_completion`)."""
        self.core.coordinator.complete_transaction(transaction)
        self.core.save_transactions()
        self._resume_changed()

    def _process_outcome(self, conversation: Conversation, outcome: RequestOutcome) -> None:
        if isinstance(outcome, DelayedRequest):
            entry = _DelayedEntry(conversation, outcome)
            self._delayed[entry] = None
            self.system.at(outcome.deadline_ms, lambda: self._resume(entry))
        else:
            conversation.send_response(outcome)

    def _resume(self, entry: _DelayedEntry) -> None:
        if entry in self._delayed:
            del self._delayed[entry]
            if entry.conversation.connection.open or self.executes_after_disconnect:
                self._process_outcome(entry.conversation, entry.request.resume(self.system.now()))

    def _resume_changed(self) -> None:
        """Resume the delayed requests that wait for a change. They may be delayed again, with the new change count."""
        for entry in [e for e in self._delayed if e.request.change_count not in (None, self.core.change_count)]:
            self._resume(entry)

    def _abort_timed_out(self) -> None:
        self.core.abort_due_transactions(self.system.now())
        self._resume_changed()
        self._schedule_timeout()


class _DelayedEntry:
    """A delayed request with the conversation that waits for the response. Compared by identity."""

    def __init__(self, conversation: Conversation, request: DelayedRequest) -> None:
        self.conversation = conversation
        self.request = request


class NodePeer(Peer):
    """The server side of all connections to one node."""

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
    """The requests of one connection, handled one at a time."""

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
            if not 0 <= size <= DEFAULT_MAX_FRAME_BYTES:
                self.connection.close()
                return
            if len(self._bytes) < 4 + size:
                break
            self._frames.append(bytes(self._bytes[4 : 4 + size]))
            del self._bytes[: 4 + size]
        self._handle_next()

    def send_response(self, response: ChannelResponse) -> None:
        if not self.connection.open:
            return
        if response.raw_bytes is not None:
            self.connection.send(response.raw_bytes)
        elif response.frame is not None:
            payload = b"".join(response.frame)
            self.connection.send(struct.pack(">i", len(payload)) + payload)
        if response.action is ChannelAction.CLOSE:
            self.connection.close()
        elif response.action is ChannelAction.UNMUTE:
            self._muted = False
            self._handle_next()

    def _handle_next(self) -> None:
        while self._frames and not self._muted and self.connection.open:
            self._muted = True
            self._cluster.handle_frame(self, self._frames.popleft())


def stored_records(log: PartitionLog, *, committed: bool = False) -> pa.Table:
    """Return the data records of a log.

    `committed`: only those before the last stable offset that are not part of an aborted transaction.
    """
    read = log.read(log.log_start_offset, 2**62, committed=committed)
    tables = []
    for batch in read.batches:
        for header, columns in decode_batches(batch):
            aborted = header.is_transactional and any(
                a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                for a in read.aborted_ranges
            )
            if not header.is_control and not aborted:
                tables.append(pa.Table.from_batches([columns]))
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()
