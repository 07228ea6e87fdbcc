"""The requests and responses of NetworkClient, and the loss of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.errors import AuthenticationError, UnsupportedVersionError
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange


class ClientRequest(NamedTuple):
    """A request to one node; NetworkClient.new_client_request assigns its correlation id."""

    node_id: int
    message: Message
    correlation_id: int
    created_ms: float
    timeout_ms: float
    expect_response: bool = True
    tag: object = None
    """An object of the caller, returned with the response."""
    versions: VersionRange | None = None
    """Restricts the versions that may be negotiated."""

    @property
    def api_key(self) -> ApiKey:
        return self.message.API_KEY

    def __repr__(self) -> str:
        return f"<{self.api_key.name} request {self.correlation_id} to node {self.node_id}>"


class ClientResponse(NamedTuple):
    """The result of a request: a message, nothing (if no response was expected), or one of four failures."""

    request: ClientRequest
    received_ms: float
    latency_ms: float
    version: int = -1
    message: Message | None = None
    disconnected: bool = False
    """The connection ended before the response. The broker may or may not have executed the request."""
    timed_out: bool = False
    """The response was not received in time; `disconnected` is set as well."""
    version_error: UnsupportedVersionError | None = None
    """The request was not sent: client and broker have no version in common, or the version lacks a field."""
    authentication_error: AuthenticationError | None = None
    reason: str = ""
    """The cause of a missing message, naming the broker."""


@dataclass(frozen=True)
class ConnectionLoss:
    """The reason why a connection ended or could not be established."""

    detail: str
    """The reason without the address of the connection."""
    address: str = ""
    timed_out: bool = False
    expected: bool = False
    """Whether the end of the connection is not a failure: it was idle, or the client closed it to bootstrap again."""
    is_served: bool = False
    """Whether the broker closed a working connection, as brokers do when they restart or when it is idle."""
    authentication_error: AuthenticationError | None = None

    @property
    def reason(self) -> str:
        """The reason with the address of the connection, if it is known."""
        return f"{self.address}: {self.detail}" if self.address else self.detail
