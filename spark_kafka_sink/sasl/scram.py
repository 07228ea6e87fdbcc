"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the client's side and what both sides share.

    client  n,,n=user,r=<client nonce>[,tokenauth=true]
    server  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client  c=biws,r=<both nonces>,p=<proof>
    server  v=<signature>   or   e=<error>

Both sides prove that they know the password and neither shows it. The client therefore never accepts a server whose
nonce is not ours and more, whose iteration count is out of bounds (few make the proof cheap to break, many burn our
CPU), or whose signature is wrong. User names are not normalised (SASLprep): Kafka's brokers do not either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.words import cleaned

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
"""The most that a broker lets a user set (KIP-554); docs/decisions/0006-scram-iterations.md."""
MESSAGE_BYTES_MAX = 16 * 1024
NONCE_BYTES = 24

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

# What a client says about channel binding: "n,,", none, in base64.
_NO_CHANNEL_BINDING = "biws"


@dataclass(frozen=True)
class ScramCredential:
    """What a server keeps in place of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def scram_credential(
    mechanism: str, password: str, *, salt: bytes, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    salted = _salted_password(HASHES[mechanism], password, salt, iterations)
    stored_key = _hash(mechanism, _client_key(mechanism, salted))
    return ScramCredential(salt, iterations, stored_key, _server_key(mechanism, salted))


def fresh_nonce() -> str:
    """192 random bits, in characters that need no quoting."""
    return secrets.token_urlsafe(NONCE_BYTES)


class ScramClient:
    """`token_auth`: user name and password are the id and the HMAC of a delegation token (KIP-48)."""

    def __init__(
        self, mechanism: str, username: str, password: str, *, token_auth: bool = False, nonce: str | None = None
    ) -> None:
        self.name = mechanism
        self.complete = False
        self._username = username
        self._password = password
        self._token_auth = token_auth
        self._nonce = nonce or fresh_nonce()
        self._first_bare = ""
        self._server_signature: bytes | None = None

    def __repr__(self) -> str:
        return f"<ScramClient {self.name} {self._username}>"

    def start(self) -> bytes:
        self._first_bare = f"n={escape_name(self._username)},r={self._nonce}"
        if self._token_auth:
            self._first_bare += ",tokenauth=true"
        return f"n,,{self._first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self.complete:
            raise AuthenticationError(f"{self.name}: the broker goes on after the end of the conversation")
        message = decode_message(self.name, challenge)
        if self._server_signature is None:
            return self._prove(message)
        self._check_signature(message)
        self.complete = True
        return None

    def _prove(self, server_first: str) -> bytes:
        nonce, salt, iterations = self._server_first(server_first)
        salted = _salted_password(HASHES[self.name], self._password, salt, iterations)
        client_key = _client_key(self.name, salted)
        without_proof = f"c={_NO_CHANNEL_BINDING},r={nonce}"
        auth_message = f"{self._first_bare},{server_first},{without_proof}".encode()
        signature = _hmac(self.name, _hash(self.name, client_key), auth_message)
        self._server_signature = _hmac(self.name, _server_key(self.name, salted), auth_message)
        proof = base64.b64encode(_xor(client_key, signature)).decode()
        return f"{without_proof},p={proof}".encode()

    def _server_first(self, message: str) -> tuple[str, bytes, int]:
        fields = message.split(",")
        if fields[0].startswith("e="):
            raise self._refused(fields[0])
        if len(fields) < 3 or [part[:2] for part in fields[:3]] != ["r=", "s=", "i="]:
            raise AuthenticationError(f"{self.name}: the broker's first message is malformed")
        nonce, salt_text, iterations_text = (part[2:] for part in fields[:3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationError(f"{self.name}: the broker's nonce does not continue ours")
        salt = decode_base64(self.name, salt_text)
        if not salt or not iterations_text.isascii() or not iterations_text.isdigit() or len(iterations_text) > 9:
            raise AuthenticationError(f"{self.name}: the broker's salt or iteration count is malformed")
        iterations = int(iterations_text)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationError(
                f"{self.name}: {iterations} iterations are outside of {ITERATIONS_MIN} to {ITERATIONS_MAX}; "
                "if the broker is yours, set the user's credential anew within these limits"
            )
        return nonce, salt, iterations

    def _check_signature(self, server_final: str) -> None:
        first = server_final.split(",")[0]
        if first.startswith("e="):
            raise self._refused(first)
        if not first.startswith("v="):
            raise AuthenticationError(f"{self.name}: the broker's last message is malformed")
        assert self._server_signature is not None
        if not hmac.compare_digest(decode_base64(self.name, first[2:]), self._server_signature):
            raise AuthenticationError(
                f"{self.name}: the broker's signature is wrong: the other end "
                "does not have the password, so it is not the broker"
            )

    def _refused(self, error_field: str) -> AuthenticationError:
        return AuthenticationError(f"{self.name}: the broker refused user {self._username}: {cleaned(error_field[2:])}")


def decode_message(mechanism: str, token: bytes) -> str:
    if len(token) > MESSAGE_BYTES_MAX:
        raise AuthenticationError(f"{mechanism}: a message of {len(token)} bytes")
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationError(f"{mechanism}: a message is not UTF-8") from error


def decode_base64(mechanism: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationError(f"{mechanism}: a field is not base64") from error


def escape_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def proves(mechanism: str, proof: bytes, credential: ScramCredential, auth_message: bytes) -> bool:
    """Whether the proof was made by someone who knows the password."""
    signature = _hmac(mechanism, credential.stored_key, auth_message)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(_hash(mechanism, _xor(proof, signature)), credential.stored_key)


def server_signature(mechanism: str, credential: ScramCredential, auth_message: bytes) -> bytes:
    return _hmac(mechanism, credential.server_key, auth_message)


def _salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def _client_key(mechanism: str, salted_password: bytes) -> bytes:
    return _hmac(mechanism, salted_password, b"Client Key")


def _server_key(mechanism: str, salted_password: bytes) -> bytes:
    return _hmac(mechanism, salted_password, b"Server Key")


def _hmac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, HASHES[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(HASHES[mechanism], data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
