"""A NetworkClient with scripted brokers on a fake system, and helpers that drive it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from spark_kafka_sink.client.client_request import ClientRequest, ClientResponse
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.client.metadata_responses import metadata_response
from tests.client.scripted_broker import ScriptedBroker
from tests.fake_system import FakeSystem

BOOTSTRAP = Node(-1, "b0", 9092)
CONFIG = ClientConfig(("b0:9092",), client_id="test", request_timeout_ms=30_000)


class Rig:
    """A client of the brokers b0, b1, ... at port 9092. Broker b0 is the bootstrap server."""

    def __init__(self, brokers: int = 3, *, bootstrap: tuple[Node, ...] = (BOOTSTRAP,), **options: Any) -> None:
        self.config = replace(CONFIG, **options)
        self.system = FakeSystem()
        self.brokers = [ScriptedBroker(metadata_response(nodes=brokers)) for _ in range(brokers)]
        for index, broker in enumerate(self.brokers):
            self.system.listen(f"b{index}", 9092, broker)
        self.metadata = Metadata(bootstrap, self.config, system=self.system, rng=Random(1))
        self.selector = Selector(
            self.system,
            timeouts=ChannelTimeouts(idle_ms=self.config.connections_max_idle_ms),
        )
        self.client = NetworkClient(self.selector, self.metadata, self.config, system=self.system, rng=Random(2))
        self.responses: list[ClientResponse] = []

    @property
    def now(self) -> float:
        return self.system.now()

    @property
    def broker(self) -> ScriptedBroker:
        return self.brokers[0]

    def node(self, node_id: int) -> Node:
        return self.metadata.snapshot.nodes[node_id]

    def poll(self, timeout_ms: float = 0.0) -> list[ClientResponse]:
        responses = self.client.poll(timeout_ms, self.now)
        self.responses.extend(responses)
        return responses

    def poll_until(self, done: Callable[[], bool], *, limit_ms: float = 600_000, step_ms: float = 1_000) -> None:
        end = self.now + limit_ms
        while not done():
            assert self.now < end, "the condition was not met in time"
            self.poll(step_ms)

    def pass_time(self, duration_ms: float) -> None:
        end = self.now + duration_ms
        while self.now < end:
            self.poll(end - self.now)

    def bootstrap(self) -> Rig:
        self.poll_until(lambda: not self.metadata.snapshot.is_bootstrap)
        return self

    def make_ready(self, node_id: int = 0) -> None:
        self.poll_until(lambda: self.client.ready(self.node(node_id), self.now))

    def end_connection(self, node_id: int) -> None:
        """Close the connection of one node as idle. Advancing the clock would close all idle connections."""
        self.client.disconnect_unresponsive(node_id, "it was idle", self.now)

    def send(self, node_id: int = 0, *, message: Message | None = None, **options: Any) -> ClientRequest:
        """Send a request, which the broker holds until the test responds to it."""
        request_message = message if message is not None else InitProducerIdRequest(transaction_timeout_ms=1)
        request = self.client.new_client_request(node_id, request_message, self.now, **options)
        self.client.send(request, self.now)
        return request

    def deliver(self, node_id: int = 0) -> None:
        """Poll until the broker has received everything that was sent to it."""
        before = -1
        while before != len(self.brokers[node_id].requests):
            before = len(self.brokers[node_id].requests)
            self.poll()
            self.poll()


def ready_rig(node_id: int = 0, **options: Any) -> Rig:
    rig = Rig(**options).bootstrap()
    rig.make_ready(node_id)
    return rig


def rig_with_requests(count: int, **options: Any) -> Rig:
    """Build a Rig in which broker 0 holds `count` requests."""
    rig = ready_rig(**options)
    for _ in range(count):
        rig.send()
        rig.deliver()
    return rig


def all_failed_in_order(rig: Rig, count: int) -> bool:
    """Return whether all `count` requests failed as disconnected, oldest first."""
    ids = [response.request.correlation_id for response in rig.responses]
    return len(ids) == count and ids == sorted(ids) and all(response.disconnected for response in rig.responses)


def list_apis_with_response(rig: Rig) -> list[ApiKey]:
    return [response.request.api_key for response in rig.responses if response.message is not None]
