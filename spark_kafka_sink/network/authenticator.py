"""Authenticator: the authentication of a channel, before and between the frames of its requests.

An authenticator does no I/O. The channel passes it the frames it has received and writes the frames that it returns.
When a client re-authenticates on an open connection (KIP-368), responses to earlier requests may still arrive;
`is_authentication_frame` tells them apart from the frames of the authentication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.system import Buffer

MAX_AUTHENTICATION_FRAME_BYTES = 1024 * 1024
"""The longest frame that an unauthenticated peer can make a channel hold in memory."""

MIN_RESERVED_CORRELATION_ID = 2**31 - 8
"""The lowest correlation id that is reserved for authentication. The ids of a client's other requests are lower."""

ANONYMOUS = "ANONYMOUS"


class Authenticator(Protocol):
    @property
    def is_complete(self) -> bool:
        """Whether authentication has succeeded. Its last frame may not be written yet."""

    @property
    def failure(self) -> AuthenticationError | None:
        """The reason for rejecting the peer, if it was rejected.

        The channel raises it once the error response has been written.
        """

    @property
    def principal(self) -> str:
        """The authenticated name of the peer; `ANONYMOUS` if this authenticator does not identify the peer."""

    def is_reauthentication_due(self, now_ms: float) -> bool:
        """Return whether the session expires soon, so that `start` must be called before the next request is sent."""

    def start(self, now_ms: float) -> Sequence[Buffer] | None:
        """Begin to authenticate or to re-authenticate.

        Return the first frame to send, or None if the peer sends first.
        """

    def is_authentication_frame(self, frame: memoryview, now_ms: float) -> bool:
        """Return whether the frame belongs to an authentication, or begins a new one.

        Raise AuthenticationError if the session has expired, in which case the frame must not be processed.
        """

    def handle_frame(self, frame: memoryview, now_ms: float) -> Sequence[Buffer] | None:
        """Process a frame of the authentication and return the frame to send next, if any.

        Raise AuthenticationError if authentication failed and no frame is to be sent.
        """


class NoAuthentication:
    """Accepts every peer, for PLAINTEXT and SSL. With mutual TLS, the TLS handshake has verified the client."""

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
