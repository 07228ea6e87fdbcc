"""The listener's side of SCRAM (scram.py has the messages)."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.sasl.scram import (
    ScramCredential,
    decode_base64,
    decode_message,
    fresh_nonce,
    proves,
    server_signature,
)

# "n" or "y": no channel binding. A name has every comma and equals sign escaped.
_CLIENT_FIRST = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authzid>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[^,]+).*)"
)
_CLIENT_FINAL = re.compile(r"(?P<without_proof>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+).*),p=(?P<proof>[^,]+)")


class ScramServer:
    """`credential_of` answers None for users that do not exist."""

    credential_lifetime_ms: float | None = None

    def __init__(
        self, mechanism: str, credential_of: Callable[[str], ScramCredential | None], *, nonce: str | None = None
    ) -> None:
        self.name = mechanism
        self.complete = False
        self.principal = ""
        self._over = False
        self._credential_of = credential_of
        self._own_nonce = nonce or fresh_nonce()
        self._nonce = ""
        self._header = ""
        self._messages = ""
        self._user = ""
        self._credential: ScramCredential | None = None

    def step(self, token: bytes) -> bytes:
        if self._over:
            raise AuthenticationError(f"{self.name}: the conversation is over")
        message = decode_message(self.name, token)
        if self._credential is None:
            return self._challenge(message)
        self._over = True  # one guess for each nonce, right or wrong
        return self._verify(message, self._credential)

    def _challenge(self, client_first: str) -> bytes:
        parts = _CLIENT_FIRST.fullmatch(client_first)
        if parts is None:
            raise AuthenticationError(f"{self.name}: the first message is malformed")
        self._user = self._unescape(parts["name"])
        if parts["authzid"] and self._unescape(parts["authzid"]) != self._user:
            raise AuthenticationError(f"{self.name}: a user may act for himself only")
        self._credential = self._credential_of(self._user)
        if self._credential is None:
            raise self._refused()
        self._header, self._nonce = parts["header"], parts["nonce"] + self._own_nonce
        salt = base64.b64encode(self._credential.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{parts['bare']},{server_first}"
        return server_first.encode()

    def _verify(self, client_final: str, credential: ScramCredential) -> bytes:
        parts = _CLIENT_FINAL.fullmatch(client_final)
        if parts is None:
            raise AuthenticationError(f"{self.name}: the last message is malformed")
        if not hmac.compare_digest(parts["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationError(f"{self.name}: the nonce is not that of this conversation")
        if decode_base64(self.name, parts["binding"]) != self._header.encode():
            raise AuthenticationError(f"{self.name}: the channel binding has changed on the way")
        auth_message = f"{self._messages},{parts['without_proof']}".encode()
        if not proves(self.name, decode_base64(self.name, parts["proof"]), credential, auth_message):
            raise self._refused()
        self.complete = True
        self.principal = self._user
        return b"v=" + base64.b64encode(server_signature(self.name, credential, auth_message))

    def _unescape(self, name: str) -> str:
        if re.search("=(?!2C|3D)", name):
            raise AuthenticationError(f"{self.name}: a name is not escaped")
        return name.replace("=2C", ",").replace("=3D", "=")

    def _refused(self) -> AuthenticationError:
        return AuthenticationError(f"{self.name}: invalid user name or password")
