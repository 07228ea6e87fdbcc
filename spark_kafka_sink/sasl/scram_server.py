"""Server side of SCRAM. See scram.py for the messages."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.scram import (
    ScramCredential,
    compute_server_signature,
    decode_base64,
    decode_message,
    generate_nonce,
    is_valid_proof,
)

# The header begins with "n" or "y" if the client does not use channel binding. Commas and equals signs in names are
# escaped.
_CLIENT_FIRST_PATTERN = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[^,]+).*)"
)
_CLIENT_FINAL_PATTERN = re.compile(r"(?P<without_proof>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+).*),p=(?P<proof>[^,]+)")


@dataclass(frozen=True)
class _FirstMessages:
    """Values from the first message of each side. The client's final message is checked against them."""

    username: str
    credential: ScramCredential
    gs2_header: str
    combined_nonce: str
    auth_message_prefix: str
    """The beginning of RFC 5802's AuthMessage: the client-first-message-bare and the server-first-message."""


class ScramServer:
    """Server side of SCRAM. `find_credential` returns None for an unknown user."""

    credential_lifetime_ms: float | None = None

    def __init__(
        self, mechanism: str, find_credential: Callable[[str], ScramCredential | None], *, nonce: str | None = None
    ) -> None:
        self.name = mechanism
        self.is_complete = False
        self.principal = ""
        self._find_credential = find_credential
        self._server_nonce = nonce or generate_nonce()
        self._first_messages: _FirstMessages | None = None
        self._has_received_proof = False

    def step(self, token: bytes) -> bytes:
        # A nonce allows only one attempt, whether the proof is valid or not.
        if self._has_received_proof:
            raise AuthenticationError(f"{self.name}: the client sent a message after authentication had ended")
        message = decode_message(self.name, token)
        if self._first_messages is None:
            return self._handle_client_first(message)
        self._has_received_proof = True
        return self._handle_client_final(message, self._first_messages)

    def _handle_client_first(self, client_first: str) -> bytes:
        """Look up the credential and return the challenge. Raise AuthenticationError for an unknown user."""
        parts = _CLIENT_FIRST_PATTERN.fullmatch(client_first)
        if parts is None:
            raise AuthenticationError(f"{self.name}: the first message is malformed")
        username = self._unescape(parts["name"])
        if parts["authzid"] and self._unescape(parts["authzid"]) != username:
            raise AuthenticationError(f"{self.name}: the authorization id does not match the user name")
        credential = self._find_credential(username)
        if credential is None:
            raise self._build_rejected_error()
        combined_nonce = parts["nonce"] + self._server_nonce
        salt = base64.b64encode(credential.salt).decode()
        server_first = f"r={combined_nonce},s={salt},i={credential.iterations}"
        self._first_messages = _FirstMessages(
            username,
            credential,
            gs2_header=parts["header"],
            combined_nonce=combined_nonce,
            auth_message_prefix=f"{parts['bare']},{server_first}",
        )
        return server_first.encode()

    def _handle_client_final(self, client_final: str, first_messages: _FirstMessages) -> bytes:
        """Verify the client's proof, complete the exchange, and return the message with the server's signature."""
        parts = _CLIENT_FINAL_PATTERN.fullmatch(client_final)
        if parts is None:
            raise AuthenticationError(f"{self.name}: the final message is malformed")
        # The nonce ties the proof to this exchange, so a recorded message cannot be replayed.
        if not hmac.compare_digest(parts["nonce"].encode(), first_messages.combined_nonce.encode()):
            raise AuthenticationError(
                f"{self.name}: the nonce in the final message does not match the one sent earlier"
            )
        # The proof covers this copy of the header, so a header that was changed on its way is detected.
        if decode_base64(self.name, parts["binding"]) != first_messages.gs2_header.encode():
            raise AuthenticationError(f"{self.name}: the channel binding does not match the first message")
        credential = first_messages.credential
        auth_message = f"{first_messages.auth_message_prefix},{parts['without_proof']}".encode()
        if not is_valid_proof(self.name, decode_base64(self.name, parts["proof"]), credential, auth_message):
            raise self._build_rejected_error()
        self.is_complete = True
        self.principal = first_messages.username
        return b"v=" + base64.b64encode(compute_server_signature(self.name, credential, auth_message))

    def _unescape(self, name: str) -> str:
        """Restore a name that the client has escaped. Raise AuthenticationError if it is not escaped correctly."""
        if re.search("=(?!2C|3D)", name):
            raise AuthenticationError(f"{self.name}: the user name is not escaped correctly")
        return name.replace("=2C", ",").replace("=3D", "=")

    def _build_rejected_error(self) -> AuthenticationError:
        return AuthenticationError(f"{self.name}: invalid user name or password")
