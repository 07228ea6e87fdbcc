"""Client side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), and functions that both sides share.

    client  n,,n=user,r=<client nonce>[,tokenauth=true]
    server  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client  c=biws,r=<both nonces>,p=<proof>
    server  v=<signature>   or   e=<error>

The client proves that it knows the password without sending it, and the server proves that it knows the user's
credential. The client rejects a server if the server's nonce does not extend the client's, if the iteration count is
out of bounds, or if the server's signature is wrong. Too few iterations would make the proof easy to crack; too many
would waste CPU time. Like Kafka's brokers, we do not normalize user names (SASLprep).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import AuthenticationError

MIN_ITERATIONS = 4096
"""The minimum that RFC 7677 recommends and Kafka's brokers enforce."""
MAX_ITERATIONS = 16_384
"""The maximum that Kafka's brokers accept in a credential (KIP-554). See docs/decisions/0006-scram-iterations.md."""
_MAX_MESSAGE_BYTES = 16 * 1024
_NONCE_BYTES = 24

_HASH_NAMES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_ITERATIONS_PATTERN = re.compile("[0-9]{1,9}")

_CHANNEL_BINDING = "biws"
"""The Base64 encoding of "n,,", which means that the client does not support channel binding."""


@dataclass(frozen=True)
class ScramCredential:
    """Keys derived from a password. Servers store them instead of the password itself."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def build_scram_credential(
    mechanism: str, password: str, *, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Derive a user's credential from the password."""
    salted_password = _compute_salted_password(_HASH_NAMES[mechanism], password, salt, iterations)
    stored_key = _hash(mechanism, _compute_client_key(mechanism, salted_password))
    return ScramCredential(salt, iterations, stored_key, _compute_server_key(mechanism, salted_password))


def generate_nonce() -> str:
    """Return 192 random bits as text without commas, because commas separate the fields of a message."""
    return secrets.token_urlsafe(_NONCE_BYTES)


class ScramClient:
    """Client side of SCRAM.

    `token_auth`: whether the user name and password are the id and HMAC of a delegation token (KIP-48).
    """

    def __init__(
        self, mechanism: str, username: str, password: str, *, token_auth: bool = False, nonce: str | None = None
    ) -> None:
        self.name = mechanism
        self.is_complete = False
        self._username = username
        self._password = password
        self._token_auth = token_auth
        self._nonce = nonce or generate_nonce()
        self._client_first_bare = ""
        self._server_signature: bytes | None = None

    def __repr__(self) -> str:
        return f"<ScramClient {self.name} {self._username}>"

    def start(self) -> bytes:
        self._client_first_bare = f"n={_escape_name(self._username)},r={self._nonce}"
        if self._token_auth:
            self._client_first_bare += ",tokenauth=true"
        return f"n,,{self._client_first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self.is_complete:
            raise AuthenticationError(f"{self.name}: the broker sent a message after authentication had ended")
        message = decode_message(self.name, challenge)
        if self._server_signature is None:
            return self._build_client_final_message(message)
        self._verify_server_final_message(message)
        self.is_complete = True
        return None

    def _build_client_final_message(self, server_first: str) -> bytes:
        """Build the message with the proof, and remember the signature that the server must respond with.

        Section 3 of RFC 5802 defines the keys, signatures and messages.
        """
        nonce, salt, iterations = self._parse_server_first_message(server_first)
        salted_password = _compute_salted_password(_HASH_NAMES[self.name], self._password, salt, iterations)
        client_key = _compute_client_key(self.name, salted_password)
        message_without_proof = f"c={_CHANNEL_BINDING},r={nonce}"
        auth_message = f"{self._client_first_bare},{server_first},{message_without_proof}".encode()
        client_signature = _hmac(self.name, _hash(self.name, client_key), auth_message)
        self._server_signature = _hmac(self.name, _compute_server_key(self.name, salted_password), auth_message)
        proof = base64.b64encode(_xor(client_key, client_signature)).decode()
        return f"{message_without_proof},p={proof}".encode()

    def _parse_server_first_message(self, message: str) -> tuple[str, bytes, int]:
        """Return the combined nonce, the salt and the iteration count.

        Raise AuthenticationError if the broker rejects the user or one of the values is not acceptable.
        """
        fields = message.split(",")
        if fields[0].startswith("e="):
            raise self._build_rejected_error(fields[0])
        required_fields = fields[:3]  # optional extensions may follow
        if [required_field[:2] for required_field in required_fields] != ["r=", "s=", "i="]:
            raise AuthenticationError(f"{self.name}: the broker's first message is malformed")
        nonce, salt_text, iterations_text = (required_field[2:] for required_field in required_fields)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationError(f"{self.name}: the broker's nonce does not extend the client's nonce")
        salt = decode_base64(self.name, salt_text)
        if not salt or not _ITERATIONS_PATTERN.fullmatch(iterations_text):
            raise AuthenticationError(f"{self.name}: the broker's salt or iteration count is malformed")
        iterations = int(iterations_text)
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationError(
                f"{self.name}: the broker requires {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are "
                "allowed. If you trust the broker, create the user's credential again within these limits"
            )
        return nonce, salt, iterations

    def _verify_server_final_message(self, server_final: str) -> None:
        """Raise AuthenticationError unless the message has the signature that follows from the user's password."""
        first_field = server_final.split(",")[0]
        if first_field.startswith("e="):
            raise self._build_rejected_error(first_field)
        if not first_field.startswith("v="):
            raise AuthenticationError(f"{self.name}: the broker's last message is malformed")
        assert self._server_signature is not None
        if not hmac.compare_digest(decode_base64(self.name, first_field[2:]), self._server_signature):
            raise AuthenticationError(
                f"{self.name}: the broker's signature is wrong. The server does not know "
                "the user's credential, so it is not the expected broker"
            )

    def _build_rejected_error(self, error_field: str) -> AuthenticationError:
        return AuthenticationError(
            f"{self.name}: the broker rejected user {self._username}: {sanitize(error_field[2:])}"
        )


def decode_message(mechanism: str, token: bytes) -> str:
    """Decode a SCRAM message. Raise AuthenticationError if it is too long or not UTF-8."""
    if len(token) > _MAX_MESSAGE_BYTES:
        raise AuthenticationError(f"{mechanism}: a message of {len(token)} bytes is too long")
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationError(f"{mechanism}: a message is not UTF-8") from error


def decode_base64(mechanism: str, text: str) -> bytes:
    """Decode a field of a SCRAM message. Raise AuthenticationError if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationError(f"{mechanism}: a field is not base64") from error


def _escape_name(name: str) -> str:
    """Escape the characters that separate fields and values (RFC 5802)."""
    return name.replace("=", "=3D").replace(",", "=2C")


def is_valid_proof(mechanism: str, proof: bytes, credential: ScramCredential, auth_message: bytes) -> bool:
    """Return whether the proof was computed from the password that the credential was derived from."""
    client_signature = _hmac(mechanism, credential.stored_key, auth_message)
    if len(proof) != len(client_signature):
        return False
    client_key = _xor(proof, client_signature)  # the client computed the proof as client key XOR client signature
    return hmac.compare_digest(_hash(mechanism, client_key), credential.stored_key)


def compute_server_signature(mechanism: str, credential: ScramCredential, auth_message: bytes) -> bytes:
    """Return the signature with which the server proves that it knows the credential."""
    return _hmac(mechanism, credential.server_key, auth_message)


def _compute_salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def _compute_client_key(mechanism: str, salted_password: bytes) -> bytes:
    return _hmac(mechanism, salted_password, b"Client Key")


def _compute_server_key(mechanism: str, salted_password: bytes) -> bytes:
    return _hmac(mechanism, salted_password, b"Server Key")


def _hmac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, _HASH_NAMES[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(_HASH_NAMES[mechanism], data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
