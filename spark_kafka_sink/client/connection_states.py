"""ConnectionStates: the state of each node's connection, and the backoff before the next connection attempt.

    state                   meaning                                   next states
    DISCONNECTED            no connection                             CONNECTING
    CONNECTING              the channel is not ready yet              CHECKING_API_VERSIONS or unconnected
    CHECKING_API_VERSIONS   ApiVersions was sent                      READY, CHECKING_API_VERSIONS or unconnected
    READY                   requests may be sent                      THROTTLED or unconnected
    THROTTLED               no requests until the throttle time ends  READY or unconnected
    AUTHENTICATION_FAILED   no connection; calls that wait for        CONNECTING
                            metadata raise the error

`TRANSITIONS` encodes this table. "Unconnected" means DISCONNECTED or AUTHENTICATION_FAILED.

CONNECTING includes the host name lookup, the TLS handshake and SASL authentication. It has its own timeout. The
setup timeout and the reconnect backoff grow exponentially with consecutive failures.

Each attempt uses the host name's next address. The name is resolved again after all addresses have been tried, or after
an established connection has been lost. Both IPv4 and IPv6 addresses are tried, because `localhost` may resolve to ::1
first even though the broker listens on 127.0.0.1 only.
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

Resolve = Callable[[str, int], Sequence[SocketAddress] | None]
"""A function that returns the addresses of a host and port, or None while the name is still being looked up.

If it returns None, the addresses must be passed to `ConnectionStates.set_addresses` once the lookup has finished.
"""


class ConnectionState(Enum):
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CHECKING_API_VERSIONS = "checking API versions"
    READY = "ready"
    THROTTLED = "throttled"
    AUTHENTICATION_FAILED = "authentication failed"


TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
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
            ConnectionState.CHECKING_API_VERSIONS,  # again, with another version of ApiVersions
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

_READY = ConnectionState.READY  # looked up once, because `is_ready` is called several times per request
_UNCONNECTED = frozenset({ConnectionState.DISCONNECTED, ConnectionState.AUTHENTICATION_FAILED})
_CONNECTED = frozenset({ConnectionState.CHECKING_API_VERSIONS, ConnectionState.READY, ConnectionState.THROTTLED})
_PREPARING = frozenset({ConnectionState.CONNECTING, ConnectionState.CHECKING_API_VERSIONS})


@dataclass
class _NodeConnection:
    """A node's address, connection state and backoff.

    The object is kept when the connection ends, because the next attempt depends on the failures and addresses in it.
    """

    host: str
    port: int
    reconnect_backoff_ms: float
    setup_timeout_ms: float
    state: ConnectionState = ConnectionState.DISCONNECTED
    last_attempt_ms: float = -math.inf
    """When the last attempt started, or when it or its connection ended; -inf if there was no attempt yet."""
    failed_attempt_count: int = 0
    """Number of lost connections and failed attempts since the node was last ready; sets the reconnect backoff."""
    failed_setup_count: int = 0
    """Number of consecutive attempts that ended in state CONNECTING; sets the setup timeout."""
    throttled_until_ms: float = -math.inf
    """When requests may be sent again; -inf if no response has requested a pause."""
    authentication_error: AuthenticationError | None = None
    addresses: list[SocketAddress] = field(default_factory=list)
    """The current address, followed by those not tried yet. Empty if the host name must be resolved."""
    last_address: SocketAddress | None = None


class ConnectionStates:
    """The connection states of all nodes. Only the sender thread may use this class.

    The reconnect backoff and the setup timeout grow with consecutive failures, up to their maximum.
    """

    def __init__(
        self,
        *,
        reconnect_backoff_ms: float,
        reconnect_backoff_max_ms: float,
        setup_timeout_ms: float,
        setup_timeout_max_ms: float,
        resolve: Resolve,
        rng: Random,
    ) -> None:
        self._reconnect_backoff = ExponentialBackoff(reconnect_backoff_ms, reconnect_backoff_max_ms, rng)
        self._setup_timeout = ExponentialBackoff(setup_timeout_ms, setup_timeout_max_ms, rng)
        self._resolve = resolve
        self._connections: dict[int, _NodeConnection] = {}
        self._setup_deadlines_ms: dict[int, float] = {}  # by node id, for nodes in state CONNECTING

    # --- queries

    def state(self, node_id: int, now_ms: float) -> ConnectionState:
        """Return the state of the connection. THROTTLED becomes READY once the throttle time has ended."""
        connection = self._connections.get(node_id)
        if connection is None:
            return ConnectionState.DISCONNECTED
        if connection.state is ConnectionState.THROTTLED and connection.throttled_until_ms <= now_ms:
            self._transition(node_id, connection, ConnectionState.READY)
        return connection.state

    def can_connect(self, node_id: int, now_ms: float) -> bool:
        """Return whether the node has no connection and its reconnect backoff has ended."""
        connection = self._connections.get(node_id)
        if connection is None:
            return True
        return (
            connection.state in _UNCONNECTED and now_ms >= connection.last_attempt_ms + connection.reconnect_backoff_ms
        )

    def is_ready(self, node_id: int, now_ms: float) -> bool:
        connection = self._connections.get(node_id)
        if connection is None:
            return False
        return connection.state is _READY or self.state(node_id, now_ms) is _READY

    def is_preparing_connection(self, node_id: int) -> bool:
        """Return whether a connection is being set up but is not ready yet."""
        return self._is_in_any_state(node_id, _PREPARING)

    def is_connected(self, node_id: int) -> bool:
        return self._is_in_any_state(node_id, _CONNECTED)

    def has_failed(self, node_id: int) -> bool:
        """Return whether the node's last connection has ended or its last connection attempt has failed."""
        return self._is_in_any_state(node_id, _UNCONNECTED)

    def is_unreachable(self, node_id: int) -> bool:
        """Return whether the last connection attempt failed. The end of an established connection does not count."""
        return self.has_failed(node_id) and self._connections[node_id].failed_setup_count > 0

    def authentication_exception(self, node_id: int) -> AuthenticationError | None:
        connection = self._connections.get(node_id)
        return None if connection is None else connection.authentication_error

    def has_rejected_credentials(self, node_id: int) -> bool:
        """Return whether the node has rejected the credentials and has no address left to try."""
        connection = self._connections.get(node_id)
        return (
            connection is not None
            and connection.authentication_error is not None
            and connection.state in _UNCONNECTED
            and len(connection.addresses) <= 1
        )

    def last_attempt_ms(self, node_id: int) -> float:
        connection = self._connections.get(node_id)
        return -math.inf if connection is None else connection.last_attempt_ms

    # --- delays in milliseconds

    def connection_delay_ms(self, node_id: int, now_ms: float) -> float:
        """Return the delay until the next attempt is allowed or the current one times out; inf if connected."""
        connection = self._connections.get(node_id)
        if connection is None:
            return 0.0
        if connection.state is ConnectionState.CONNECTING:
            return max(self._setup_deadlines_ms[node_id] - now_ms, 0.0)
        if connection.state in _UNCONNECTED:
            return max(connection.last_attempt_ms + connection.reconnect_backoff_ms - now_ms, 0.0)
        return math.inf

    def throttle_delay_ms(self, node_id: int, now_ms: float) -> float:
        connection = self._connections.get(node_id)
        return 0.0 if connection is None else max(connection.throttled_until_ms - now_ms, 0.0)

    def poll_delay_ms(self, node_id: int, now_ms: float) -> float:
        """Return the delay after which the node's state may change without any network event."""
        throttle_delay_ms = self.throttle_delay_ms(node_id, now_ms)
        if throttle_delay_ms > 0 and self.is_connected(node_id):
            return throttle_delay_ms
        return self.connection_delay_ms(node_id, now_ms)

    def next_setup_deadline_ms(self) -> float:
        """Return the earliest setup deadline of all current connection attempts; inf if there are none."""
        return min(self._setup_deadlines_ms.values(), default=math.inf)

    def find_nodes_with_setup_timeout(self, now_ms: float) -> list[int]:
        return [node_id for node_id, deadline_ms in self._setup_deadlines_ms.items() if deadline_ms <= now_ms]

    def find_nodes_awaiting_lookup(self, host: str, port: int) -> list[int]:
        """Return the nodes whose current connection attempt is waiting for the addresses of this host."""
        return [
            node_id
            for node_id, connection in self._connections.items()
            if self.is_awaiting_lookup(node_id) and (connection.host, connection.port) == (host, port)
        ]

    def is_awaiting_lookup(self, node_id: int) -> bool:
        connection = self._connections.get(node_id)
        return connection is not None and connection.state is ConnectionState.CONNECTING and not connection.addresses

    def setup_timeout_ms(self, node_id: int) -> float:
        return self._get_connection(node_id).setup_timeout_ms

    # --- transitions

    def start_connecting(self, node: Node, now_ms: float) -> SocketAddress | None:
        """Start a connection attempt and return its address, or None if the host name is still being looked up.

        Raise DisconnectedError if the name cannot be resolved. The caller must then call `mark_disconnected`.
        """
        connection = self._connections.get(node.id)
        has_moved = connection is not None and (connection.host, connection.port) != (node.host, node.port)
        if connection is None or has_moved:
            # The node is new or has another address now. Failures at the earlier address do not count.
            connection = _NodeConnection(
                node.host,
                node.port,
                reconnect_backoff_ms=self._reconnect_backoff.compute_delay_ms(failure_count=0),
                setup_timeout_ms=self._setup_timeout.compute_delay_ms(failure_count=0),
            )
            self._connections[node.id] = connection
        else:
            del connection.addresses[:1]  # the address of the last attempt
        self._transition(node.id, connection, ConnectionState.CONNECTING)
        connection.last_attempt_ms = now_ms
        self._setup_deadlines_ms[node.id] = now_ms + connection.setup_timeout_ms
        if connection.addresses:
            return _use_first_address(connection)
        addresses = self._resolve(connection.host, connection.port)
        return None if addresses is None else self.set_addresses(node.id, addresses)

    def set_addresses(self, node_id: int, addresses: Sequence[SocketAddress]) -> SocketAddress:
        """Set the addresses that a lookup found for a node's host name, and return the one to connect to."""
        connection = self._get_connection(node_id)
        connection.addresses = list(addresses)
        # Move the address that was used last to the end, because it may belong to a dead load balancer.
        if len(addresses) > 1 and addresses[0] == connection.last_address:
            connection.addresses.append(connection.addresses.pop(0))
        return _use_first_address(connection)

    def mark_checking_api_versions(self, node_id: int) -> None:
        """Record that the channel is ready and ApiVersions is being sent. The connection setup timeout ends."""
        connection = self._get_connection(node_id)
        self._transition(node_id, connection, ConnectionState.CHECKING_API_VERSIONS)
        self._reset_setup_timeout(connection)

    def mark_ready(self, node_id: int, now_ms: float) -> None:
        """Record that requests may be sent to the node, and end the backoff that its failures have caused."""
        connection = self._get_connection(node_id)
        self._transition(node_id, connection, ConnectionState.READY)
        connection.authentication_error = None
        connection.failed_attempt_count = 0
        connection.reconnect_backoff_ms = self._reconnect_backoff.compute_delay_ms(failure_count=0)
        if connection.throttled_until_ms > now_ms:
            self._transition(node_id, connection, ConnectionState.THROTTLED)

    def throttle(self, node_id: int, until_ms: float) -> None:
        """Send nothing to the node until `until_ms`, or until the later time that a previous call has set."""
        connection = self._connections.get(node_id)
        if connection is None or until_ms <= connection.throttled_until_ms:
            return
        connection.throttled_until_ms = until_ms
        if connection.state is ConnectionState.READY:
            self._transition(node_id, connection, ConnectionState.THROTTLED)

    def mark_disconnected(self, node_id: int, now_ms: float) -> None:
        """Record the end of a connection, or the failure of a connection attempt."""
        self._end_connection(node_id, now_ms, ConnectionState.DISCONNECTED)

    def mark_authentication_failed(self, node_id: int, now_ms: float, error: AuthenticationError) -> None:
        """Record that a connection has ended because the node rejected the credentials."""
        self._end_connection(node_id, now_ms, ConnectionState.AUTHENTICATION_FAILED)
        self._get_connection(node_id).authentication_error = error

    # --- helpers

    def _end_connection(self, node_id: int, now_ms: float, final_state: ConnectionState) -> None:
        """Record the end of a connection or attempt, and set the backoff and the timeout of the next attempt."""
        connection = self._get_connection(node_id)
        previous_state = connection.state
        self._transition(node_id, connection, final_state)
        connection.last_attempt_ms = now_ms
        connection.reconnect_backoff_ms = self._reconnect_backoff.compute_delay_ms(connection.failed_attempt_count)
        connection.failed_attempt_count += 1
        if previous_state is ConnectionState.CONNECTING:
            # Keep the addresses, so that the next attempt uses the next one.
            connection.failed_setup_count += 1
            connection.setup_timeout_ms = self._setup_timeout.compute_delay_ms(connection.failed_setup_count)
        else:
            # The connection had been established. The node may have a new address by now, so resolve its name again.
            connection.addresses = []
            self._reset_setup_timeout(connection)

    def _reset_setup_timeout(self, connection: _NodeConnection) -> None:
        connection.failed_setup_count = 0
        connection.setup_timeout_ms = self._setup_timeout.compute_delay_ms(failure_count=0)

    def _transition(self, node_id: int, connection: _NodeConnection, new_state: ConnectionState) -> None:
        """Change the state. Raise IllegalStateError if `TRANSITIONS` forbids the change.

        This also ends the setup timeout, which only applies in state CONNECTING.
        """
        if new_state not in TRANSITIONS[connection.state]:
            raise IllegalStateError(
                f"the connection to node {node_id} cannot go from {connection.state} to {new_state}"
            )
        connection.state = new_state
        self._setup_deadlines_ms.pop(node_id, None)

    def _is_in_any_state(self, node_id: int, states: frozenset[ConnectionState]) -> bool:
        connection = self._connections.get(node_id)
        return connection is not None and connection.state in states

    def _get_connection(self, node_id: int) -> _NodeConnection:
        connection = self._connections.get(node_id)
        if connection is None:
            raise IllegalStateError(f"there has never been a connection to node {node_id}")
        return connection


def _use_first_address(connection: _NodeConnection) -> SocketAddress:
    """Return the first address and remember it as the last one used."""
    connection.last_address = connection.addresses[0]
    return connection.addresses[0]
