"""The two sides of a SASL conversation: tokens in, tokens out, no IO."""

from __future__ import annotations

from typing import Protocol


class ClientConversation(Protocol):
    """The client's side. AuthenticationError: the other side is refused, or has refused us."""

    @property
    def name(self) -> str: ...

    @property
    def complete(self) -> bool:
        """Nothing more is expected of the other side's tokens."""

    def start(self) -> bytes:
        """The first token."""

    def step(self, challenge: bytes) -> bytes | None:
        """Take the other side's token; the next of ours, if there is one."""


class ServerConversation(Protocol):
    """The listener's side. AuthenticationError: refused; its words go to the client and have no secrets."""

    @property
    def complete(self) -> bool: ...

    @property
    def principal(self) -> str:
        """Who the client is, once complete."""

    @property
    def credential_lifetime_ms(self) -> float | None:
        """How much longer the client's credentials are valid; None if they have no end."""

    def step(self, token: bytes) -> bytes:
        """Take the client's token; the answer, which may be empty."""
