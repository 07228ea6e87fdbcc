"""A request that sends any message to a node, for tests that build their own messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.request import BrokerRoute, Request
from spark_kafka_sink.requests.verdicts import Classification, Verdict

ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, eq=False)
class NodeMessage(Request[Message]):
    """One message to one node. Every response is final."""

    action = "send a message"
    node: Node
    content: Message
    versions: VersionRange | None = None

    @property
    def api_key(self) -> ApiKey:  # type: ignore[override]
        return self.content.API_KEY

    @property
    def keys(self) -> Sequence[str]:
        return ("",)

    def route(self, key: str) -> BrokerRoute:
        return BrokerRoute(self.node)

    def build_message(self, version: int) -> Message:
        return self.content

    def classify(self, response: Message) -> Classification:
        return Classification(Verdict.DONE, codes.NONE)


def send_to(
    client: BlockingClient,
    node: Node,
    response_type: type[ResponseT],
    message: Message,
    *,
    versions: VersionRange | None = None,
) -> ResponseT:
    """Send a message once and return its response. Raise NetworkError if the node is lost."""
    call = client.begin([NodeMessage(node, message, versions)], should_retry=False)
    response = client.finish(call)[""]
    assert isinstance(response, response_type)
    return response
