"""The state of the connection to each node: a table, and when the next move is allowed.

    state                   meaning                             moves to
    DISCONNECTED            there is none                       CONNECTING
    CONNECTING              until the channel is ready          CHECKING_API_VERSIONS or without connection
    CHECKING_API_VERSIONS   the broker is asked what it takes   READY, CHECKING_API_VERSIONS or without connection
    READY                   requests may be sent                THROTTLED or without connection
    THROTTLED               quiet, as the broker has asked      READY or without connection
    AUTHENTICATION_FAILED   as DISCONNECTED; the reason is      CONNECTING
                            raised in calls that wait

`MOVES` is this table; without connection is DISCONNECTED or AUTHENTICATION_FAILED.

CONNECTING lasts until the channel is ready, thus covers the TLS handshake and SASL as well, and has a time limit of its
own. Both that limit and the pause before a reconnect grow exponentially over consecutive failures.

All addresses of a name are tried, one per attempt; when they are used up, or the connection has once stood, the name
is resolved anew. Addresses of both families are tried: where `localhost` is ::1 first, a broker may still listen on
127.0.0.1 alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import AuthenticationError, IllegalStateError
from spark_kafka_sink.network.system import SocketAddress

Resolve = Callable[[str, int], Sequence[SocketAddress]]


class ConnectionState(Enum):
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CHECKING_API_VERSIONS = "checking API versions"
    READY = "ready"
    THROTTLED = "throttled"
    AUTHENTICATION_FAILED = "authentication failed"


MOVES: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.DISCONNECTED: frozenset({ConnectionState.CONNECTING}),
    ConnectionState.AUTHENTICATION_FAILED: frozenset({ConnectionState.CONNECTING}),
    ConnectionState.CONNECTING: frozenset(
        {
            ConnectionState.CHECKING_API_VERSIONS,
            ConnectionState.DISCONNECTED,
            ConnectionState.AUTHENTICATION_FAILED,
        }
    ),
    ConnectionState.CHECKING_API_VERSIONS: frozenset(
        {
            ConnectionState.CHECKING_API_VERSIONS,  # once more, with an older version of the request
            ConnectionState.READY,
            ConnectionState.DISCONNECTED,
            ConnectionState.AUTHENTICATION_FAILED,
        }
    ),
    ConnectionState.READY: frozenset(
        {ConnectionState.THROTTLED, ConnectionState.DISCONNECTED, ConnectionState.AUTHENTICATION_FAILED}
    ),
    ConnectionState.THROTTLED: frozenset(
        {ConnectionState.READY, ConnectionState.DISCONNECTED, ConnectionState.AUTHENTICATION_FAILED}
    ),
}

_READY = ConnectionState.READY
_WITHOUT_CONNECTION = frozenset({ConnectionState.DISCONNECTED, ConnectionState.AUTHENTICATION_FAILED})
_CONNECTED = frozenset({ConnectionState.CHECKING_API_VERSIONS, ConnectionState.READY, ConnectionState.THROTTLED})
_PREPARING = frozenset({ConnectionState.CONNECTING, ConnectionState.CHECKING_API_VERSIONS})


@dataclass
class _NodeConnection:
    host: str
    port: int
    reconnect_backoff_ms: float
    setup_timeout_ms: float
    state: ConnectionState = ConnectionState.DISCONNECTED
    last_attempt_ms: float = -math.inf
    failed_attempts: int = 0
    failed_setups: int = 0
    throttled_until_ms: float = -math.inf
    authentication_error: AuthenticationError | None = None
    addresses: list[SocketAddress] = field(default_factory=list)
    """The addresses still to be tried, the current one first. If empty, the name must be resolved."""
    last_address: SocketAddress | None = None


class ConnectionStates:
    """Sender thread only."""

    def __init__(
        self,
        *,
        reconnect_backoff_ms: float,
        reconnect_backoff_max_ms: float,
        setup_timeout_ms: float,
        setup_timeout_max_ms: float,
        resolve: Resolve,
        random: Random,
    ) -> None:
        self._reconnect_backoff = ExponentialBackoff(reconnect_backoff_ms, reconnect_backoff_max_ms, random)
        self._setup_timeout = ExponentialBackoff(setup_timeout_ms, setup_timeout_max_ms, random)
        self._resolve = resolve
        self._nodes: dict[int, _NodeConnection] = {}
        self._setup_deadlines: dict[int, float] = {}  # while CONNECTING: when that has taken too long

    # --- what is

    def state(self, node_id: int, now: float) -> ConnectionState:
        node = self._nodes.get(node_id)
        if node is None:
            return ConnectionState.DISCONNECTED
        if node.state is ConnectionState.THROTTLED and node.throttled_until_ms <= now:
            self._move(node_id, node, ConnectionState.READY)
        return node.state

    def can_connect(self, node_id: int, now: float) -> bool:
        node = self._nodes.get(node_id)
        if node is None:
            return True
        return node.state in _WITHOUT_CONNECTION and now >= node.last_attempt_ms + node.reconnect_backoff_ms

    def is_ready(self, node_id: int, now: float) -> bool:
        node = self._nodes.get(node_id)
        if node is None or node.state is _READY:
            return node is not None
        return self.state(node_id, now) is _READY

    def is_preparing(self, node_id: int) -> bool:
        """On the way to being ready."""
        return self._is_in(node_id, _PREPARING)

    def is_connected(self, node_id: int) -> bool:
        return self._is_in(node_id, _CONNECTED)

    def has_failed(self, node_id: int) -> bool:
        """There was an attempt, or a connection, and there is none now."""
        return self._is_in(node_id, _WITHOUT_CONNECTION)

    def is_unreachable(self, node_id: int) -> bool:
        """The last attempt to connect has failed. One that was lost, or idle, and not tried again, does not count."""
        return self.has_failed(node_id) and self._nodes[node_id].failed_setups > 0

    def authentication_error(self, node_id: int) -> AuthenticationError | None:
        node = self._nodes.get(node_id)
        return None if node is None else node.authentication_error

    def refuses(self, node_id: int) -> bool:
        """The node has refused our credentials at each of its addresses."""
        node = self._nodes.get(node_id)
        return (
            node is not None
            and node.authentication_error is not None
            and node.state in _WITHOUT_CONNECTION
            and len(node.addresses) <= 1
        )

    def last_attempt_ms(self, node_id: int) -> float:
        node = self._nodes.get(node_id)
        return -math.inf if node is None else node.last_attempt_ms

    # --- how long until something can change

    def connection_delay(self, node_id: int, now: float) -> float:
        """Until a connection can be tried, or until the present attempt ends. Connected: other events decide."""
        node = self._nodes.get(node_id)
        if node is None:
            return 0.0
        if node.state is ConnectionState.CONNECTING:
            return max(self._setup_deadlines[node_id] - now, 0.0)
        if node.state in _WITHOUT_CONNECTION:
            return max(node.last_attempt_ms + node.reconnect_backoff_ms - now, 0.0)
        return math.inf

    def throttle_delay(self, node_id: int, now: float) -> float:
        node = self._nodes.get(node_id)
        return 0.0 if node is None else max(node.throttled_until_ms - now, 0.0)

    def poll_delay(self, node_id: int, now: float) -> float:
        """Until the node may be sent to, as far as time alone decides."""
        throttle_delay_ms = self.throttle_delay(node_id, now)
        if throttle_delay_ms > 0 and self.is_connected(node_id):
            return throttle_delay_ms
        return self.connection_delay(node_id, now)

    def next_setup_deadline(self) -> float:
        """When the first of the attempts under way will have taken too long."""
        return min(self._setup_deadlines.values(), default=math.inf)

    def nodes_with_setup_timeout(self, now: float) -> list[int]:
        return [node_id for node_id, deadline_ms in self._setup_deadlines.items() if deadline_ms <= now]

    def setup_timeout_ms(self, node_id: int) -> float:
        return self._known(node_id).setup_timeout_ms

    # --- moves

    def connecting(self, node: Node, now: float) -> SocketAddress:
        """An attempt begins: at this address. DisconnectedError if the name has none; then call `disconnected`."""
        connection = self._nodes.get(node.id)
        if connection is None or (connection.host, connection.port) != (node.host, node.port):
            connection = _NodeConnection(
                node.host, node.port, self._reconnect_backoff.after(0), self._setup_timeout.after(0)
            )
            self._nodes[node.id] = connection
        else:
            del connection.addresses[:1]
        self._move(node.id, connection, ConnectionState.CONNECTING)
        connection.last_attempt_ms = now
        self._setup_deadlines[node.id] = now + connection.setup_timeout_ms
        if not connection.addresses:
            connection.addresses = self._addresses(connection)
        connection.last_address = connection.addresses[0]
        return connection.addresses[0]

    def checking_api_versions(self, node_id: int) -> None:
        node = self._known(node_id)
        self._move(node_id, node, ConnectionState.CHECKING_API_VERSIONS)
        self._reset_setup_timeout(node)

    def ready(self, node_id: int, now: float) -> None:
        node = self._known(node_id)
        self._move(node_id, node, ConnectionState.READY)
        node.authentication_error = None
        node.failed_attempts = 0
        node.reconnect_backoff_ms = self._reconnect_backoff.after(0)
        if node.throttled_until_ms > now:
            self._move(node_id, node, ConnectionState.THROTTLED)

    def throttle(self, node_id: int, until_ms: float) -> None:
        """The broker has asked for a pause. If it has asked for a longer one before, that one holds."""
        node = self._nodes.get(node_id)
        if node is None or until_ms <= node.throttled_until_ms:
            return
        node.throttled_until_ms = until_ms
        if node.state is ConnectionState.READY:
            self._move(node_id, node, ConnectionState.THROTTLED)

    def disconnected(self, node_id: int, now: float) -> None:
        self._lose(node_id, now, ConnectionState.DISCONNECTED)

    def authentication_failed(self, node_id: int, now: float, error: AuthenticationError) -> None:
        self._lose(node_id, now, ConnectionState.AUTHENTICATION_FAILED)
        self._known(node_id).authentication_error = error

    # --- parts of moves

    def _lose(self, node_id: int, now: float, state: ConnectionState) -> None:
        node = self._known(node_id)
        before = node.state
        self._move(node_id, node, state)
        node.last_attempt_ms = now
        node.reconnect_backoff_ms = self._reconnect_backoff.after(node.failed_attempts)
        node.failed_attempts += 1
        if before is ConnectionState.CONNECTING:
            node.failed_setups += 1
            node.setup_timeout_ms = self._setup_timeout.after(node.failed_setups)
        else:
            # The connection stood, and then the node may have got a new address: ask the resolver again.
            node.addresses = []
            self._reset_setup_timeout(node)

    def _addresses(self, node: _NodeConnection) -> list[SocketAddress]:
        addresses = list(self._resolve(node.host, node.port))
        # Not twice in a row the one that was just lost, if there is another: it may be a dead load balancer.
        if len(addresses) > 1 and addresses[0] == node.last_address:
            addresses.append(addresses.pop(0))
        return addresses

    def _reset_setup_timeout(self, node: _NodeConnection) -> None:
        node.failed_setups = 0
        node.setup_timeout_ms = self._setup_timeout.after(0)

    def _move(self, node_id: int, node: _NodeConnection, state: ConnectionState) -> None:
        if state not in MOVES[node.state]:
            raise IllegalStateError(f"the connection to node {node_id} cannot go from {node.state} to {state}")
        node.state = state
        self._setup_deadlines.pop(node_id, None)

    def _is_in(self, node_id: int, states: frozenset[ConnectionState]) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.state in states

    def _known(self, node_id: int) -> _NodeConnection:
        node = self._nodes.get(node_id)
        if node is None:
            raise IllegalStateError(f"there has never been a connection to node {node_id}")
        return node
