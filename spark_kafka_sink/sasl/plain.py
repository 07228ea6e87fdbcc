"""PLAIN (RFC 4616): one message, `authorization id NUL user NUL password`. Who reads the line reads the password."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from spark_kafka_sink.errors import AuthenticationError

MESSAGE_BYTES_MAX = 64 * 1024


class PlainClient:
    name = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self.complete = False

    def __repr__(self) -> str:
        return f"<PlainClient {self._username}>"

    def start(self) -> bytes:
        self.complete = True
        return f"\0{self._username}\0{self._password}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        raise AuthenticationError("PLAIN: the broker asks for more, but PLAIN has one message only")


class PlainServer:
    """`users` holds the password of each user."""

    credential_lifetime_ms: float | None = None

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.complete = False
        self.principal = ""

    def step(self, token: bytes) -> bytes:
        fields = token.split(b"\0") if len(token) <= MESSAGE_BYTES_MAX else []
        if self.complete or len(fields) != 3:
            raise AuthenticationError("PLAIN: expected one message of three fields")
        authorization_id, username, password = fields
        if authorization_id and authorization_id != username:
            raise AuthenticationError("PLAIN: a user may act for himself only")
        user = username.decode(errors="replace")
        expected = self._users.get(user)
        # The comparison is made for unknown users too: its time does not show which users exist.
        matches = hmac.compare_digest(password, (expected or "").encode())
        if expected is None or not matches:
            raise AuthenticationError("PLAIN: invalid user name or password")
        self.complete = True
        self.principal = user
        return b""
