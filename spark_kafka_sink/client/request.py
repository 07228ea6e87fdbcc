"""A request on its way through the NetworkClient, and its response, or the loss of its connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.errors import AuthenticationError, UnsupportedVersionError
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange


class ClientRequest(NamedTuple):
    """Made by NetworkClient.new_client_request, which numbers it."""

    node_id: int
    message: Message
    correlation_id: int
    created_ms: float
    timeout_ms: float
    expect_response: bool = True
    tag: object = None
    """The caller's own; comes back with the response."""
    versions: VersionRange | None = None
    """Narrows what may be negotiated."""

    @property
    def api_key(self) -> ApiKey:
        return self.message.API_KEY

    def __repr__(self) -> str:
        return f"<{self.api_key.name} request {self.correlation_id} to node {self.node_id}>"


class ClientResponse(NamedTuple):
    """How a request ended: with a message; or sent, when no answer was expected; or `failed` in one of four ways."""

    request: ClientRequest
    received_ms: float
    latency_ms: float
    version: int = -1
    message: Message | None = None
    disconnected: bool = False
    """The connection ended first. The broker may have carried the request out, or not."""
    timed_out: bool = False
    """The request ended because its answer did not come in time; then `disconnected` is set, too."""
    version_error: UnsupportedVersionError | None = None
    """The request was never sent."""
    authentication_error: AuthenticationError | None = None
    reason: str = ""
    """Why there is no message, in words that name the broker."""


@dataclass(frozen=True)
class Loss:
    """Why a connection is gone, or did not come about."""

    reason: str
    timed_out: bool = False
    expected: bool = False
    """No fault: it was idle, or this client closed it."""
    served: bool = False
    """The connection had been in use, and the broker ended it: brokers do so when they restart or find it idle."""
    authentication_error: AuthenticationError | None = None
