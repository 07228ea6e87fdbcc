"""Who may talk: the conversation that comes before, and sometimes between, the frames of a channel.

An authenticator does no IO. The channel gives it the frames that arrive and writes the frames that it returns. While
a client authenticates again on a channel in use (KIP-368), answers to earlier requests still come in: `claims` says
which frames belong to the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.system import Buffer

AUTHENTICATION_FRAME_BYTES_MAX = 1024 * 1024
"""Before its login the other end can make us hold no more than this."""

MIN_RESERVED_CORRELATION_ID = 2**31 - 8
"""From here on correlation ids are the conversation's own; other requests of a client must stay below."""

ANONYMOUS = "ANONYMOUS"


class Authenticator(Protocol):
    @property
    def complete(self) -> bool:
        """The other side has logged in. Frames of the login may still have to be written."""

    @property
    def failure(self) -> AuthenticationError | None:
        """Set once the other side is refused; the channel ends with it when the refusal has been written."""

    @property
    def principal(self) -> str:
        """Who the other side is, if it had to say so here."""

    def due(self, now: float) -> bool:
        """A session of this side's is near its end: `start` again before the next request is written."""

    def start(self, now: float) -> Sequence[Buffer] | None:
        """Begin, or begin anew. What to send first, if it is this side that speaks first."""

    def claims(self, frame: memoryview, now: float) -> bool:
        """The frame is part of the conversation. AuthenticationError: the session is over, the frame must not pass."""

    def step(self, frame: memoryview, now: float) -> Sequence[Buffer] | None:
        """Take a frame. Return the answer, if there is one. AuthenticationError: the login failed; send no answer."""


class NoAuthentication:
    """PLAINTEXT and SSL: every connected client is accepted (with mTLS, the handshake has seen to it)."""

    complete = True
    failure: AuthenticationError | None = None
    principal = ANONYMOUS

    def due(self, now: float) -> bool:
        return False

    def start(self, now: float) -> Sequence[Buffer] | None:
        return None

    def claims(self, frame: memoryview, now: float) -> bool:
        return False

    def step(self, frame: memoryview, now: float) -> Sequence[Buffer] | None:
        return None
