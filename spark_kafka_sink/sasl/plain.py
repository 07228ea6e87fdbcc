"""The SASL mechanism PLAIN (RFC 4616), which sends the password in clear text.

The client sends a single message: the authorization id, the user name and the password, separated by NUL bytes.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from spark_kafka_sink.errors import AuthenticationError

_MAX_MESSAGE_BYTES = 64 * 1024


class PlainClient:
    """Client side of PLAIN."""

    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self.is_complete = False

    def __repr__(self) -> str:
        return f"<PlainClient {self._username}>"

    def start(self) -> bytes:
        self.is_complete = True
        return f"\0{self._username}\0{self._password}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        raise AuthenticationError("PLAIN: the broker sent a challenge, but PLAIN has only one message")


class PlainServer:
    """Server side of PLAIN. `users` maps user names to passwords."""

    credential_lifetime_ms: float | None = None

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.is_complete = False
        self.principal = ""

    def step(self, token: bytes) -> bytes:
        is_too_long = len(token) > _MAX_MESSAGE_BYTES
        fields = [] if is_too_long else token.split(b"\0")
        if self.is_complete or len(fields) != 3:
            raise AuthenticationError("PLAIN: expected one message of three fields")
        authorization_id, encoded_username, password = fields
        # Kafka does not let a client act for another user, so the authorization id may only repeat the user name.
        if authorization_id and authorization_id != encoded_username:
            raise AuthenticationError("PLAIN: the authorization id does not match the user name")
        username = encoded_username.decode(errors="replace")
        expected_password = self._users.get(username)
        # Compare a password for unknown users as well, so that the response time does not reveal which users exist.
        is_password_equal = hmac.compare_digest(password, (expected_password or "").encode())
        if expected_password is None or not is_password_equal:
            raise AuthenticationError("PLAIN: invalid user name or password")
        self.is_complete = True
        self.principal = username
        return b""
