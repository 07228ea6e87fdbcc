"""Probe: the connections of one preflight, what has come of them so far, and requests over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import FINAL_TOPIC_ERRORS, Metadata
from spark_kafka_sink.client.network_client import new_network_client
from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.preflight.checks import PreflightTimeouts, Target
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from spark_kafka_sink.requests.pending import Call, PendingRequests
from spark_kafka_sink.requests.polled import PolledRequests
from spark_kafka_sink.requests.request import Request, ResponseT
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.topics import DescribeTopics

_LOOK_AGAIN_MS = 50.0
_PAUSE_MS = 250.0


@dataclass(frozen=True)
class Exchange(Generic[ResponseT]):
    response: ResponseT
    wall_ms: int
    """The time by this machine's clock, halfway between request and response."""


class _RequestCall(Call[ResponseT]):
    """A request of a check. Its last response counts, also one with a retriable error."""

    def __init__(self, request: Request[ResponseT], wall_ms: Callable[[], int]) -> None:
        super().__init__([request])
        self.exchange: Exchange[ResponseT] | None = None
        self._wall_ms = wall_ms
        self._sent_ms = 0

    def may_send(self, request: Request[ResponseT]) -> bool:
        self._sent_ms = self._wall_ms()
        return True

    def responded(self, request: Request[ResponseT], response: ResponseT) -> None:
        self.exchange = Exchange(response, (self._sent_ms + self._wall_ms()) // 2)


class _TopicsCall(Call[MetadataResponse]):
    """Describes topics again after each response, since a missing topic, leader or address may come."""

    def __init__(self, request: DescribeTopics) -> None:
        super().__init__([request])
        self.answer: MetadataResponse | None = None
        self.brokers: dict[int, Node] = {}

    def done(self, request: Request[MetadataResponse], key: str, response: MetadataResponse, now: float) -> None:
        self.answer = response
        named = [Node(one.node_id, one.host, one.port, one.rack) for one in response.brokers]
        self.brokers = {node.id: node for node in named} or self.brokers
        self.due[key] = now + _PAUSE_MS


class Probe:
    """Used by one thread; `close` it."""

    def __init__(
        self, config: ClientConfig, nodes: Sequence[Node], target: Target, timeouts: PreflightTimeouts, system: System
    ) -> None:
        """ConfigurationError if the files that the security options name are not what they should be."""
        self.bootstrap = nodes
        self.target = target
        self.reached: dict[int, Node] = {}
        """Nodes that were connected to, and have answered."""
        self.is_settled = False
        """The probe waits for nothing more: all is well, or will not become so."""
        metadata = Metadata(nodes, config, system=system, allow_auto_topic_creation=False)
        self.client = new_network_client(config, metadata, system=system)
        pending = PendingRequests(Routing(metadata, lambda now: self.ready_node()), lambda failures: _PAUSE_MS)
        self._requests = PolledRequests(self.client, pending, timeouts.response_ms)
        auto_create = target.create_topics and target.new_topic is None
        self._topics = _TopicsCall(DescribeTopics(target.topics, auto_create, with_operations=True))
        self._timeouts = timeouts
        self._system = system

    @property
    def answer(self) -> MetadataResponse | None:
        """The last description of the topics."""
        return self._topics.answer

    @property
    def no_answer(self) -> str:
        """Why there is no answer, as far as that is known."""
        return str(self._topics.error or self._topics.last_failure or "")

    @property
    def brokers(self) -> dict[int, Node]:
        """All brokers of the cluster, by their ids, as the last answer has them. The client forgets them when it can
        reach none, and asks the bootstrap servers once more."""
        return self._topics.brokers

    # --- looking

    def close(self) -> None:
        self.client.close()

    def run(self) -> None:
        """Connect and describe the topics, until all is well or will not become so."""
        system, timeouts = self._system, self._timeouts
        started = system.now()
        deadline = started + timeouts.response_ms
        self._requests.add(self._topics)
        while (now := system.now()) < deadline:
            self.is_settled = self._is_settled()
            if self.is_settled:
                break
            if now - started >= timeouts.retry_ms and not self._is_waiting():
                break
            for node in (*self.bootstrap, *self.leaders()):
                if node.id not in self.reached and self.client.ready(node, now):
                    self.reached[node.id] = node
            self._poll(deadline - now, now)
        self._requests.remove(self._topics)

    def send(self, request: Request[ResponseT]) -> Exchange[ResponseT]:
        """Send a request to any node that was reached, and return the last response.

        Retriable errors are retried as long as they may pass. NetworkError if no node responds.
        """
        call = _RequestCall(request, self._system.wall_ms)
        started = self._system.now()
        self._requests.add(call)
        try:
            while not call.is_done:
                now = self._system.now()
                call.retries = now - started < self._timeouts.retry_ms
                limit_ms = self._timeouts.retry_ms if call.last_failure else self._timeouts.response_ms
                if not call.in_flight and self.ready_node() is None and now - started >= limit_ms:
                    break
                self._poll(_LOOK_AGAIN_MS, now)
        finally:
            self._requests.remove(call)
        if call.exchange is None:
            raise call.error or call.last_failure or DisconnectedError("the connections were lost again")
        return call.exchange

    def _poll(self, timeout_ms: float, now: float) -> None:
        delay_ms = self._requests.send_due(now)
        for response in self.client.poll(min(_LOOK_AGAIN_MS, timeout_ms, delay_ms), now):
            self._requests.responded(response)

    def is_to_be_created(self, topic: MetadataResponseTopic) -> bool:
        """The topic is missing, and is created before the write begins."""
        new = self.target.new_topic
        is_missing = topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return new is not None and is_missing and topic.name == new.name

    def ready_node(self) -> Node | None:
        """One that can be asked at once."""
        now = self._system.now()
        return next((node for node in self.reached.values() if self.client.is_ready(node.id, now)), None)

    def _is_settled(self) -> bool:
        if self.answer is None:
            return self._topics.is_done or self._is_refused()
        awaited = [topic for topic in self.answer.topics if not self.is_to_be_created(topic)]
        topics = [topic for topic in awaited if topic.error_code not in FINAL_TOPIC_ERRORS]
        if len(topics) < len(awaited) and not self.target.every_broker:
            return True
        known = self.brokers
        has_leaders = all(
            topic.error_code == error_codes.NONE and all(part.leader_id in known for part in topic.partitions)
            for topic in topics
        )
        leaders = self.leaders()
        names_brokers = bool(topics) or self.target.every_broker
        has_leaders = has_leaders and (bool(leaders) or not names_brokers)
        return has_leaders and all(node.id in self.reached for node in leaders)

    def _is_refused(self) -> bool:
        """No bootstrap server can be used, and one or more of them has refused the credentials."""
        ids = [node.id for node in self.bootstrap]
        return all(self.client.connection_failed(node_id) for node_id in ids) and any(
            self.client.authentication_exception(node_id) is not None for node_id in ids
        )

    def _is_waiting(self) -> bool:
        """A node may still answer: a connection to it is being made, or stands."""
        missing = self.bootstrap if self.answer is None and not self.reached else self.leaders()
        connecting = any(node.id not in self.reached and not self.client.connection_failed(node.id) for node in missing)
        return connecting or (self.answer is None and bool(self.reached) and self.ready_node() is not None)

    def leaders(self) -> list[Node]:
        """The brokers that the records may go to."""
        if self.answer is None:
            return []
        if self.target.every_broker:
            return list(self.brokers.values())
        leaders = {part.leader_id for topic in self.answer.topics for part in topic.partitions}
        return [node for node_id, node in sorted(self.brokers.items()) if node_id in leaders]
