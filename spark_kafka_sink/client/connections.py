"""Connections: establishes connections to brokers, negotiates API versions, and records why connections ended.

NetworkClient uses this class for everything that concerns nodes, addresses and connections, and handles the requests
itself. The reason in a ConnectionLoss appears in the error of each request that was lost with the connection, and in
the errors of callers that time out while they wait for metadata.

Failures that need attention, such as an unreachable broker, are logged as warnings. Retries, which may follow every
second, do not log the same failure again. As in the Java client, the loss of a working connection is logged only at
INFO level, because brokers close idle connections and restart from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from random import Random

from spark_kafka_sink.client.client_request import ConnectionLoss
from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.config import REBOOTSTRAP, ClientConfig
from spark_kafka_sink.client.connection_states import ConnectionStates
from spark_kafka_sink.client.host_lookups import BackgroundLookup, HostLookups
from spark_kafka_sink.client.versions import (
    INITIAL_API_VERSIONS_VERSION,
    MIN_VERSION_WITH_ROUTING_CHECK,
    FinalizedFeatures,
    NodeApiVersions,
    build_api_versions_request,
    build_node_api_versions,
    choose_lower_api_versions_version,
    has_routing_check,
    select_newest_features,
)
from spark_kafka_sink.errors import AuthenticationError, DecodeError, NetworkError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import SocketAddress, System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

MAX_LOGGED_ADDRESSES = 1_000
"""The maximum number of addresses with a remembered failure. Once it is reached, all of them are forgotten."""

MIN_CREDENTIAL_REJECTIONS = 3
"""Number of brokers that must reject the credentials before the client stops waiting for others to accept them.

Rejections have no effect while any connection is alive.
"""

_log = logging.getLogger(__name__)


class Connections:
    """The connections to the nodes of a cluster.

    Only the sender thread may use this class. The exception is `features`, which is replaced atomically, so that any
    thread may read it.
    """

    def __init__(self, selector: Selector, config: ClientConfig, *, system: System, rng: Random) -> None:
        self._lookups = HostLookups(system, selector.wakeup)
        self.states = ConnectionStates(
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            setup_timeout_ms=config.socket_connection_setup_timeout_ms,
            setup_timeout_max_ms=config.socket_connection_setup_timeout_max_ms,
            resolve=self._lookups.resolve,
            rng=rng,
        )
        self.api_versions: dict[int, NodeApiVersions] = {}  # by node id, while the connection is ready
        self.features = FinalizedFeatures()
        self.last_losses: dict[int, ConnectionLoss] = {}
        """Why each node's last connection was lost, by node id. An entry is removed once a new connection is ready."""
        self._selector = selector
        self._config = config
        self._pending_api_versions: dict[int, int] = {}  # node id -> version of ApiVersions to send
        self._first_api_versions_version = INITIAL_API_VERSIONS_VERSION  # sent first on each new connection
        self._checks_routing = config.metadata_cluster_check_enable and config.metadata_recovery_strategy == REBOOTSTRAP
        self._nodes_without_routing_check: set[int] = set()
        """Connected nodes that have rejected the ApiVersions version with the routing check."""
        self._nodes: dict[int, Node] = {}  # by node id, as of each node's last connection attempt
        self._addresses: dict[int, str] = {}  # node id -> address of the last connection attempt
        self._logged_loss_reasons: dict[str, str] = {}  # address -> last reason, until a connection is ready

    # --- connecting

    def connect(self, node: Node, now_ms: float) -> ConnectionLoss | None:
        """Start connecting. Return a ConnectionLoss if the attempt fails immediately."""
        self._nodes[node.id] = node
        self._addresses[node.id] = node.address
        return self._open_connection(node.id, lambda: self.states.start_connecting(node, now_ms))

    def connect_resolved(self) -> dict[int, ConnectionLoss]:
        """Connect to the nodes whose name lookup has finished. Return the immediate failures by node id."""
        losses: dict[int, ConnectionLoss] = {}
        for (host, port), lookup in self._lookups.take_finished().items():
            for node_id in self.states.find_nodes_awaiting_lookup(host, port):
                loss = self._open_connection(node_id, partial(self._accept_addresses, node_id, lookup))
                if loss is not None:
                    losses[node_id] = loss
        return losses

    def _accept_addresses(self, node_id: int, lookup: BackgroundLookup[list[SocketAddress]]) -> SocketAddress:
        """Record the addresses that the lookup found, and return the one to connect to."""
        return self.states.set_addresses(node_id, lookup.result())

    def _open_connection(self, node_id: int, find_address: Callable[[], SocketAddress | None]) -> ConnectionLoss | None:
        """Start connecting to the address from `find_address`, unless it returns None.

        `find_address`: returns None while the host name is being looked up; raises NetworkError if the lookup fails.

        Return a ConnectionLoss if the attempt fails immediately, else None.
        """
        try:
            address = find_address()
            if address is None:
                return None
            self._addresses[node_id] = str(address)
            _log.debug("Connecting to %s at %s", self.describe(node_id), address)
            self._selector.connect(
                str(node_id),
                address,
                send_buffer_bytes=self._config.send_buffer_bytes,
                receive_buffer_bytes=self._config.receive_buffer_bytes,
            )
        except NetworkError as error:
            return ConnectionLoss(error.text, error.address)
        return None

    def accept_connected(self) -> None:
        """Record the connections that the last poll established. TLS and SASL may still be in progress."""
        for channel_id in self._selector.connected:
            self._pending_api_versions[int(channel_id)] = self._first_api_versions_version

    def take_nodes_ready_for_api_versions(self) -> dict[int, int]:
        """Remove and return the nodes to which ApiVersions can be sent now, each with the version to use."""
        if not self._pending_api_versions:
            return {}
        versions_by_node = {
            node_id: version
            for node_id, version in self._pending_api_versions.items()
            if self._selector.is_channel_ready(str(node_id))
        }
        for node_id in versions_by_node:
            del self._pending_api_versions[node_id]
            # Change the state only now, because the connection setup timeout applies until the channel is ready.
            self.states.mark_checking_api_versions(node_id)
        return versions_by_node

    def build_api_versions_request(self, node_id: int, cluster_id: str | None) -> ApiVersionsRequest:
        """Build the request. Name the cluster and node if both are known and a rejection can lead to a rebootstrap."""
        if self._checks_routing and cluster_id is not None and node_id >= 0:
            return build_api_versions_request(cluster_id, node_id)
        return build_api_versions_request()

    def handle_api_versions(
        self, node_id: int, request: ApiVersionsRequest, response: ApiVersionsResponse, version: int, now_ms: float
    ) -> ConnectionLoss | None:
        """Handle a response to ApiVersions. Return a ConnectionLoss if the connection must be closed, else None.

        If the result is None, the connection is ready, or ApiVersions will be repeated in another version.

        `version`: the version of the request.
        """
        if response.error_code == error_codes.NONE:
            if has_routing_check(response):
                # From now on, new connections start with this version, which saves the second request.
                self._first_api_versions_version = MIN_VERSION_WITH_ROUTING_CHECK
                if self._needs_routing_check(node_id, request, version):
                    self._pending_api_versions[node_id] = MIN_VERSION_WITH_ROUTING_CHECK
                    return None
            self._accept_api_versions(node_id, response, now_ms)
            return None
        if response.error_code == error_codes.UNSUPPORTED_VERSION and version > 0:
            # The broker is older than this client, or it announces a version that it does not support.
            if version >= MIN_VERSION_WITH_ROUTING_CHECK:
                self._nodes_without_routing_check.add(node_id)
            self._pending_api_versions[node_id] = choose_lower_api_versions_version(response, version)
            return None
        # A broker responds with this code if the request names a different cluster or node (KIP-1242).
        if response.error_code == error_codes.REBOOTSTRAP_REQUIRED and request.cluster_id is not None:
            return ConnectionLoss(
                f"the connection is for {self.describe(node_id)} of cluster {request.cluster_id}, but a broker with "
                "another id or of another cluster accepted it. Check advertised.listeners, and DNS names and proxies "
                "in front of the brokers",
                has_responded=True,
            )
        error = lookup_error_code(response.error_code)
        detail = f"{self.describe(node_id)} rejected ApiVersions: {error.name}. {error.advice}"
        return ConnectionLoss(detail, has_responded=True)

    def _accept_api_versions(self, node_id: int, response: ApiVersionsResponse, now_ms: float) -> None:
        """Record the node's API versions and features, and that its connection is ready."""
        self.api_versions[node_id] = build_node_api_versions(self.describe(node_id), response)
        self.features = select_newest_features(self.api_versions.values(), self.features)
        self.states.mark_ready(node_id, now_ms)
        self.last_losses.pop(node_id, None)
        if self._logged_loss_reasons.pop(self.address(node_id), None) is not None:
            _log.info("Connected: %s", self.address(node_id))

    def _needs_routing_check(self, node_id: int, request: ApiVersionsRequest, version: int) -> bool:
        """Return whether to repeat ApiVersions in the version with the routing check.

        The request is repeated if its version was too old to name the intended cluster and node. If the broker has
        announced the newer version but then rejected it, the check is skipped, as the broker would reject it again.
        """
        is_unchecked = version < MIN_VERSION_WITH_ROUTING_CHECK and request.cluster_id is not None
        return is_unchecked and node_id not in self._nodes_without_routing_check

    # --- queries

    def is_ready(self, node_id: int, now_ms: float) -> bool:
        """Return whether the channel is authenticated, ApiVersions was accepted, and the node is not throttled."""
        return self.states.is_ready(node_id, now_ms) and self._selector.is_channel_ready(str(node_id))

    def is_alive(self, node_id: int) -> bool:
        """Return whether the node is connected or being connected."""
        return self.states.is_preparing_connection(node_id) or self.states.is_connected(node_id)

    def describe(self, node_id: int) -> str:
        return str(self._nodes.get(node_id, f"node {node_id}"))

    def address(self, node_id: int) -> str:
        """Return the address of the node's last connection attempt, with the IP address once the name is resolved."""
        return self._addresses.get(node_id, self.describe(node_id))

    # --- disconnecting

    def build_loss(self, node_id: int, final_state: ChannelState) -> ConnectionLoss:
        """Describe the loss of a connection whose channel was closed in this state."""
        error = final_state.error  # None if the connection was closed without an error
        address = self.address(node_id) if error is None else error.address
        detail, remedy = ("disconnected", "") if error is None else (str(error.args[0]), error.remedy)
        if isinstance(error, AuthenticationError) and final_state.has_failed_authentication:
            return ConnectionLoss(detail, address, authentication_error=error, remedy=remedy)
        if final_state.kind is ChannelStateKind.EXPIRED:  # the client has closed the idle connection
            return ConnectionLoss(detail, address, is_expected=True)
        if isinstance(error, DecodeError):
            pass  # the error itself says what the peer sent instead of a response
        elif final_state.kind is ChannelStateKind.AUTHENTICATE:
            # The listener uses TLS if it has completed the handshake, and SASL if it has responded to a SASL request.
            if final_state.has_received:
                detail += " (during SASL authentication)"
            else:
                detail += " (during the TLS or SASL handshake: check security.protocol)"
        elif node_id not in self.api_versions and final_state.kind is ChannelStateKind.READY:
            # A TLS listener, for example, closes the connection when it receives an unencrypted request.
            if final_state.has_received:
                detail += " (before the response to ApiVersions)"
            else:
                detail += " (before any response: the listener may expect SASL or TLS, check security.protocol)"
        return ConnectionLoss(
            detail,
            address,
            was_working=node_id in self.api_versions,
            has_responded=final_state.has_received and not isinstance(error, DecodeError),
            remedy=remedy,
        )

    def build_request_timeout_loss(self, node_id: int, detail: str) -> ConnectionLoss:
        """Describe the loss of a connection that the client closes because a request has timed out."""
        return ConnectionLoss(detail, timed_out=True, has_responded=node_id in self.api_versions)

    def build_setup_timeout_loss(self, node_id: int) -> ConnectionLoss:
        """Describe the loss of a connection attempt that has timed out."""
        missing_step = "no address for the name" if self.states.is_awaiting_lookup(node_id) else "no connection"
        detail = (
            f"{missing_step} within {self.states.setup_timeout_ms(node_id):.0f} ms (socket.connection.setup.timeout.ms)"
        )
        return ConnectionLoss(detail, self.address(node_id), timed_out=True)

    def record_loss(self, node_id: int, loss: ConnectionLoss, now_ms: float) -> None:
        """Record and log the loss of a connection or the failure of a connection attempt."""
        was_ready = self.api_versions.pop(node_id, None) is not None
        self._pending_api_versions.pop(node_id, None)
        self._nodes_without_routing_check.discard(node_id)
        self.last_losses[node_id] = loss
        if loss.authentication_error is not None:
            level = logging.ERROR if self._record_reason(node_id, loss) else logging.DEBUG
            _log.log(level, "%s: authentication failed: %s", self.describe(node_id), loss.reason)
            self.states.mark_authentication_failed(node_id, now_ms, loss.authentication_error)
        else:
            # A request that times out ends a connection that was ready; other timeouts end connection attempts.
            was_connected = loss.is_expected or loss.was_working or (loss.timed_out and was_ready)
            event = "Disconnected" if was_connected else "Connection failed"
            _log.log(self._choose_log_level(node_id, loss), "%s: %s", event, loss.reason)
            self.states.mark_disconnected(node_id, now_ms)

    def _choose_log_level(self, node_id: int, loss: ConnectionLoss) -> int:
        """Choose the log level of a lost connection. The same failure is logged as a warning only once in a row."""
        if loss.is_expected:
            return logging.DEBUG
        if loss.was_working:
            return logging.INFO
        return logging.WARNING if self._record_reason(node_id, loss) else logging.DEBUG

    def _record_reason(self, node_id: int, loss: ConnectionLoss) -> bool:
        """Remember the reason as logged. Return whether it differs from the one logged last for this address."""
        address = self.address(node_id)
        is_new = self._logged_loss_reasons.get(address) != loss.reason
        if len(self._logged_loss_reasons) >= MAX_LOGGED_ADDRESSES:
            self._logged_loss_reasons.clear()
        self._logged_loss_reasons[address] = loss.reason
        return is_new

    def find_authentication_failure(self, snapshot: ClusterSnapshot) -> AuthenticationError | None:
        """Return the error of the latest rejection if the credentials must be considered invalid, else None.

        A restarted broker may reject valid credentials until it has loaded its users. So a rejection is not final while
        another broker may still accept the credentials. While only the bootstrap servers are known, the client does not
        wait for those that are unreachable.
        """
        if any(self.is_alive(node_id) for node_id in snapshot.nodes):
            return None
        rejecting_node_ids = [node_id for node_id in snapshot.nodes if self.states.has_rejected_credentials(node_id)]
        other_node_ids = [node_id for node_id in snapshot.nodes if node_id not in rejecting_node_ids]
        if not rejecting_node_ids:
            return None
        are_other_nodes_unreachable = all(self.states.is_unreachable(node_id) for node_id in other_node_ids)
        may_other_node_accept = bool(other_node_ids) and not (snapshot.is_bootstrap and are_other_nodes_unreachable)
        if may_other_node_accept and len(rejecting_node_ids) < MIN_CREDENTIAL_REJECTIONS:
            return None
        latest_rejecting_id = max(rejecting_node_ids, key=self.states.last_attempt_ms)
        return self.states.authentication_exception(latest_rejecting_id)

    def close(self, node_id: int) -> None:
        """Close the node's channel if there is one. The caller must call `record_loss` afterwards."""
        self._selector.close_channel(str(node_id))
