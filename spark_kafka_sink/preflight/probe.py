"""Probe: opens the connections of one preflight run, and sends requests over them.

First, `run` connects to the brokers and fetches the topics' metadata. Then `send` is called for each check that needs a
request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import FINAL_TOPIC_ERRORS, Metadata
from spark_kafka_sink.client.network_client import create_network_client
from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.preflight.checks import PreflightTimeouts, Target
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from spark_kafka_sink.requests.dispatcher import RequestDispatcher
from spark_kafka_sink.requests.engine import Call, RequestEngine
from spark_kafka_sink.requests.request import Request, ResponseT
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.topics import DescribeTopics

_POLL_INTERVAL_MS = 50.0
"""The longest time that one poll waits. After each poll, the probe checks whether it can stop."""
_RETRY_INTERVAL_MS = 250.0
"""The pause before a failed request, or the request for the topics' metadata, is sent again."""


@dataclass(frozen=True)
class Exchange(Generic[ResponseT]):
    """The response to a check's request, and the time at which the broker probably sent it."""

    response: ResponseT
    wall_ms: int
    """This machine's time halfway between the request and the response, in milliseconds since the epoch."""


class _RequestCall(Call[ResponseT]):
    """A call with the request of one check. `last_exchange` has the last response, even if it is a retriable error."""

    def __init__(self, request: Request[ResponseT], wall_ms: Callable[[], int]) -> None:
        super().__init__([request])
        self.last_exchange: Exchange[ResponseT] | None = None
        self._wall_ms = wall_ms
        self._sent_ms = 0

    def try_begin_sending(self, request: Request[ResponseT]) -> bool:
        self._sent_ms = self._wall_ms()
        return True

    def handle_response(self, request: Request[ResponseT], response: ResponseT) -> None:
        self.last_exchange = Exchange(response, (self._sent_ms + self._wall_ms()) // 2)


class _TopicsCall(Call[MetadataResponse]):
    """Requests the topics' metadata repeatedly, because a missing topic, leader or address may appear later."""

    def __init__(self, request: DescribeTopics) -> None:
        super().__init__([request])
        self.response: MetadataResponse | None = None
        self.brokers: dict[int, Node] = {}

    def handle_result(
        self, request: Request[MetadataResponse], key: str, response: MetadataResponse, now_ms: float
    ) -> None:
        self.response = response
        nodes = [Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers]
        self.brokers = {node.id: node for node in nodes} or self.brokers
        self.due_ms_by_key[key] = now_ms + _RETRY_INTERVAL_MS


class Probe:
    """The connections of one preflight run. Not thread-safe. The creator must call `close`."""

    def __init__(
        self, config: ClientConfig, nodes: Sequence[Node], target: Target, timeouts: PreflightTimeouts, system: System
    ) -> None:
        """Create a probe. Raise ConfigurationError if a file named in the security options is missing or invalid."""
        self.bootstrap_nodes = nodes
        self.target = target
        self.connected_nodes: dict[int, Node] = {}
        """The nodes, by id, to which a connection has been established at least once."""
        self.is_conclusive = False
        """Whether `run` ended before a time limit, because everything passed or waiting could not change the result."""
        metadata = Metadata(nodes, config, system=system, allow_auto_topic_creation=False)
        self.client = create_network_client(config, metadata, system=system)
        routing = Routing(metadata, choose_node=lambda now_ms: self.find_ready_node())
        engine = RequestEngine(routing, compute_base_backoff_ms=lambda previous_failure_count: _RETRY_INTERVAL_MS)
        self._dispatcher = RequestDispatcher(self.client, engine, timeouts.response_ms)
        auto_create = target.allow_auto_topic_creation and target.new_topic is None
        self._topics_call = _TopicsCall(DescribeTopics(target.topics, auto_create=auto_create, include_operations=True))
        self._timeouts = timeouts
        self._system = system

    @property
    def metadata_response(self) -> MetadataResponse | None:
        """The latest metadata response that describes the topics, or None if there is none yet."""
        return self._topics_call.response

    @property
    def metadata_failure(self) -> str:
        """Why there is no metadata response; an empty string if the reason is unknown."""
        return str(self._topics_call.error or self._topics_call.last_failure or "")

    @property
    def brokers(self) -> dict[int, Node]:
        """The brokers, by id, from the latest metadata response that lists any.

        Do not use the client's own list instead. If the client cannot connect to any broker in it, the client drops the
        list and returns to the bootstrap servers.
        """
        return self._topics_call.brokers

    def close(self) -> None:
        self.client.close()

    def run(self) -> None:
        """Connect to the brokers and describe the topics.

        Return when everything has passed, when waiting longer cannot change the result, or when a time limit has
        passed.
        """
        system, timeouts = self._system, self._timeouts
        started_ms = system.now()
        deadline_ms = started_ms + timeouts.response_ms
        self._dispatcher.add(self._topics_call)
        while (now_ms := system.now()) < deadline_ms:
            self.is_conclusive = self._has_conclusive_result()
            if self.is_conclusive:
                break
            # Failed connections are retried for `retry_ms`. After that, wait only for nodes that may still respond.
            if now_ms - started_ms >= timeouts.retry_ms and not self._can_any_node_respond():
                break
            for node in (*self.bootstrap_nodes, *self.find_leaders()):
                if node.id not in self.connected_nodes and self.client.ready(node, now_ms):
                    self.connected_nodes[node.id] = node
            self._poll(deadline_ms - now_ms, now_ms)
        self._dispatcher.remove(self._topics_call)

    def send(self, request: Request[ResponseT]) -> Exchange[ResponseT]:
        """Send a request to any connected node, and return the last response.

        Retriable errors are retried for at most PreflightTimeouts.retry_ms. If no node responds, raise the last error,
        or DisconnectedError if there was none.
        """
        call = _RequestCall(request, self._system.wall_ms)
        started_ms = self._system.now()
        self._dispatcher.add(call)
        try:
            while not call.is_done:
                now_ms = self._system.now()
                call.should_retry = now_ms - started_ms < self._timeouts.retry_ms
                # After a failure, wait for a node to become ready only as long as failures are retried.
                give_up_after_ms = self._timeouts.retry_ms if call.last_failure else self._timeouts.response_ms
                is_response_possible = bool(call.in_flight_keys) or self.find_ready_node() is not None
                if not is_response_possible and now_ms - started_ms >= give_up_after_ms:
                    break
                self._poll(_POLL_INTERVAL_MS, now_ms)  # sends the request and passes responses to `call`
        finally:
            self._dispatcher.remove(call)
        if call.last_exchange is None:
            raise call.error or call.last_failure or DisconnectedError("all connections were lost")
        return call.last_exchange

    def _poll(self, timeout_ms: float, now_ms: float) -> None:
        """Send due requests, then poll the client once, for at most _POLL_INTERVAL_MS, and handle the responses."""
        delay_ms = self._dispatcher.send_due(now_ms)
        for response in self.client.poll(min(_POLL_INTERVAL_MS, timeout_ms, delay_ms), now_ms):
            self._dispatcher.handle_response(response)

    def should_create(self, topic: MetadataResponseTopic) -> bool:
        """Return whether the topic is missing and the writer will create it before the write."""
        new_topic = self.target.new_topic
        is_missing = topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return new_topic is not None and is_missing and topic.name == new_topic.name

    def find_ready_node(self) -> Node | None:
        """Return a connected node to which a request can be sent now, or None if there is none."""
        now_ms = self._system.now()
        return next((node for node in self.connected_nodes.values() if self.client.is_ready(node.id, now_ms)), None)

    def _has_conclusive_result(self) -> bool:
        """Return whether everything has passed or waiting longer cannot change the result."""
        response = self.metadata_response
        if response is None:
            # There is no response yet, so the call can be done only if its request has failed permanently.
            return self._topics_call.is_done or self._is_authentication_rejected()
        expected_topics = [topic for topic in response.topics if not self.should_create(topic)]
        usable_topics = [topic for topic in expected_topics if topic.error_code not in FINAL_TOPIC_ERRORS]
        has_final_error = len(usable_topics) < len(expected_topics)
        # If a topic has a final error, the write cannot succeed, so the topics' leaders need not be checked. This does
        # not apply to `connect_all_brokers`, because the brokers to check then do not depend on the topics.
        if has_final_error and not self.target.connect_all_brokers:
            return True
        return self._is_connected_to_leaders(usable_topics)

    def _is_connected_to_leaders(self, topics: Sequence[MetadataResponseTopic]) -> bool:
        """Return whether all leaders of these topics are known, and each broker that the write needs was connected."""
        has_all_leaders = all(
            topic.error_code == error_codes.NONE
            and all(partition.leader_id in self.brokers for partition in topic.partitions)
            for topic in topics
        )
        leaders = self.find_leaders()
        needs_leaders = bool(topics) or self.target.connect_all_brokers
        if not has_all_leaders or (needs_leaders and not leaders):
            return False
        return all(node.id in self.connected_nodes for node in leaders)

    def _is_authentication_rejected(self) -> bool:
        """Return whether all connections to bootstrap servers failed, at least one of them during authentication."""
        node_ids = [node.id for node in self.bootstrap_nodes]
        return all(self.client.has_connection_failed(node_id) for node_id in node_ids) and any(
            self.client.authentication_exception(node_id) is not None for node_id in node_ids
        )

    def _can_any_node_respond(self) -> bool:
        """Return whether a node may still respond, because a connection is being established or is ready."""
        has_metadata = self.metadata_response is not None
        nodes = self.find_leaders() if has_metadata or self.connected_nodes else self.bootstrap_nodes
        is_connecting = any(
            node.id not in self.connected_nodes and not self.client.has_connection_failed(node.id) for node in nodes
        )
        if is_connecting:
            return True
        # A connected node may still return the metadata. Once there is metadata, the probe waits only for connections.
        return not has_metadata and bool(self.connected_nodes) and self.find_ready_node() is not None

    def find_leaders(self) -> list[Node]:
        """Return the brokers to which the write may send records, according to the latest metadata.

        The list is empty if there is no metadata yet.
        """
        if self.metadata_response is None:
            return []
        if self.target.connect_all_brokers:
            return list(self.brokers.values())
        leader_ids = {partition.leader_id for topic in self.metadata_response.topics for partition in topic.partitions}
        return [node for node_id, node in sorted(self.brokers.items()) if node_id in leader_ids]
