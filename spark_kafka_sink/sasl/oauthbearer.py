"""OAUTHBEARER (RFC 7628, KIP-255): the client shows a token.

    client  n,,^Aauth=Bearer <token>^A[<extension>=<value>^A ...]^A            ^A is the byte 1
    server  nothing: accepted    or    {"status":"invalid_token", ...}
    client  ^A                         (only after a refusal, so that the server can end the conversation)
    server  fails with the same JSON as its message, as Kafka's broker does

Unsecured tokens (`alg` none) are for tests: they have the form of a JSON Web Token and no signature.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.words import cleaned

MESSAGE_BYTES_MAX = 64 * 1024
_TOKEN = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_CLIENT_FIRST = re.compile(r"n,(?:a=(?P<authzid>[^,]*))?,\x01(?P<pairs>(?:[^\x01]+\x01)*)\x01")
_LATEST_EXPIRY_S = 1e12
_INVALID_TOKEN_MESSAGE = '{"status":"invalid_token"}'

_log = logging.getLogger(__name__)


def extension_fault(name: str, value: str) -> str | None:
    """Why an extension cannot be sent, if it cannot."""
    if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
        return f"the name of extension {name!r} must be letters, and not 'auth'"
    return None if _EXTENSION_VALUE.fullmatch(value) else f"the value of extension {name!r} must be printable ASCII"


class OauthBearerClient:
    name = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not _TOKEN.fullmatch(token):
            raise AuthenticationError("OAUTHBEARER: the token has characters that no bearer token has")
        self._token = token
        self._extensions = dict(extensions or {})
        self._refusal: str | None = None
        self.complete = False

    def __repr__(self) -> str:
        return "<OauthBearerClient>"

    def start(self) -> bytes:
        pairs = [f"auth=Bearer {self._token}", *(f"{name}={value}" for name, value in self._extensions.items())]
        return ("n,,\x01" + "".join(f"{pair}\x01" for pair in pairs) + "\x01").encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self._refusal is not None or self.complete:
            raise AuthenticationError(f"OAUTHBEARER: the broker refused the token: {self._refusal}")
        if not challenge:
            self.complete = True
            return None
        self._refusal = cleaned(challenge.decode(errors="replace"))
        return b"\x01"


@dataclass(frozen=True)
class AcceptedToken:
    principal: str
    lifetime_ms: float | None = None


class OauthBearerServer:
    """`accept` judges a token: who shows it, or AuthenticationError."""

    def __init__(self, accept: Callable[[str], AcceptedToken]) -> None:
        self._accept = accept
        self._rejected = False
        self.complete = False
        self.principal = ""
        self.credential_lifetime_ms: float | None = None

    def step(self, token: bytes) -> bytes:
        if self._rejected:
            raise AuthenticationError(_INVALID_TOKEN_MESSAGE)
        if self.complete:
            raise AuthenticationError("OAUTHBEARER: the conversation is over")
        authzid, bearer = _bearer_token(token)
        try:
            accepted = self._accept(bearer)
        except AuthenticationError as error:
            _log.warning("Rejected a token: %s", error)
            self._rejected = True
            return _INVALID_TOKEN_MESSAGE.encode()
        if authzid and authzid != accepted.principal:
            raise AuthenticationError("OAUTHBEARER: a user may act for himself only")
        self.complete = True
        self.principal = accepted.principal
        self.credential_lifetime_ms = accepted.lifetime_ms
        return b""


def _bearer_token(message: bytes) -> tuple[str | None, str]:
    try:
        parts = _CLIENT_FIRST.fullmatch(message.decode()) if len(message) <= MESSAGE_BYTES_MAX else None
    except UnicodeDecodeError:
        parts = None
    if parts is None:
        raise AuthenticationError("OAUTHBEARER: the first message is malformed")
    pairs = dict(pair.split("=", 1) for pair in parts["pairs"].split("\x01") if "=" in pair)
    scheme, _, bearer = pairs.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(bearer):
        raise AuthenticationError("OAUTHBEARER: the first message has no bearer token")
    return parts["authzid"], bearer


def unsecured_token(claims: Mapping[str, object]) -> str:
    """A token without a signature, which any client can make: for listeners of tests."""
    return f"{_part({'alg': 'none'})}.{_part(dict(claims))}."


def accept_unsecured(token: str, *, now_s: float, principal_claim: str = "sub") -> AcceptedToken:
    """Takes an unsecured token at its word, unless it has expired."""
    header, claims = token_part(token, 0), token_part(token, 1)
    if header.get("alg") != "none" or not token.endswith("."):
        raise AuthenticationError("OAUTHBEARER: only unsecured tokens are accepted here")
    principal, expires_s = claims.get(principal_claim), token_expiry_s(claims)
    if not isinstance(principal, str) or not principal:
        raise AuthenticationError(f"OAUTHBEARER: the token has no claim {principal_claim!r}")
    if expires_s is None or expires_s <= now_s:
        raise AuthenticationError("OAUTHBEARER: the token has expired, or does not say when it will")
    return AcceptedToken(principal, (expires_s - now_s) * 1000)


def token_part(token: str, index: int) -> dict[str, object]:
    """The header (0) or the claims (1) of a JSON Web Token. Nothing is verified."""
    parts = token.split(".")
    try:
        encoded = parts[index]
        content = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (IndexError, ValueError, binascii.Error, RecursionError) as error:
        raise AuthenticationError("OAUTHBEARER: the token is not a JSON Web Token") from error
    if not isinstance(content, dict):
        raise AuthenticationError("OAUTHBEARER: the token is not a JSON Web Token")
    return content


def token_expiry_s(claims: Mapping[str, object]) -> float | None:
    """When a token ends, in seconds since the epoch, if it says so."""
    expires_s = claims.get("exp")
    if not isinstance(expires_s, int | float) or isinstance(expires_s, bool) or not abs(expires_s) < _LATEST_EXPIRY_S:
        return None
    return float(expires_s)


def _part(content: dict[str, object]) -> str:
    data = json.dumps(content, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
