"""Protocol classes for the client side and the server side of a SASL mechanism. Neither side does any I/O."""

from __future__ import annotations

from typing import Protocol


class ClientMechanism(Protocol):
    """The client side of a mechanism.

    `start` and `step` raise AuthenticationError if either side rejects the other, and DisconnectedError if the
    credentials cannot be obtained at the moment.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_complete(self) -> bool:
        """Whether the client expects no further token from the broker."""

    def start(self) -> bytes:
        """Return the first token."""

    def step(self, challenge: bytes) -> bytes | None:
        """Process a token from the broker. Return the next token to send, or None if there is nothing more to send."""


class ServerMechanism(Protocol):
    """The server side of a mechanism. `step` raises AuthenticationError to reject a client.

    The error message is sent to the client, so it must not contain secrets.
    """

    @property
    def is_complete(self) -> bool: ...

    @property
    def principal(self) -> str:
        """The authenticated client's name. Valid only once `is_complete` is true."""

    @property
    def credential_lifetime_ms(self) -> float | None:
        """The remaining lifetime of the client's credentials; None if they do not expire."""

    def step(self, token: bytes) -> bytes:
        """Process a token from the client and return the response, which may be empty."""
