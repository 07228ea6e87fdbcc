"""NetworkClient: requests in, responses out, over connections that it makes and mends itself.

`poll` is the one place where anything happens. It does what is due, lets the Selector work, turns the results into
responses, and returns them: nothing calls back. In between, `ready` asks for a connection and `send` hands over
requests, for nodes that are ready only. The client's own requests go first: ApiVersions on each new connection, and
Metadata, since no node `is_ready` while an update of metadata is due.

A connection is given up, and all its requests fail in their order as `disconnected`, when an answer is late, cannot be
decoded, or belongs to another request: after that answers cannot be matched to requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from random import Random

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.connections import Connections
from spark_kafka_sink.client.in_flight import InFlightRequest, InFlightRequests
from spark_kafka_sink.client.metadata import Metadata, MetadataQuery
from spark_kafka_sink.client.metadata_fetch import MetadataFetch
from spark_kafka_sink.client.node_choice import SUSPICIOUS_MS, NodeChoice, choose_node
from spark_kafka_sink.client.request import ClientRequest, ClientResponse, Loss
from spark_kafka_sink.client.versions import FinalizedFeatures, NodeVersions, api_versions_request, throttle_ms
from spark_kafka_sink.errors import (
    AuthenticationError,
    DecodeError,
    DisconnectedError,
    IllegalStateError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.channels import client_channels
from spark_kafka_sink.network.connection_errors import FATAL_ERRORS, log_unexpected
from spark_kafka_sink.network.deadlines import Deadlines
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import encode_request
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.protocol.schema import VersionRange

CORRELATION_ID_MAX = 2**31 - 1024
"""Higher correlation ids are for the channels' own conversations (SASL)."""


class _Life(Enum):
    ACTIVE = "active"
    CLOSING = "closing"
    CLOSED = "closed"


class NetworkClient:
    """Sender thread only, except `wakeup`, `initiate_close` and `finalized_features`."""

    def __init__(
        self,
        selector: Selector,
        metadata: Metadata,
        config: ClientConfig,
        *,
        system: System,
        random: Random | None = None,
    ) -> None:
        self._selector = selector
        self._metadata = metadata
        self._config = config
        self._system = system
        self._random = random if random is not None else Random()
        self._fetch = MetadataFetch(metadata, config)
        self._connections = Connections(selector, config, system=system, random=self._random)
        self._states, self.losses = self._connections.states, self._connections.losses
        self._in_flight = InFlightRequests(config.max_in_flight_requests_per_connection)
        self._unreported: list[ClientResponse] = []  # of requests that ended outside of poll
        self._heard_ms: dict[int, float] = {}  # when a node last answered, or when the pause ends that it has asked for
        self._correlation_id = 0
        self._life = _Life.ACTIVE  # guarded by _life_lock
        self._life_lock = threading.Lock()

    # --- connections

    def ready(self, node: Node, now: float) -> bool:
        """Whether the node can be sent to now; if not, begin to connect as soon as that is allowed."""
        if self.is_ready(node.id, now):
            return True
        if self._states.can_connect(node.id, now):
            self._connect(node, now)
        return False

    def is_ready(self, node_id: int, now: float) -> bool:
        return not self._fetch.is_due(now) and self._can_send(node_id, now)

    def poll_delay(self, node_id: int, now: float) -> float:
        return self._states.poll_delay(node_id, now)

    def connection_failed(self, node_id: int) -> bool:
        return self._states.has_failed(node_id)

    def silence_ms(self, node_id: int, now: float) -> float:
        """For how long the node has owed an answer or a connection without any sign of life; 0 if it owes nothing."""
        if self._states.is_preparing(node_id):
            since_ms = self._states.last_attempt_ms(node_id)
        else:
            since_ms = self._in_flight.waiting_since_ms(node_id)
        return max(0.0, now - max(since_ms, self._heard_ms.get(node_id, since_ms)))

    def disconnect(self, node_id: int, reason: str, now: float) -> None:
        """Give up the connection to a node, if there is one. The next poll returns its requests as disconnected."""
        if self._connections.is_alive(node_id):
            self._abandon(self._unreported, node_id, Loss(reason, timed_out=True), now)

    def authentication_exception(self, node_id: int) -> AuthenticationError | None:
        return self._states.authentication_error(node_id)

    def least_loaded_node(self, now: float) -> Node | None:
        """The node to ask what any broker knows; None if no node can be asked or connected to now."""
        return self._choose_node(now).node

    # --- requests

    def new_client_request(  # noqa: PLR0913 - the fields of a request, all but four by their names
        self,
        node_id: int,
        message: Message,
        now: float,
        *,
        expect_response: bool = True,
        timeout_ms: float | None = None,
        tag: object = None,
        versions: VersionRange | None = None,
    ) -> ClientRequest:
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_ID_MAX
        if timeout_ms is None:
            timeout_ms = self._config.request_timeout_ms
        return ClientRequest(node_id, message, self._correlation_id, now, timeout_ms, expect_response, tag, versions)

    def send(self, request: ClientRequest, now: float) -> None:
        """Queue a request for a node that is ready. The next poll reports what is wrong with its versions."""
        self._ensure_active()
        if not self._can_send(request.node_id, now):
            raise IllegalStateError(f"{request} was sent, but the node is not ready")
        try:
            self._send(request, self.version_for(request.node_id, request.api_key, request.versions), now)
        except UnsupportedVersionError as error:
            latency_ms = now - request.created_ms
            self._unreported.append(ClientResponse(request, now, latency_ms, version_error=error, reason=str(error)))

    def version_for(self, node_id: int, api_key: ApiKey, versions: VersionRange | None = None) -> int:
        """The version in which a node is spoken to; UnsupportedVersionError if there is none in common."""
        known = self._connections.versions.get(node_id)
        if known is None:
            raise IllegalStateError(f"the API versions of node {node_id} are not known: it is not connected")
        return known.usable(api_key, versions)

    def versions(self, node_id: int) -> NodeVersions | None:
        return self._connections.versions.get(node_id)

    @property
    def finalized_features(self) -> FinalizedFeatures:
        """The newest that any broker has sent. May be read by any thread."""
        return self._connections.features

    @property
    def io_counts(self) -> IoCounts:
        """What has gone over all connections. May be read by any thread."""
        return self._selector.counts

    def in_flight_request_count(self, node_id: int | None = None) -> int:
        return self._in_flight.count(node_id)

    # --- the loop

    def poll(self, timeout_ms: float, now: float) -> list[ClientResponse]:
        """Do what is due, wait at most so long for something to happen, and return the requests that ended."""
        self._ensure_active()
        if self._unreported:
            responses, self._unreported = self._unreported, []
            return responses
        metadata_ms = self._maybe_update_metadata(now)
        deadline_ms = min(self._in_flight.next_deadline(), self._states.next_setup_deadline())
        self._selector.poll(max(0.0, min(timeout_ms, metadata_ms, self._config.request_timeout_ms, deadline_ms - now)))

        now = self._system.now()
        responses = []
        self._handle_completed_sends(responses, now)
        self._handle_completed_receives(responses, now)
        self._handle_disconnections(responses, now)
        self._connections.accept_connected()
        self._ask_for_api_versions(now)
        if now >= deadline_ms:
            self._handle_timed_out_connections(responses, now)
            self._handle_timed_out_requests(responses, now)
        self._handle_rebootstrap(responses, now)
        return responses

    def wakeup(self) -> None:
        """End the wait of a poll, from any thread."""
        self._selector.wakeup()

    def initiate_close(self) -> None:
        """From any thread: the next send or poll raises DisconnectedError, and one that waits returns."""
        with self._life_lock:
            if self._life is _Life.ACTIVE:
                self._life = _Life.CLOSING
        self.wakeup()

    def close(self) -> None:
        """Close all connections, and the metadata for those who wait for it."""
        with self._life_lock:
            closed, self._life = self._life is _Life.CLOSED, _Life.CLOSED
        if not closed:
            self._selector.close()
            self._metadata.close()

    # --- what poll does, in its order

    def _maybe_update_metadata(self, now: float) -> float:
        """Ask for metadata if that is due and a broker can be asked. Returns when to look again."""
        wait_ms = self._fetch.wait_ms(now, self._heard_ms)
        if wait_ms > 0:
            return wait_ms
        self._fetch.wanted(now)
        choice = self._choose_node(now, self._fetch.has_asked)
        if self._all_are_gone(choice) and self._fetch.rebootstrap(now):
            choice = self._choose_node(now)
        if (node := choice.node) is None:
            return min(self._states.poll_delay(node_id, now) for node_id in self._metadata.snapshot.nodes)
        if self._fetch.has_asked(node.id):
            return SUSPICIOUS_MS  # no other node is more likely to answer
        if self._can_send(node.id, now):
            self._send_metadata_request(node, now)
        elif self._states.can_connect(node.id, now):
            self._connect(node, now)
        # The result of an attempt is an event. After an attempt that failed at once, or brings no answer, others
        # follow.
        if self._states.is_preparing(node.id):
            left_ms = SUSPICIOUS_MS - self.silence_ms(node.id, now)
            return left_ms if left_ms >= 1 else SUSPICIOUS_MS
        return self._fetch.wait_ms(now, self._heard_ms)

    def _handle_completed_sends(self, responses: list[ClientResponse], now: float) -> None:
        for send in self._selector.completed_sends:
            in_flight = send.tag
            assert isinstance(in_flight, InFlightRequest)
            in_flight.written = True
            if not in_flight.request.expect_response:
                self._in_flight.complete_last_sent(in_flight.request.node_id)
                responses.append(in_flight.completed(None, now))

    def _handle_completed_receives(self, responses: list[ClientResponse], now: float) -> None:
        for receive in self._selector.completed_receives:
            node_id = int(receive.channel_id)
            self._heard_ms[node_id] = now
            try:
                in_flight, message = self._in_flight.answered(node_id, receive.payload)
            except DecodeError as error:
                reason = f"{self._connections.describe(node_id)} sent something unintelligible: {error}"
                self._abandon(responses, node_id, Loss(reason), now)
                continue
            except FATAL_ERRORS:
                raise
            except Exception as error:
                reason = str(log_unexpected(self._connections.describe(node_id), error))
                self._abandon(responses, node_id, Loss(reason), now)
                continue
            if in_flight.internal and isinstance(message, MetadataResponse):
                self._fetch.answered(node_id, _query_of(in_flight), message, in_flight.version, now)
            elif in_flight.internal and isinstance(message, ApiVersionsResponse):
                self._handle_api_versions(responses, in_flight, message, now)
            else:
                responses.append(in_flight.completed(message, now))
            self._maybe_throttle(in_flight, message, now)

    def _handle_disconnections(self, responses: list[ClientResponse], now: float) -> None:
        for channel_id, ended in self._selector.disconnected.items():
            node_id = int(channel_id)
            if self._connections.is_alive(node_id):  # else it was given up in this very poll
                self._lose(responses, node_id, self._connections.loss(node_id, ended), now)

    def _ask_for_api_versions(self, now: float) -> None:
        for node_id, version in self._connections.next_introductions().items():
            request = self.new_client_request(node_id, api_versions_request(), now)
            self._send(request, version, now, internal=True)

    def _handle_timed_out_connections(self, responses: list[ClientResponse], now: float) -> None:
        for node_id in self._states.nodes_with_setup_timeout(now):
            limit_ms = self._states.setup_timeout_ms(node_id)
            reason = f"{self._connections.address(node_id)}: no connection within {limit_ms:.0f} ms"
            self._abandon(responses, node_id, Loss(reason, timed_out=True), now)

    def _handle_timed_out_requests(self, responses: list[ClientResponse], now: float) -> None:
        for node_id, request in self._in_flight.timed_out_requests(now).items():
            silent = f"{request.timeout_ms / 1000:g} s"
            if request.timeout_ms == self._config.request_timeout_ms:
                silent += " (request.timeout.ms)"
            reason = f"{self._connections.describe(node_id)} did not answer, silent for {silent}"
            self._abandon(responses, node_id, Loss(reason, timed_out=True), now)

    def _handle_rebootstrap(self, responses: list[ClientResponse], now: float) -> None:
        if not self._fetch.needs_rebootstrap(now):
            return
        for node_id in self._metadata.snapshot.nodes:
            if self._connections.is_alive(node_id):
                reason = f"{self._connections.describe(node_id)} was left, to begin again at bootstrap.servers"
                self._abandon(responses, node_id, Loss(reason, expected=True), now)
        self._fetch.rebootstrap(now)

    # --- parts

    def _connect(self, node: Node, now: float) -> None:
        loss = self._connections.connect(node, now)
        if loss is not None:
            self._lose(self._unreported, node.id, loss, now)

    def _can_send(self, node_id: int, now: float) -> bool:
        return self._connections.is_ready(node_id, now) and self._in_flight.can_send_more(node_id)

    def _choose_node(self, now: float, is_silent: Callable[[int], bool] = lambda node_id: False) -> NodeChoice:
        """`is_silent`: says of a node that it is silent, before SUSPICIOUS_MS are over."""
        nodes = list(self._metadata.snapshot.nodes.values())

        def is_lively(node_id: int) -> bool:
            return self.silence_ms(node_id, now) < SUSPICIOUS_MS and not is_silent(node_id)

        return choose_node(nodes, self._connections, self._in_flight, is_lively, self._random, now)

    def _all_are_gone(self, choice: NodeChoice) -> bool:
        """No node can be asked or tried now; or the last attempt to reach each of them has failed."""
        known = self._metadata.snapshot
        if choice.node is None:
            return not choice.any_connected
        return not known.is_bootstrap and all(self._states.is_unreachable(node_id) for node_id in known.nodes)

    def _send_metadata_request(self, node: Node, now: float) -> None:
        query = self._fetch.ask(node.id, now)
        request = self.new_client_request(node.id, query.request(), now, tag=query)
        try:
            self._send(request, self.version_for(node.id, ApiKey.METADATA), now, internal=True)
        except UnsupportedVersionError as error:
            self._fetch.refused(now, error)

    def _send(self, request: ClientRequest, version: int, now: float, *, internal: bool = False) -> None:
        segments = encode_request(request.message, version, request.correlation_id, self._config.client_id)
        in_flight = InFlightRequest(request, version, internal, now)
        self._in_flight.add(in_flight)
        self._selector.send(NetworkSend(str(request.node_id), segments, in_flight))

    def _handle_api_versions(
        self, responses: list[ClientResponse], in_flight: InFlightRequest, answer: ApiVersionsResponse, now: float
    ) -> None:
        node_id = in_flight.request.node_id
        loss = self._connections.introduced(node_id, answer, in_flight.version, now)
        if self._states.is_ready(node_id, now):
            self._metadata.connected(node_id)
        if loss is not None:
            if answer.error_code == error_codes.REBOOTSTRAP_REQUIRED:
                self._fetch.demand_rebootstrap()
            self._abandon(responses, node_id, loss, now)

    def _maybe_throttle(self, in_flight: InFlightRequest, message: Message, now: float) -> None:
        quiet_ms = throttle_ms(message, in_flight.request.api_key, in_flight.version)
        if quiet_ms > 0:
            self._in_flight.throttled(in_flight.request.node_id, quiet_ms)
            self._states.throttle(in_flight.request.node_id, now + quiet_ms)
            self._heard_ms[in_flight.request.node_id] = now + quiet_ms

    def _abandon(self, responses: list[ClientResponse], node_id: int, loss: Loss, now: float) -> None:
        """Give up a connection that still stands."""
        self._connections.close(node_id)
        self._lose(responses, node_id, loss, now)

    def _lose(self, responses: list[ClientResponse], node_id: int, loss: Loss, now: float) -> None:
        """A connection is gone, or did not come about: report it to all that it concerns."""
        self._connections.lost(node_id, loss, now)
        self._cancel_requests(responses, node_id, loss, now)
        if not loss.expected:
            self._metadata.connection_failed(node_id, self._connections.address(node_id), loss.reason)
        self._fetch.disconnected(now, self._connections.refused_everywhere(self._metadata.snapshot))

    def _cancel_requests(self, responses: list[ClientResponse], node_id: int, loss: Loss, now: float) -> None:
        for in_flight in self._in_flight.clear(node_id):
            if not in_flight.internal:
                responses.append(in_flight.cancelled(loss, now))
            elif in_flight.request.api_key is ApiKey.METADATA:
                self._fetch.lost(node_id, _query_of(in_flight), now)

    def _ensure_active(self) -> None:
        if self._life is not _Life.ACTIVE:
            raise DisconnectedError("the client is closed, or about to be")


def _query_of(in_flight: InFlightRequest) -> MetadataQuery:
    """What one of the client's own requests for metadata asked."""
    assert isinstance(in_flight.request.tag, MetadataQuery)
    return in_flight.request.tag


def new_network_client(
    config: ClientConfig,
    metadata: Metadata,
    *,
    system: System,
    random: Random | None = None,
    counts_nodes: bool = False,
) -> NetworkClient:
    """Create a client with a Selector of its own. `counts_nodes`: for a caller that reads the sizes of each node's
    requests, which would pile up otherwise."""
    selector = Selector(
        system,
        channels=client_channels(config.security, config.client_id),
        deadlines=Deadlines(idle_ms=config.connections_max_idle_ms),
        counts_channels=counts_nodes,
    )
    return NetworkClient(selector, metadata, config, system=system, random=random)
