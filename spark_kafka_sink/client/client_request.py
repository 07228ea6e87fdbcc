"""NetworkClient's requests and responses, and the description of a lost connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.errors import AuthenticationError, UnsupportedVersionError
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange


class ClientRequest(NamedTuple):
    """A request to one node. NetworkClient.new_client_request creates it and assigns the correlation id."""

    node_id: int
    message: Message
    correlation_id: int
    created_ms: float
    timeout_ms: float
    expect_response: bool = True
    tag: object = None
    """Any object; the caller gets it back in the response's `request`."""
    versions: VersionRange | None = None
    """If set, only these versions may be used."""

    @property
    def api_key(self) -> ApiKey:
        return self.message.API_KEY

    def __repr__(self) -> str:
        return f"<{self.api_key.name} request {self.correlation_id} to node {self.node_id}>"


class ClientResponse(NamedTuple):
    """The result of a request: the response message, or one of the failures below.

    `message` is also None if the request was sent but expects no response.
    """

    request: ClientRequest
    received_ms: float
    """When the response arrived or the failure was detected, on the monotonic clock."""
    latency_ms: float
    """The time from the request's creation until `received_ms`."""
    version: int = -1
    message: Message | None = None
    disconnected: bool = False
    """Whether the connection ended before a response arrived. The broker may or may not have processed the request."""
    timed_out: bool = False
    """Whether the connection was closed because of a timeout; `disconnected` is set as well."""
    version_error: UnsupportedVersionError | None = None
    """The error of a request that was not sent: there is no common version, or the common version lacks a field."""
    authentication_error: AuthenticationError | None = None
    reason: str = ""
    """Why there is no response message. The text names the broker."""


_RESPONDING_BROKER_REMEDY = "Check the log and the load of the broker, and of any proxy in front of it."


@dataclass(frozen=True)
class ConnectionLoss:
    """Describes why a connection ended or could not be established."""

    detail: str
    """The reason, without the connection's address or the remedy."""
    address: str = ""
    """The connection's address, or an empty string if it is unknown."""
    timed_out: bool = False
    is_expected: bool = False
    """Whether the client closed the connection on purpose, because it was idle or in order to rebootstrap."""
    was_working: bool = False
    """Whether the connection was working before. Brokers close idle connections, and all connections on a restart."""
    has_responded: bool = False
    """Whether the peer had responded, so that its address is correct and can be reached."""
    authentication_error: AuthenticationError | None = None
    remedy: str = ""
    """The remedy, if the client could not obtain its credentials or the broker rejected them; otherwise empty."""

    def suggest_remedy(self, unreachable_remedy: str) -> str:
        """Return the remedy for the loss. `unreachable_remedy`: the remedy if the peer had not responded."""
        return self.remedy or (_RESPONDING_BROKER_REMEDY if self.has_responded else unreachable_remedy)

    @property
    def reason(self) -> str:
        """The reason, preceded by the connection's address if it is known, and followed by the remedy."""
        text = f"{self.detail.rstrip('.')}. {self.remedy}" if self.remedy else self.detail
        return f"{self.address}: {text}" if self.address else text
