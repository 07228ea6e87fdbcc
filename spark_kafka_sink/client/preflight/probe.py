"""Probe: the connections and questions of one preflight, and what has come of them so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import FINAL_TOPIC_ERRORS, Metadata
from spark_kafka_sink.client.network_client import new_network_client
from spark_kafka_sink.client.preflight.checks import Patience, Target
from spark_kafka_sink.client.request import ClientResponse
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.schema import VersionRange

_LOOK_AGAIN_MS = 50.0
_ASK_AGAIN_MS = 250.0
_OPERATIONS_FROM_VERSION = 8


class Answer(NamedTuple):
    message: Message | None
    reason: str
    """Why there is no message."""
    wall_ms: int
    """The time by this machine's clock, half-way between request and answer."""


class Probe:
    """Used by one thread; `close` it."""

    def __init__(self, config: ClientConfig, nodes: Sequence[Node], target: Target, system: System) -> None:
        """ConfigurationError if the files that the security options name are not what they should be."""
        self.bootstrap = nodes
        self.target = target
        self.reached: dict[int, Node] = {}
        """Nodes that were connected to, and have answered."""
        self.answer: MetadataResponse | None = None
        self.no_answer = ""
        """Why there is no answer, as far as that is known."""
        self.is_settled = False
        """The probe waits for nothing more: all is well, or will not become so."""
        metadata = Metadata(nodes, config, system=system, allow_auto_topic_creation=False)
        self.brokers: dict[int, Node] = {}
        """All brokers of the cluster, by their ids, as the last answer has them. The client forgets them when it can
        reach none, and asks the bootstrap servers once more."""
        self.client = new_network_client(config, metadata, system=system)
        self._system = system
        self._is_asking = False
        self._ask_at_ms = 0.0

    # --- looking

    def close(self) -> None:
        self.client.close()

    def run(self, patience: Patience) -> None:
        """Connect and ask for topics, until all is well or will not become so."""
        system = self._system
        started = system.now()
        deadline = started + patience.silence_ms
        while (now := system.now()) < deadline:
            self.is_settled = self._is_settled()
            if self.is_settled:
                break
            if now - started >= patience.faults_ms and not self._is_waiting():
                break
            for node in (*self.bootstrap, *self.leaders()):
                if node.id not in self.reached and self.client.ready(node, now):
                    self.reached[node.id] = node
            self._ask(now)
            for response in self.client.poll(min(_LOOK_AGAIN_MS, deadline - now), now):
                self._take(response, now)

    def now(self) -> float:
        return self._system.now()

    def pause(self) -> None:
        """Before a question is asked again."""
        until = self.now() + _ASK_AGAIN_MS
        while (now := self.now()) < until:
            self.client.poll(until - now, now)

    def is_to_be_created(self, topic: MetadataResponseTopic) -> bool:
        """The topic is missing, and is created before the write begins."""
        new = self.target.new_topic
        is_missing = topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return new is not None and is_missing and topic.name == new.name

    def ready_node(self) -> Node | None:
        """One that can be asked at once."""
        now = self._system.now()
        return next((node for node in self.reached.values() if self.client.is_ready(node.id, now)), None)

    def ask(self, message: Message, *, versions: VersionRange | None, patience_ms: float) -> Answer:
        """One question to any node that was reached."""
        deadline = self._system.now() + patience_ms
        while (node := self.ready_node()) is None:
            now = self._system.now()
            if now >= deadline:
                return Answer(None, "the connections were lost again", 0)
            self.client.poll(min(_LOOK_AGAIN_MS, deadline - now), now)
        now, sent_ms = self._system.now(), self._system.wall_ms()
        request = self.client.new_client_request(node.id, message, now, timeout_ms=patience_ms, versions=versions)
        self.client.send(request, now)
        while True:
            for response in self.client.poll(patience_ms, self._system.now()):
                if response.request is request:
                    return Answer(response.message, response.reason, (sent_ms + self._system.wall_ms()) // 2)

    def _ask(self, now: float) -> None:
        """Ask again and again, for what is missing may come: a topic, a leader, a leader at another address."""
        node = self.ready_node()
        if node is None or self._is_asking or now < self._ask_at_ms:
            return
        version = self.client.version_for(node.id, ApiKey.METADATA)
        question = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in self.target.topics],
            allow_auto_topic_creation=self.target.create_topics and self.target.new_topic is None,
            include_topic_authorized_operations=version >= _OPERATIONS_FROM_VERSION,
        )
        self.client.send(self.client.new_client_request(node.id, question, now), now)
        self._is_asking = True

    def _take(self, response: ClientResponse, now: float) -> None:
        self._is_asking = False
        self._ask_at_ms = now + _ASK_AGAIN_MS
        if isinstance(response.message, MetadataResponse):
            self.answer = response.message
            named = [Node(one.node_id, one.host, one.port, one.rack) for one in response.message.brokers]
            self.brokers = {node.id: node for node in named} or self.brokers
        else:
            self.no_answer = response.reason

    def _is_settled(self) -> bool:
        if self.answer is None:
            return self._is_refused()
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
