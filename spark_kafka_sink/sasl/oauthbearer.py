"""The SASL mechanism OAUTHBEARER (RFC 7628, KIP-255), in which the client presents a bearer token.

    client  n,,^Aauth=Bearer <token>^A[<extension>=<value>^A ...]^A            ^A is the byte 1
    server  an empty message if it accepts the token, otherwise {"status":"invalid_token", ...}
    client  ^A                       (only after a rejection, so that the server can end the authentication)
    server  fails, like a Kafka broker, with the same JSON as its error message

Unsecured tokens are JSON Web Tokens with the algorithm `none`, that is, without a signature. They are meant for tests.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import AuthenticationError

_GS2_HEADER = "n,,"
"""The header of a client that uses neither channel binding nor an authorization id."""
_SEPARATOR = "\x01"
_MAX_MESSAGE_BYTES = 64 * 1024
_TOKEN_PATTERN = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_EXTENSION_NAME_PATTERN = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE_PATTERN = re.compile(r"[\x21-\x7e \t\r\n]+")
_CLIENT_FIRST_PATTERN = re.compile(r"n,(?:a=(?P<authzid>[^,]*))?,\x01(?P<pairs>(?:[^\x01]+\x01)*)\x01")
_MAX_EXPIRY_S = 1e12
"""Expiry times from this Unix time on are invalid. It is far beyond the year 9999."""
_INVALID_TOKEN_MESSAGE = '{"status":"invalid_token"}'

_log = logging.getLogger(__name__)


def find_extension_error(name: str, value: str) -> str | None:
    """Return why an extension is invalid, or None if it is valid."""
    # In a message, the key `auth` names the token (RFC 7628).
    if name == "auth" or not _EXTENSION_NAME_PATTERN.fullmatch(name):
        return f"the name of extension {name!r} must be letters, and not 'auth'"
    if not _EXTENSION_VALUE_PATTERN.fullmatch(value):
        return f"the value of extension {name!r} must be printable ASCII"
    return None


class OauthBearerClient:
    """Client side of OAUTHBEARER. `extensions` are SASL extensions to send with the token.

    The constructor raises AuthenticationError if the token contains characters that are not allowed in one.
    """

    name = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not _TOKEN_PATTERN.fullmatch(token):
            raise AuthenticationError("OAUTHBEARER: the token has characters that are not allowed in a bearer token")
        self._token = token
        self._extensions = dict(extensions or {})
        self._error_response: str | None = None
        self.is_complete = False

    def __repr__(self) -> str:
        return "<OauthBearerClient>"

    def start(self) -> bytes:
        pairs = [f"auth=Bearer {self._token}", *(f"{name}={value}" for name, value in self._extensions.items())]
        terminated_pairs = "".join(pair + _SEPARATOR for pair in pairs)
        return f"{_GS2_HEADER}{_SEPARATOR}{terminated_pairs}{_SEPARATOR}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self.is_complete:
            raise AuthenticationError("OAUTHBEARER: the broker sent a message after authentication had ended")
        if self._error_response is not None:
            raise AuthenticationError(f"OAUTHBEARER: the broker rejected the token: {self._error_response}")
        if not challenge:
            self.is_complete = True
            return None
        self._error_response = sanitize(challenge.decode(errors="replace"))
        # The challenge describes an error. Acknowledge it, so that the broker fails the authentication.
        return _SEPARATOR.encode()


@dataclass(frozen=True)
class AcceptedToken:
    """A valid token's principal and remaining lifetime. The lifetime is None if the token does not expire."""

    principal: str
    lifetime_ms: float | None = None


class OauthBearerServer:
    """Server side of OAUTHBEARER. `validate_token` returns an AcceptedToken or raises AuthenticationError."""

    def __init__(self, validate_token: Callable[[str], AcceptedToken]) -> None:
        self._validate_token = validate_token
        self._is_rejected = False
        self.is_complete = False
        self.principal = ""
        self.credential_lifetime_ms: float | None = None

    def step(self, token: bytes) -> bytes:
        if self._is_rejected:
            raise AuthenticationError(_INVALID_TOKEN_MESSAGE)
        if self.is_complete:
            raise AuthenticationError("OAUTHBEARER: the client sent a message after authentication had ended")
        authorization_id, bearer_token = _parse_client_first_message(token)
        try:
            accepted_token = self._validate_token(bearer_token)
        except AuthenticationError as error:
            _log.warning("Rejected an OAUTHBEARER token: %s", error)
            # The exchange fails with the client's next message, which acknowledges the error.
            self._is_rejected = True
            return _INVALID_TOKEN_MESSAGE.encode()
        if authorization_id and authorization_id != accepted_token.principal:
            raise AuthenticationError("OAUTHBEARER: the authorization id does not match the token's principal")
        self.is_complete = True
        self.principal = accepted_token.principal
        self.credential_lifetime_ms = accepted_token.lifetime_ms
        return b""


def _parse_client_first_message(message: bytes) -> tuple[str | None, str]:
    """Return the authorization id (None if there is none) and the token.

    Raise AuthenticationError if the message is malformed or has no token.
    """
    parts = None
    if len(message) <= _MAX_MESSAGE_BYTES:
        with contextlib.suppress(UnicodeDecodeError):
            parts = _CLIENT_FIRST_PATTERN.fullmatch(message.decode())
    if parts is None:
        raise AuthenticationError("OAUTHBEARER: the first message is malformed")
    pairs = dict(pair.split("=", 1) for pair in parts["pairs"].split(_SEPARATOR) if "=" in pair)
    scheme, _, bearer_token = pairs.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN_PATTERN.fullmatch(bearer_token):
        raise AuthenticationError("OAUTHBEARER: the first message has no bearer token")
    return parts["authzid"], bearer_token


def build_unsecured_token(claims: Mapping[str, object]) -> str:
    """Build an unsigned token for tests."""
    return f"{_encode_token_part({'alg': 'none'})}.{_encode_token_part(dict(claims))}."


def validate_unsecured_token(token: str, *, now_s: float, principal_claim: str = "sub") -> AcceptedToken:
    """Accept any unsecured token that has not expired. Without a signature, its claims cannot be verified.

    Raise AuthenticationError for all other tokens.

    `now_s`: the current Unix time.
    `principal_claim`: the claim that contains the client's name.
    """
    header = decode_token_header(token)
    claims = decode_token_claims(token)
    if header.get("alg") != "none" or not token.endswith("."):  # the signature, after the last dot, is empty
        raise AuthenticationError("OAUTHBEARER: only unsigned tokens are accepted here")
    principal = claims.get(principal_claim)
    expires_at_s = parse_token_expiry_s(claims)
    if not isinstance(principal, str) or not principal:
        raise AuthenticationError(f"OAUTHBEARER: the token has no claim {principal_claim!r}")
    if expires_at_s is None or expires_at_s <= now_s:
        raise AuthenticationError("OAUTHBEARER: the token has expired, or it has no claim 'exp'")
    return AcceptedToken(principal, (expires_at_s - now_s) * 1000)


def decode_token_header(token: str) -> dict[str, object]:
    """Decode a JSON Web Token's header. Raise AuthenticationError if it is not a JSON object in base64url."""
    return _decode_token_part(token, index=0)


def decode_token_claims(token: str) -> dict[str, object]:
    """Decode a JSON Web Token's claims without verifying the signature.

    Raise AuthenticationError if the claims are not a JSON object in base64url.
    """
    return _decode_token_part(token, index=1)


def _decode_token_part(token: str, index: int) -> dict[str, object]:
    """Decode a part of a JSON Web Token: the header is part 0, and the claims are part 1."""
    parts = token.split(".")
    try:
        encoded_part = parts[index]
        padding = "=" * (-len(encoded_part) % 4)  # a JSON Web Token omits the padding of base64
        content = json.loads(base64.urlsafe_b64decode(encoded_part + padding))
    except (IndexError, ValueError, binascii.Error, RecursionError) as error:
        raise AuthenticationError("OAUTHBEARER: the token is not a JSON Web Token") from error
    if not isinstance(content, dict):
        raise AuthenticationError("OAUTHBEARER: the token is not a JSON Web Token")
    return content


def parse_token_expiry_s(claims: Mapping[str, object]) -> float | None:
    """Return a token's expiry time as a Unix timestamp in seconds; None if `exp` is missing or invalid."""
    expires_at_s = claims.get("exp")
    # In Python, a bool is an int, but `true` is not a time.
    if not isinstance(expires_at_s, int | float) or isinstance(expires_at_s, bool):
        return None
    # The comparison is also False for NaN, which Python's JSON parser accepts.
    return float(expires_at_s) if abs(expires_at_s) < _MAX_EXPIRY_S else None


def _encode_token_part(content: dict[str, object]) -> str:
    data = json.dumps(content, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
