"""BlockingClient: sends requests to the cluster and blocks the calling thread until the results arrive.

Requests that are sent together form a call. The request engine (engine.py) routes and retries each request of a call
until it has a final result. `send` waits for the result. `begin` and `finish` do the same in two steps, so that several
calls may be in progress at once. While the thread waits for one call, all calls make progress.

An attempt sends one request to one node, once. Each node has its own queue of attempts. If the client fails to connect
to a node once, every attempt in the node's queue fails. If a node does not respond for `node_timeout_ms`, the client
disconnects it. The node's timeout doubles each time this happens, up to request.timeout.ms, until the node responds
again. While a node is unresponsive, the client keeps updating the metadata. If the metadata shows that the node has
left the cluster, the node is disconnected before its timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.cluster import Node, TopicInfo
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import create_metadata
from spark_kafka_sink.client.network_client import create_network_client
from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError, UnsupportedVersionError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.deadline import Deadline, compute_pause_ms
from spark_kafka_sink.requests.engine import MAX_UNKNOWN_TOPIC_MS, Attempt, Call, RequestEngine
from spark_kafka_sink.requests.request import Request, ResponseT
from spark_kafka_sink.requests.routing import Routing

_MIN_WAIT_MS = 1.0
"""The shortest wait for a node's timeout. A wait below the clock's resolution could end before the clock advances."""

_MAX_TIMEOUT_DOUBLINGS = 30
"""Limits the exponent of a node's timeout, so that the float cannot overflow."""

_NO_REQUEST_TIMEOUT_MS = 2.0**40
"""The timeout of a single request, which is effectively none.

Many earlier requests on the same connection may delay a response. So the client limits how long a node may be
unresponsive, not how long a request may take.
"""


class _QueuedAttempt(NamedTuple):
    """An attempt that waits for its node to become ready, and the time at which it was queued."""

    attempt: Attempt
    queued_ms: float


@dataclass(eq=False)
class _NodeQueue:
    """The attempts for one node that have not ended yet: those that wait to be sent, and those in flight."""

    node: Node
    queued_attempts: deque[_QueuedAttempt] = field(default_factory=deque)
    in_flight: dict[int, Attempt] = field(default_factory=dict)
    """Attempts by correlation id."""
    has_tried_connection: bool = False
    """Whether the node has been connected, or a connection attempted, since the first of these attempts was queued."""
    last_response_ms: float = 0.0


class BlockingClient:
    """A client that blocks the caller's thread until all requests of a call have results.

    Use it as a context manager. Not thread-safe.

    `timeout_ms`: how long a call may go without progress.
    `node_timeout_ms`: how long a node may be unresponsive; defaults to request.timeout.ms.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        timeout_ms: float = 60_000,
        node_timeout_ms: float | None = None,
        system: System | None = None,
    ) -> None:
        self._system = system if system is not None else OperatingSystem()
        self._timeout_ms = timeout_ms
        self.retry_backoff_ms = config.retry_backoff_ms
        self._max_node_timeout_ms = float(config.request_timeout_ms)
        self._node_timeout_ms = min(self._max_node_timeout_ms, node_timeout_ms or self._max_node_timeout_ms)
        self._queues: dict[int, _NodeQueue] = {}  # by node id
        self._ended_attempt_count = 0  # attempts that got a response or failed, so far
        self._timeout_counts: dict[int, int] = {}  # node id -> consecutive timeouts
        self.metadata = create_metadata(config, system=self._system, allow_auto_topic_creation=False)
        self._client = create_network_client(config, self.metadata, system=self._system)
        self._engine = RequestEngine(Routing(self.metadata, lambda now_ms: self.choose_node()), compute_pause_ms)

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def wait_for_topic(self, topic: str, *, refresh: bool = False) -> TopicInfo:
        """Wait until the topic's partitions are known, and return the topic.

        Raise BrokerError if the topic does not exist, or if the user is not allowed to describe it.

        `refresh`: fetch the metadata again even if the topic is known, because the topic may have been deleted, or
        partitions may have been added.
        """
        deadline = self.create_deadline(f"metadata of {format_partition(topic)}")
        is_known = self.metadata.contains_topic(topic)
        self.metadata.add_topic(topic, self._system.now())
        stale_version = -1  # every version is higher, so the topic may come from the current metadata
        if refresh and is_known:
            stale_version = self.metadata.request_update(reset_backoff=True)
        while True:
            topic_info = self.metadata.snapshot.topics.get(topic)
            if topic_info is not None and self.metadata.version > stale_version:
                if topic_info.partitions:
                    return topic_info
                self.metadata.raise_for_topic(topic)
                # Retry other errors for a while, because not all brokers learn about a new topic at the same time.
                if deadline.waited_ms > MAX_UNKNOWN_TOPIC_MS:
                    raise build_broker_error(topic_info.error_code, destination=format_partition(topic))
                self.metadata.request_update()
            deadline.wait_or_raise(self.metadata.topic_error(topic), self.retry_backoff_ms)

    def find_leader(self, topic: str, partition: int) -> Node | None:
        """Return the partition's leader. If the leader is unknown, request a metadata update and return None."""
        leader = self.metadata.snapshot.leader(topic, partition)
        if leader is None:
            self.metadata.request_update()
        return leader

    def fetch_nodes(self, last_version: int | None = None) -> list[Node]:
        """Wait for a metadata update, then return the cluster's brokers.

        `last_version`: the result of `metadata.request_update` if the caller has already requested the update; None to
        request it here.
        """
        deadline = self.create_deadline("metadata of the cluster")
        if last_version is None:
            last_version = self.metadata.request_update(reset_backoff=True)
        while self.metadata.version <= last_version:
            deadline.wait_or_raise(failure=None, pause_ms=self.retry_backoff_ms)
        return list(self.metadata.snapshot.nodes.values())

    def choose_node(self) -> Node | None:
        """Return a node for a request that any broker can answer, preferably one that is connected and responsive.

        Return None if no node can be used or connected to now.
        """
        now_ms = self._system.now()
        connected_nodes = [
            node for node in self.metadata.snapshot.nodes.values() if self._client.find_api_versions(node.id)
        ]
        if connected_nodes:
            return min(
                connected_nodes,
                key=lambda node: (self._client.unresponsive_ms(node.id, now_ms), self._request_count(node.id)),
            )
        return self._client.least_loaded_node(now_ms)

    @property
    def transaction_version(self) -> int:
        """The cluster's transaction version: 2 (KIP-890), or 1 if it is lower or not known."""
        return self._client.finalized_features.transaction_version

    def create_deadline(self, operation: str, timeout_ms: float | None = None) -> Deadline:
        """Return a deadline for an operation. `timeout_ms` defaults to the client's timeout."""
        return Deadline(self, operation, self._timeout_ms if timeout_ms is None else timeout_ms)

    def describe_missing_response(self) -> str:
        """Describe why there is no response: the unresponsive nodes, or else the connections that failed."""
        now_ms = self._system.now()
        descriptions = [
            f"{queue.node} has not responded for {self._client.unresponsive_ms(queue.node.id, now_ms):.0f} ms"
            for queue in self._queues.values()
            if (queue.queued_attempts or queue.in_flight)
            and self._client.unresponsive_ms(queue.node.id, now_ms) >= UNRESPONSIVE_AFTER_MS
        ]
        return ". ".join(descriptions) + "." if descriptions else self.metadata.describe_connection_failures()

    def now(self) -> float:
        """Return the time of the client's monotonic clock, in milliseconds."""
        return self._system.now()

    def wall_ms(self) -> int:
        """Return the wall-clock time, in milliseconds since the epoch."""
        return self._system.wall_ms()

    def pause(self, pause_ms: float) -> None:
        """Poll the client for this long, or until the metadata is updated."""
        initial_version = self.metadata.version
        deadline_ms = self._system.now() + pause_ms
        while (now_ms := self._system.now()) < deadline_ms and self.metadata.version == initial_version:
            self._run_once(now_ms, deadline_ms - now_ms)

    # --- requests

    def send(self, request: Request[ResponseT], timeout_ms: float | None = None) -> ResponseT:
        """Send a request that has a single key, and return its final response.

        `timeout_ms`: how long the request may go without progress; defaults to the client's timeout.
        """
        (response,) = self.send_all([request], timeout_ms).values()
        return response

    def send_all(self, requests: Iterable[Request[ResponseT]], timeout_ms: float | None = None) -> dict[str, ResponseT]:
        """Send the requests, and return the final response for each of their keys."""
        return self.finish(self.begin(requests), timeout_ms)

    def begin(self, requests: Iterable[Request[ResponseT]], *, should_retry: bool = True) -> Call[ResponseT]:
        """Send requests without waiting. The caller must pass the result to `finish` or `abandon`.

        `should_retry`: whether to retry after retriable errors and lost connections. If not, the first failure of a key
        (a topic, a transactional id, ...) is final.
        """
        call = Call(requests, should_retry=should_retry, should_retry_unknown_errors=True)
        self._engine.add(call)
        self._queue_due()
        return call

    def finish(self, call: Call[ResponseT], timeout_ms: float | None = None) -> dict[str, ResponseT]:
        """Wait for the final results, and return the responses by key. Raise the call's first error if a key failed.

        Raise NetworkError or MetadataTimeoutError if no further key gets a result for `timeout_ms`, which defaults to
        the client's timeout. In any case, the call is removed from the client.
        """
        deadline = self.create_deadline(call.operation, timeout_ms)
        done_count = call.done_count
        try:
            while not call.is_done:
                deadline.raise_if_expired(call.last_failure)
                self._queue_due()
                self.poll_until(min(self._engine.next_due_ms(self._system.now()), deadline.at_ms))
                if call.done_count != done_count:
                    done_count = call.done_count
                    deadline.extend()
        finally:
            self.abandon(call)
        return call.results()

    def abandon(self, call: Call[Any]) -> None:
        """Remove a call. Its queued requests are never sent, and responses to requests in flight are ignored."""
        self._engine.remove(call)
        for queue in self._queues.values():
            queue.queued_attempts = deque(
                queued_attempt for queued_attempt in queue.queued_attempts if queued_attempt.attempt.call is not call
            )

    def poll_until(self, until_ms: float) -> None:
        """Poll the client until an attempt ends, or until this time on the client's monotonic clock."""
        initial_count = self._ended_attempt_count
        while self._ended_attempt_count == initial_count and (now_ms := self._system.now()) < until_ms:
            self._run_once(now_ms, until_ms - now_ms)

    # --- node queues

    def _queue_due(self) -> None:
        """Add all due attempts to the queues of their nodes."""
        now_ms = self._system.now()
        for attempt in self._engine.find_due_attempts(now_ms):
            queue = self._queues.setdefault(attempt.node.id, _NodeQueue(attempt.node))
            queue.node = attempt.node  # the node's address may have changed
            if not queue.queued_attempts and not queue.in_flight:
                queue.has_tried_connection = False
            queue.queued_attempts.append(_QueuedAttempt(attempt, now_ms))
            self._engine.mark_queued(attempt)

    def _run_once(self, now_ms: float, timeout_ms: float) -> None:
        """Send queued requests and poll the client once."""
        initial_count = self._ended_attempt_count
        for queue in self._queues.values():
            self._send_next(queue, now_ms)
        if self._ended_attempt_count != initial_count:
            return  # do not poll, so that the caller handles the ended attempts immediately
        self._poll(max(0.0, min(timeout_ms, self._disconnect_unresponsive_nodes(now_ms))))

    def _send_next(self, queue: _NodeQueue, now_ms: float) -> None:
        """Send the node's first queued request if the node is ready.

        Fail all queued requests if the node cannot be reached or has not become ready in time. This method sends only
        one request, because the node is not ready for another one until this request is written to the socket.
        """
        if not queue.queued_attempts:
            return
        if not self._client.ready(queue.node, now_ms):
            self._fail_queued_if_unreachable(queue, now_ms)
            return
        queue.has_tried_connection = True
        attempt = queue.queued_attempts.popleft().attempt
        node_id, request = queue.node.id, attempt.request
        try:
            version = self._client.latest_usable_version(node_id, request.api_key, request.versions)
            message = request.build_message(version)
        except UnsupportedVersionError as error:
            self._fail_attempt(attempt, error)
            return
        client_request = self._client.new_client_request(
            node_id, message, now_ms, timeout_ms=_NO_REQUEST_TIMEOUT_MS, versions=VersionRange(version, version)
        )
        queue.in_flight[client_request.correlation_id] = attempt
        self._engine.mark_sent(attempt)
        self._client.send(client_request, now_ms)

    def _fail_queued_if_unreachable(self, queue: _NodeQueue, now_ms: float) -> None:
        """Fail the queued requests if the node cannot be reached or has not become ready in time."""
        node = queue.node
        has_connection_failed = self._client.has_connection_failed(node.id)
        describe_failures = self.metadata.describe_connection_failures
        waiting_since_ms = max(queue.last_response_ms, queue.queued_attempts[0].queued_ms)
        if has_connection_failed and queue.has_tried_connection:
            self._fail_queued(queue, f"{node} cannot be reached. {describe_failures()}")
        elif now_ms - waiting_since_ms >= self._timeout_ms:
            self._fail_queued(queue, f"{node} was not ready within {self._timeout_ms:.0f} ms. {describe_failures()}")
        # If the connection failed before these requests were queued, do not fail them for it. The client may be waiting
        # for the reconnect backoff before it connects again.
        queue.has_tried_connection = queue.has_tried_connection or not has_connection_failed

    def _fail_queued(self, queue: _NodeQueue, reason: str) -> None:
        """Fail the queued requests. Requests in flight are not touched: they fail when their connection is lost."""
        attempts, queue.queued_attempts = queue.queued_attempts, deque()
        for queued_attempt in attempts:
            self._fail_attempt(queued_attempt.attempt, DisconnectedError(reason))

    def _fail_attempt(self, attempt: Attempt, error: KafkaSinkError) -> None:
        """End an attempt without a response. The request engine retries or fails its keys."""
        self._ended_attempt_count += 1
        self._engine.handle_failure(attempt, error, self._system.now())

    def _disconnect_unresponsive_nodes(self, now_ms: float) -> float:
        """Disconnect nodes that have been unresponsive for too long. Return the milliseconds until the next check."""
        # A queued request may be waiting for a reconnect backoff. A poll does not return when a backoff ends, so poll
        # for a short time only.
        has_queued = any(queue.queued_attempts for queue in self._queues.values())
        until_next_check_ms: float = self.retry_backoff_ms if has_queued else UNRESPONSIVE_AFTER_MS
        for node_id in {*self._queues, *self.metadata.snapshot.nodes}:
            until_next_check_ms = min(until_next_check_ms, self._disconnect_if_unresponsive(node_id, now_ms))
        return until_next_check_ms

    def _disconnect_if_unresponsive(self, node_id: int, now_ms: float) -> float:
        """Disconnect the node if it has been unresponsive for too long, or is unresponsive and has left the cluster.

        Return the milliseconds until the node times out at the earliest.
        """
        snapshot = self.metadata.snapshot
        unresponsive_ms = self._client.unresponsive_ms(node_id, now_ms)
        timeout_ms = self._compute_node_timeout_ms(node_id)
        if unresponsive_ms >= timeout_ms:
            self._timeout_counts[node_id] = self._timeout_counts.get(node_id, 0) + 1
            self._disconnect(node_id, f"did not respond within {timeout_ms:.0f} ms", now_ms)
        elif unresponsive_ms >= UNRESPONSIVE_AFTER_MS:
            self.metadata.request_update()  # to learn whether the node has left the cluster
            has_left_cluster = not snapshot.is_bootstrap and node_id not in snapshot.nodes
            if has_left_cluster:
                self._disconnect(node_id, "is unresponsive and has left the cluster", now_ms)
        # Without a minimum, a wait below the clock's resolution could make the loop spin forever.
        return max(timeout_ms - unresponsive_ms, _MIN_WAIT_MS)

    def _compute_node_timeout_ms(self, node_id: int) -> float:
        """Return the node's timeout, which doubles with each consecutive timeout."""
        doublings = min(self._timeout_counts.get(node_id, 0), _MAX_TIMEOUT_DOUBLINGS)
        return min(self._node_timeout_ms * 2.0**doublings, self._max_node_timeout_ms)

    def _disconnect(self, node_id: int, reason: str, now_ms: float) -> None:
        """Disconnect a node and fail its queued requests. `reason`: the predicate of a sentence about the node."""
        queue = self._queues.get(node_id)
        node = self.metadata.snapshot.nodes.get(node_id) if queue is None else queue.node
        sentence = f"{node or f'node {node_id}'} {reason}"
        self._client.disconnect_unresponsive(node_id, sentence, now_ms)
        if queue is not None:
            self._fail_queued(queue, sentence)

    def _poll(self, timeout_ms: float) -> None:
        """Poll the client once and handle the responses. Raise the metadata's fatal error, if any."""
        self.metadata.raise_if_fatal()
        for response in self._client.poll(timeout_ms, self._system.now()):
            self._handle_response(response)
        # This poll may have set the fatal error. Raise it now, before a queued request or the deadline fails with a
        # less precise error.
        self.metadata.raise_if_fatal()

    def _handle_response(self, response: ClientResponse) -> None:
        """End an attempt: pass its response, or the error if there is none, to the request engine."""
        queue = self._queues[response.request.node_id]
        attempt = queue.in_flight.pop(response.request.correlation_id)
        if response.message is not None:
            self._timeout_counts.pop(queue.node.id, None)
            queue.last_response_ms = response.received_ms
            self._ended_attempt_count += 1
            self._engine.handle_response(attempt, response.message, self._system.now())
        else:
            disconnected = DisconnectedError(response.reason)
            self._fail_attempt(attempt, response.version_error or response.authentication_error or disconnected)

    def _request_count(self, node_id: int) -> int:
        queue = self._queues.get(node_id)
        return 0 if queue is None else len(queue.queued_attempts) + len(queue.in_flight)
