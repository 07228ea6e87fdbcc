"""Server side of SCRAM. See scram.py for the messages."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable

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


class ScramServer:
    """Server side of SCRAM. `find_credential` returns None for an unknown user."""

    credential_lifetime_ms: float | None = None

    def __init__(
        self, mechanism: str, find_credential: Callable[[str], ScramCredential | None], *, nonce: str | None = None
    ) -> None:
        self.name = mechanism
        self.is_complete = False
        self.principal = ""
        self._is_finished = False
        self._find_credential = find_credential
        self._server_nonce = nonce or generate_nonce()
        self._combined_nonce = ""
        self._gs2_header = ""
        self._first_messages = ""
        self._username = ""
        self._credential: ScramCredential | None = None

    def step(self, token: bytes) -> bytes:
        if self._is_finished:
            raise AuthenticationError(f"{self.name}: the client sent a message after the end of the authentication")
        message = decode_message(self.name, token)
        if self._credential is None:
            return self._build_server_first_message(message)
        self._is_finished = True  # each nonce allows only one attempt, right or wrong
        return self._build_server_final_message(message, self._credential)

    def _build_server_first_message(self, client_first: str) -> bytes:
        parts = _CLIENT_FIRST_PATTERN.fullmatch(client_first)
        if parts is None:
            raise AuthenticationError(f"{self.name}: the first message is malformed")
        self._username = self._unescape(parts["name"])
        if parts["authzid"] and self._unescape(parts["authzid"]) != self._username:
            raise AuthenticationError(f"{self.name}: the authorization id differs from the user name")
        self._credential = self._find_credential(self._username)
        if self._credential is None:
            raise self._build_rejected_error()
        self._gs2_header = parts["header"]
        self._combined_nonce = parts["nonce"] + self._server_nonce
        salt = base64.b64encode(self._credential.salt).decode()
        server_first = f"r={self._combined_nonce},s={salt},i={self._credential.iterations}"
        self._first_messages = f"{parts['bare']},{server_first}"
        return server_first.encode()

    def _build_server_final_message(self, client_final: str, credential: ScramCredential) -> bytes:
        parts = _CLIENT_FINAL_PATTERN.fullmatch(client_final)
        if parts is None:
            raise AuthenticationError(f"{self.name}: the last message is malformed")
        if not hmac.compare_digest(parts["nonce"].encode(), self._combined_nonce.encode()):
            raise AuthenticationError(f"{self.name}: the nonce of the last message differs from that of the first ones")
        if decode_base64(self.name, parts["binding"]) != self._gs2_header.encode():
            raise AuthenticationError(f"{self.name}: the channel binding differs from that of the first message")
        auth_message = f"{self._first_messages},{parts['without_proof']}".encode()
        if not is_valid_proof(self.name, decode_base64(self.name, parts["proof"]), credential, auth_message):
            raise self._build_rejected_error()
        self.is_complete = True
        self.principal = self._username
        return b"v=" + base64.b64encode(compute_server_signature(self.name, credential, auth_message))

    def _unescape(self, name: str) -> str:
        if re.search("=(?!2C|3D)", name):
            raise AuthenticationError(f"{self.name}: a user name is not escaped")
        return name.replace("=2C", ",").replace("=3D", "=")

    def _build_rejected_error(self) -> AuthenticationError:
        return AuthenticationError(f"{self.name}: invalid user name or password")
