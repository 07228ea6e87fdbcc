"""Authenticator: authenticates a channel when it connects, and again before its session expires (KIP-368).

An authenticator does no I/O on its channel. The channel passes received frames to it and writes the frames that it
returns. Starting a SASL exchange may still block, because a token may have to be requested first.

While a client re-authenticates, responses to earlier requests may still arrive on the same connection.
`is_authentication_frame` tells them apart from the frames of the authentication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.system import Buffer

MAX_AUTHENTICATION_FRAME_BYTES = 1024 * 1024
"""The longest frame that a channel accepts from an unauthenticated peer."""

MIN_RESERVED_CORRELATION_ID = 2**31 - 8
"""The lowest correlation id of an authentication request. All other requests of a client have lower ids.

A client that re-authenticates can therefore tell which responses belong to the authentication.
"""

ANONYMOUS = "ANONYMOUS"
"""The principal of a peer that was not identified, as in Kafka."""


class Authenticator(Protocol):
    """The state machine that authenticates one channel. It does no I/O on the channel."""

    @property
    def is_complete(self) -> bool:
        """Whether authentication has succeeded. The last authentication frame may still have to be written."""

    @property
    def failure(self) -> AuthenticationError | None:
        """The reason why the peer was rejected; None if it was not.

        The channel raises this error once the error response, if there is one, has been written.
        """

    @property
    def principal(self) -> str:
        """The peer's authenticated name; `ANONYMOUS` if this authenticator does not identify peers."""

    def is_reauthentication_due(self, now_ms: float) -> bool:
        """Return whether the session is about to expire. If so, call `start` before sending the next request."""

    def start(self, now_ms: float) -> Sequence[Buffer] | None:
        """Start authentication or re-authentication.

        Return the first frame to send, or None if the peer sends the first frame. Raise AuthenticationError if there
        are no credentials to authenticate with.
        """

    def is_authentication_frame(self, frame: memoryview, now_ms: float) -> bool:
        """Return whether the frame belongs to the current authentication or starts a new one.

        Raise AuthenticationError if the session has expired. The frame must then not be processed.
        """

    def handle_frame(self, frame: memoryview, now_ms: float) -> Sequence[Buffer] | None:
        """Process an authentication frame. Return the next frame to send, or None if there is none.

        Raise AuthenticationError if authentication failed and there is no error response to send. If there is one,
        set `failure` and return the response.
        """


class NoAuthentication:
    """Accepts every peer; used for PLAINTEXT and SSL. With mutual TLS, the handshake has verified the client."""

    is_complete = True
    failure: AuthenticationError | None = None
    principal = ANONYMOUS

    def is_reauthentication_due(self, now_ms: float) -> bool:
        return False

    def start(self, now_ms: float) -> Sequence[Buffer] | None:
        return None

    def is_authentication_frame(self, frame: memoryview, now_ms: float) -> bool:
        return False

    def handle_frame(self, frame: memoryview, now_ms: float) -> Sequence[Buffer] | None:
        return None
