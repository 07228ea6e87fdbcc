"""NetworkClient: sends requests to nodes and returns their responses, over connections that it manages itself.

`poll` does most of the work: it sends the due requests, polls the Selector and returns the responses. Between polls,
`ready` starts a connection, and `send` queues a request for a node that is ready. The client's own requests go first:
each new connection starts with ApiVersions, and `is_ready` returns False for all nodes while a metadata update is due.

If a response times out, cannot be decoded or belongs to a different request, later responses cannot be matched to
requests. The client then closes the connection, and all of its requests fail in order as `disconnected`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from random import Random

from spark_kafka_sink.client.client_request import ClientRequest, ClientResponse, ConnectionLoss
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.connections import Connections
from spark_kafka_sink.client.in_flight import InFlightRequest, InFlightRequests
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.metadata_fetch import MetadataFetch, get_metadata_query
from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS, NodeChoice, choose_node
from spark_kafka_sink.client.versions import FinalizedFeatures, NodeApiVersions, compute_throttle_ms
from spark_kafka_sink.errors import (
    AuthenticationError,
    DecodeError,
    DisconnectedError,
    IllegalStateError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.channel_builders import create_client_channel_builder
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.connection_errors import FATAL_ERRORS, log_unexpected_error
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import encode_request
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.protocol.schema import VersionRange

MAX_CORRELATION_ID = 2**31 - 1024
"""Upper limit of correlation ids, exclusive. The ids from 2^31 - 8 on are reserved for SASL exchanges."""


class _State(Enum):
    ACTIVE = "active"
    CLOSING = "closing"
    CLOSED = "closed"


class NetworkClient:
    """Sends requests to a cluster's nodes and receives their responses.

    Only the sender thread may use this class. Any thread may use `wakeup`, `initiate_close`, `finalized_features`,
    `io_counts` and, without a node, `in_flight_request_count`.
    """

    def __init__(
        self,
        selector: Selector,
        metadata: Metadata,
        config: ClientConfig,
        *,
        system: System,
        rng: Random | None = None,
    ) -> None:
        self._selector = selector
        self._metadata = metadata
        self._config = config
        self._system = system
        self._rng = rng if rng is not None else Random()
        self._metadata_fetch = MetadataFetch(metadata, config, system, selector.wakeup)
        self._connections = Connections(selector, config, system=system, rng=self._rng)
        self._states = self._connections.states
        self.connection_losses = self._connections.last_losses
        """Why each node's last connection was lost, by node id. Nodes whose connection is ready are not included."""
        self._in_flight = InFlightRequests(config.max_in_flight_requests_per_connection)
        self._unreported_responses: list[ClientResponse] = []  # results of requests that ended between polls
        self._last_response_ms_by_node: dict[int, float] = {}  # by node id; in the future while the node throttles us
        self._correlation_id = 0
        self._state = _State.ACTIVE  # guarded by _state_lock
        self._state_lock = threading.Lock()

    # --- connections

    def ready(self, node: Node, now_ms: float) -> bool:
        """Return whether requests can be sent to the node now. If not, start connecting if the backoff allows it."""
        if self.is_ready(node.id, now_ms):
            return True
        if self._states.can_connect(node.id, now_ms):
            self._connect(node, now_ms)
        return False

    def is_ready(self, node_id: int, now_ms: float) -> bool:
        return not self._metadata_fetch.is_due(now_ms) and self._can_send(node_id, now_ms)

    def poll_delay_ms(self, node_id: int, now_ms: float) -> float:
        """Return the milliseconds after which the node's state may change without any network event."""
        return self._states.poll_delay_ms(node_id, now_ms)

    def has_connection_failed(self, node_id: int) -> bool:
        return self._states.has_failed(node_id)

    def unresponsive_ms(self, node_id: int, now_ms: float) -> float:
        """Return how long the node has not responded to a request or connection attempt; 0 if none is pending."""
        if self._states.is_preparing_connection(node_id):
            since_ms = self._states.last_attempt_ms(node_id)
        else:
            since_ms = self._in_flight.waiting_since_ms(node_id)
        return max(0.0, now_ms - max(since_ms, self._last_response_ms_by_node.get(node_id, since_ms)))

    def disconnect_unresponsive(self, node_id: int, reason: str, now_ms: float) -> None:
        """Close the connection to a node that did not respond in time, if there is one.

        The next poll returns the node's requests as disconnected.

        `reason`: a sentence about the node, for the errors of these requests.
        """
        if self._connections.is_alive(node_id):
            loss = self._connections.build_request_timeout_loss(node_id, reason)
            self._close_connection(self._unreported_responses, node_id, loss, now_ms)

    def authentication_exception(self, node_id: int) -> AuthenticationError | None:
        return self._states.authentication_exception(node_id)

    def least_loaded_node(self, now_ms: float) -> Node | None:
        """Choose a node for a request that any broker can answer. Return None if no node is usable or connectable."""
        return self._choose_node(now_ms).node

    # --- requests

    def new_client_request(  # noqa: PLR0913 - one parameter per field of the request; the optional ones by keyword
        self,
        node_id: int,
        message: Message,
        now_ms: float,
        *,
        expect_response: bool = True,
        timeout_ms: float | None = None,
        tag: object = None,
        versions: VersionRange | None = None,
    ) -> ClientRequest:
        """Create a request with the next correlation id. `timeout_ms` defaults to request.timeout.ms."""
        self._correlation_id = (self._correlation_id + 1) % MAX_CORRELATION_ID
        return ClientRequest(
            node_id,
            message,
            self._correlation_id,
            created_ms=now_ms,
            timeout_ms=self._config.request_timeout_ms if timeout_ms is None else timeout_ms,
            expect_response=expect_response,
            tag=tag,
            versions=versions,
        )

    def send(self, request: ClientRequest, now_ms: float) -> None:
        """Queue a request for a node that is ready.

        If the node supports no version in which the request can be sent, the next poll returns a response with
        `version_error`.
        """
        self._ensure_active()
        if not self._can_send(request.node_id, now_ms):
            raise IllegalStateError(f"{request} was sent, but the node is not ready")
        try:
            self._send(request, self.latest_usable_version(request.node_id, request.api_key, request.versions), now_ms)
        except UnsupportedVersionError as error:
            latency_ms = now_ms - request.created_ms
            self._unreported_responses.append(
                ClientResponse(request, now_ms, latency_ms, version_error=error, reason=str(error))
            )

    def latest_usable_version(self, node_id: int, api_key: ApiKey, versions: VersionRange | None = None) -> int:
        """Return the API version to use for a request to the node. Raise UnsupportedVersionError if there is none."""
        node_versions = self._connections.api_versions.get(node_id)
        if node_versions is None:
            raise IllegalStateError(f"the API versions of node {node_id} are unknown: it is not connected")
        return node_versions.latest_usable_version(api_key, versions)

    def find_api_versions(self, node_id: int) -> NodeApiVersions | None:
        return self._connections.api_versions.get(node_id)

    @property
    def finalized_features(self) -> FinalizedFeatures:
        """The newest finalized features that the client has received from any broker. Thread-safe."""
        return self._connections.features

    @property
    def io_counts(self) -> IoCounts:
        """I/O counters of all connections. Thread-safe."""
        return self._selector.counts

    def in_flight_request_count(self, node_id: int | None = None) -> int:
        return self._in_flight.count(node_id)

    # --- the loop

    def poll(self, timeout_ms: float, now_ms: float) -> list[ClientResponse]:
        """Send what is due, wait up to `timeout_ms` for an event, and return the results of finished requests."""
        self._ensure_active()
        if self._unreported_responses:  # return them without waiting for more
            responses, self._unreported_responses = self._unreported_responses, []
            return responses
        metadata_wait_ms = self._maybe_update_metadata(now_ms)
        deadline_ms = min(self._in_flight.next_deadline_check_ms(), self._states.next_setup_deadline_ms())
        wait_ms = min(timeout_ms, metadata_wait_ms, self._config.request_timeout_ms, deadline_ms - now_ms)
        self._selector.poll(max(0.0, wait_ms))

        now_ms = self._system.now()
        responses = []
        # Handle sends before receives, because only a written request can have a response. Handle receives before
        # disconnections, because a broker may respond and then close the connection.
        self._handle_completed_sends(responses, now_ms)
        self._handle_completed_receives(responses, now_ms)
        self._handle_disconnections(responses, now_ms)
        for node_id, loss in self._connections.connect_resolved().items():
            self._handle_loss(responses, node_id, loss, now_ms)
        self._connections.accept_connected()
        self._send_api_versions_requests(now_ms)
        if now_ms >= deadline_ms:
            self._handle_timed_out_connections(responses, now_ms)
            self._handle_timed_out_requests(responses, now_ms)
        self._handle_rebootstrap(responses, now_ms)
        return responses

    def wakeup(self) -> None:
        """Interrupt the wait of the current or the next poll. Thread-safe."""
        self._selector.wakeup()

    def initiate_close(self) -> None:
        """End a waiting poll, and make every later send or poll raise DisconnectedError. Thread-safe."""
        with self._state_lock:
            if self._state is _State.ACTIVE:
                self._state = _State.CLOSING
        self.wakeup()

    def close(self) -> None:
        """Close all connections and the metadata. Callers that wait for metadata get an error."""
        with self._state_lock:
            was_closed = self._state is _State.CLOSED
            self._state = _State.CLOSED
        if not was_closed:
            self._selector.close()
            self._metadata.close()

    # --- the steps of poll, in order; each appends to `responses` the results that `poll` will return

    def _maybe_update_metadata(self, now_ms: float) -> float:
        """Send a metadata request if one is due and a node can be used. Return the delay until the next call."""
        until_next_lookup_ms = self._metadata_fetch.resolve_bootstrap_servers(now_ms)
        if until_next_lookup_ms > 0:  # there is no node yet
            return until_next_lookup_ms
        wait_ms = self._metadata_fetch.wait_ms(now_ms, self._last_response_ms_by_node)
        if wait_ms > 0:
            return wait_ms
        self._metadata_fetch.record_due_update(now_ms)
        node = self._choose_metadata_node(now_ms)
        if node is None:
            return min(self._states.poll_delay_ms(node_id, now_ms) for node_id in self._metadata.snapshot.nodes)
        if self._metadata_fetch.is_awaiting_response(node.id):
            return UNRESPONSIVE_AFTER_MS  # the query was already sent to the best choice
        return self._request_metadata_or_connect(node, now_ms)

    def _choose_metadata_node(self, now_ms: float) -> Node | None:
        """Choose a node for a metadata request. If no node is reachable, return to the bootstrap servers first."""
        choice = self._choose_node(now_ms, self._metadata_fetch.is_awaiting_response)
        if self._is_every_node_unreachable(choice) and self._metadata_fetch.rebootstrap(now_ms):
            choice = self._choose_node(now_ms)
        return choice.node

    def _request_metadata_or_connect(self, node: Node, now_ms: float) -> float:
        """Send a metadata request to the node, or connect to it. Return the delay until the next attempt."""
        if self._can_send(node.id, now_ms):
            self._send_metadata_request(node, now_ms)
        elif self._states.can_connect(node.id, now_ms):
            self._connect(node, now_ms)
        if self._states.is_preparing_connection(node.id):
            # The poll ends when the attempt succeeds or fails. Otherwise, try another node once this one counts as
            # unresponsive. If it already does, there was no better choice, and a wait of 0 would poll in a tight loop.
            remaining_ms = UNRESPONSIVE_AFTER_MS - self.unresponsive_ms(node.id, now_ms)
            return remaining_ms if remaining_ms >= 1 else UNRESPONSIVE_AFTER_MS
        # The query was sent, or the attempt failed immediately. Wait until another node may be tried.
        return self._metadata_fetch.wait_ms(now_ms, self._last_response_ms_by_node)

    def _handle_completed_sends(self, responses: list[ClientResponse], now_ms: float) -> None:
        """Record the requests that have been written. A request that expects no response ends now."""
        for send in self._selector.completed_sends:
            in_flight_request = send.tag
            assert isinstance(in_flight_request, InFlightRequest)
            in_flight_request.is_written = True
            if not in_flight_request.request.expect_response:
                self._in_flight.complete_last_sent(in_flight_request.request.node_id)
                responses.append(in_flight_request.build_response(message=None, now_ms=now_ms))

    def _handle_completed_receives(self, responses: list[ClientResponse], now_ms: float) -> None:
        """Match each response to its request. Handle responses to the client's own requests, and report all others.

        An invalid response closes the connection.
        """
        for receive in self._selector.completed_receives:
            node_id = int(receive.channel_id)
            self._last_response_ms_by_node[node_id] = now_ms
            match_or_loss = self._match_response(node_id, receive.payload)
            if isinstance(match_or_loss, ConnectionLoss):
                self._close_connection(responses, node_id, match_or_loss, now_ms)
                continue
            in_flight_request, message = match_or_loss
            if in_flight_request.is_internal and isinstance(message, MetadataResponse):
                query = get_metadata_query(in_flight_request.request)
                self._metadata_fetch.handle_response(node_id, query, message, in_flight_request.version, now_ms)
            elif in_flight_request.is_internal and isinstance(message, ApiVersionsResponse):
                self._handle_api_versions(responses, in_flight_request, message, now_ms)
            else:
                responses.append(in_flight_request.build_response(message, now_ms))
            self._maybe_throttle(in_flight_request, message, now_ms)

    def _match_response(self, node_id: int, payload: memoryview) -> tuple[InFlightRequest, Message] | ConnectionLoss:
        """Return the request and the decoded response, or why the connection must be closed."""
        try:
            return self._in_flight.complete_next(node_id, payload)
        except DecodeError as error:
            return ConnectionLoss(f"{self._connections.describe(node_id)} sent an invalid response: {error}")
        except FATAL_ERRORS:
            raise
        except Exception as error:
            logged_error = log_unexpected_error(self._connections.describe(node_id), error)
            return ConnectionLoss(logged_error.text, logged_error.address)

    def _handle_disconnections(self, responses: list[ClientResponse], now_ms: float) -> None:
        """End the requests of the connections that the Selector has closed."""
        for channel_id, final_state in self._selector.disconnected.items():
            node_id = int(channel_id)
            if self._connections.is_alive(node_id):  # if not, this poll has already closed the connection
                self._handle_loss(responses, node_id, self._connections.build_loss(node_id, final_state), now_ms)

    def _send_api_versions_requests(self, now_ms: float) -> None:
        for node_id, version in self._connections.take_nodes_ready_for_api_versions().items():
            message = self._connections.build_api_versions_request(node_id, self._metadata.snapshot.cluster_id)
            request = self.new_client_request(node_id, message, now_ms)
            self._send(request, version, now_ms, is_internal=True)

    def _handle_timed_out_connections(self, responses: list[ClientResponse], now_ms: float) -> None:
        for node_id in self._states.find_nodes_with_setup_timeout(now_ms):
            self._close_connection(responses, node_id, self._connections.build_setup_timeout_loss(node_id), now_ms)

    def _handle_timed_out_requests(self, responses: list[ClientResponse], now_ms: float) -> None:
        """Close each connection with a timed-out request, because later responses could not be matched to requests."""
        for node_id, request in self._in_flight.collect_timed_out_requests(now_ms).items():
            timeout = f"{request.timeout_ms / 1000:g} s"
            if request.timeout_ms == self._config.request_timeout_ms:
                timeout += " (request.timeout.ms)"
            reason = f"{self._connections.describe(node_id)} did not respond within {timeout}"
            loss = self._connections.build_request_timeout_loss(node_id, reason)
            self._close_connection(responses, node_id, loss, now_ms)

    def _handle_rebootstrap(self, responses: list[ClientResponse], now_ms: float) -> None:
        """Close all connections and return to the bootstrap servers, if that is necessary and allowed."""
        if not self._metadata_fetch.needs_rebootstrap(now_ms):
            return
        for node_id in self._metadata.snapshot.nodes:
            if self._connections.is_alive(node_id):
                reason = f"{self._connections.describe(node_id)} was disconnected to bootstrap again"
                self._close_connection(responses, node_id, ConnectionLoss(reason, is_expected=True), now_ms)
        self._metadata_fetch.rebootstrap(now_ms)

    # --- helpers

    def _connect(self, node: Node, now_ms: float) -> None:
        loss = self._connections.connect(node, now_ms)
        if loss is not None:
            self._handle_loss(self._unreported_responses, node.id, loss, now_ms)

    def _can_send(self, node_id: int, now_ms: float) -> bool:
        return self._connections.is_ready(node_id, now_ms) and self._in_flight.can_send_more(node_id)

    def _choose_node(self, now_ms: float, avoid: Callable[[int], bool] = lambda node_id: False) -> NodeChoice:
        """Choose a node. Treat nodes for which `avoid` returns True as unresponsive."""
        nodes = list(self._metadata.snapshot.nodes.values())

        def is_responsive(node_id: int) -> bool:
            return self.unresponsive_ms(node_id, now_ms) < UNRESPONSIVE_AFTER_MS and not avoid(node_id)

        return choose_node(nodes, self._connections, self._in_flight, is_responsive, self._rng, now_ms)

    def _is_every_node_unreachable(self, choice: NodeChoice) -> bool:
        """Return whether to give up on all known nodes.

        This is so if none is connected, being connected or connectable now, or if the last attempt to connect to each
        of them failed. The second condition does not apply to bootstrap servers.
        """
        snapshot = self._metadata.snapshot
        if choice.node is None:
            return not choice.has_connected_node
        return not snapshot.is_bootstrap and all(self._states.is_unreachable(node_id) for node_id in snapshot.nodes)

    def _send_metadata_request(self, node: Node, now_ms: float) -> None:
        query = self._metadata_fetch.start_query(node.id, now_ms)
        request = self.new_client_request(node.id, query.build_request(), now_ms, tag=query)
        try:
            self._send(request, self.latest_usable_version(node.id, ApiKey.METADATA), now_ms, is_internal=True)
        except UnsupportedVersionError as error:
            self._metadata_fetch.fail(now_ms, error)

    def _send(self, request: ClientRequest, version: int, now_ms: float, *, is_internal: bool = False) -> None:
        """Pass a request to the Selector. `is_internal`: the client itself handles the response."""
        segments = encode_request(request.message, version, request.correlation_id, self._config.client_id)
        in_flight_request = InFlightRequest(request, version, is_internal, now_ms)
        self._in_flight.add(in_flight_request)
        self._selector.send(NetworkSend(str(request.node_id), segments, in_flight_request))

    def _handle_api_versions(
        self,
        responses: list[ClientResponse],
        in_flight_request: InFlightRequest,
        response: ApiVersionsResponse,
        now_ms: float,
    ) -> None:
        """Apply a response to ApiVersions: mark the node as ready, repeat the request, or close the connection."""
        node_id = in_flight_request.request.node_id
        request = in_flight_request.request.message
        assert isinstance(request, ApiVersionsRequest)
        loss = self._connections.handle_api_versions(node_id, request, response, in_flight_request.version, now_ms)
        if self._states.is_ready(node_id, now_ms):  # earlier, a connected socket can still fail in TLS or SASL
            self._metadata.clear_connection_failure(node_id)
        if loss is not None:
            if response.error_code == error_codes.REBOOTSTRAP_REQUIRED:
                self._metadata_fetch.request_rebootstrap()
            self._close_connection(responses, node_id, loss, now_ms)

    def _maybe_throttle(self, in_flight_request: InFlightRequest, message: Message, now_ms: float) -> None:
        """Apply the response's throttle time: send nothing to the node until it ends, and extend timeouts by it."""
        node_id = in_flight_request.request.node_id
        throttle_time_ms = compute_throttle_ms(message, in_flight_request.request.api_key, in_flight_request.version)
        if throttle_time_ms > 0:
            self._in_flight.extend_deadlines(node_id, throttle_time_ms)
            self._states.throttle(node_id, now_ms + throttle_time_ms)
            self._last_response_ms_by_node[node_id] = now_ms + throttle_time_ms

    def _close_connection(
        self, responses: list[ClientResponse], node_id: int, loss: ConnectionLoss, now_ms: float
    ) -> None:
        self._connections.close(node_id)
        self._handle_loss(responses, node_id, loss, now_ms)

    def _handle_loss(self, responses: list[ClientResponse], node_id: int, loss: ConnectionLoss, now_ms: float) -> None:
        """Record the loss of a connection, end its requests, and request a metadata update."""
        self._connections.record_loss(node_id, loss, now_ms)
        self._cancel_requests(responses, node_id, loss, now_ms)
        if not loss.is_expected:
            self._metadata.record_connection_failure(node_id, self._connections.address(node_id), loss)
        authentication_failure = self._connections.find_authentication_failure(self._metadata.snapshot)
        self._metadata_fetch.handle_disconnection(now_ms, authentication_failure)

    def _cancel_requests(
        self, responses: list[ClientResponse], node_id: int, loss: ConnectionLoss, now_ms: float
    ) -> None:
        """End the node's requests. Add results to `responses` only for requests of the client's callers."""
        for in_flight_request in self._in_flight.clear(node_id):
            if not in_flight_request.is_internal:
                responses.append(in_flight_request.build_disconnect_response(loss, now_ms))
            elif in_flight_request.request.api_key is ApiKey.METADATA:
                self._metadata_fetch.handle_lost_request(node_id, get_metadata_query(in_flight_request.request), now_ms)

    def _ensure_active(self) -> None:
        if self._state is not _State.ACTIVE:
            raise DisconnectedError("the client is closed or closing")


def create_network_client(
    config: ClientConfig,
    metadata: Metadata,
    *,
    system: System,
    rng: Random | None = None,
    counts_per_node: bool = False,
) -> NetworkClient:
    """Create a client with its own Selector.

    `counts_per_node`: whether to also count traffic per node. The caller must then remove the recorded request sizes
    regularly (`TrafficCounts.send_sizes`).
    """
    selector = Selector(
        system,
        channel_builder=create_client_channel_builder(config.security, config.client_id),
        timeouts=ChannelTimeouts(idle_ms=config.connections_max_idle_ms),
        counts_per_channel=counts_per_node,
    )
    return NetworkClient(selector, metadata, config, system=system, rng=rng)
