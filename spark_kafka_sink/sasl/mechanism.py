"""Interfaces of the client and the server side of a SASL mechanism, which exchange tokens and do no I/O."""

from __future__ import annotations

from typing import Protocol


class ClientMechanism(Protocol):
    """Client side. Its methods raise AuthenticationError if either side rejects the other."""

    @property
    def name(self) -> str: ...

    @property
    def is_complete(self) -> bool:
        """Whether the client expects no further token."""

    def start(self) -> bytes:
        """Return the first token."""

    def step(self, challenge: bytes) -> bytes | None:
        """Process a token of the broker. Return the next token, or None if the client has nothing more to send."""


class ServerMechanism(Protocol):
    """Server side. `step` raises AuthenticationError to reject a client.

    The message of the error is sent to the client, so it must not contain secrets.
    """

    @property
    def is_complete(self) -> bool: ...

    @property
    def principal(self) -> str:
        """Name of the authenticated client, once `is_complete` is true."""

    @property
    def credential_lifetime_ms(self) -> float | None:
        """Remaining validity of the client's credentials, or None if they do not expire."""

    def step(self, token: bytes) -> bytes:
        """Process a token of the client and return the response, which may be empty."""
