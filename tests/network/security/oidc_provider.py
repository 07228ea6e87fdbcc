"""An identity provider for tests, which checks the signature, audience, times and id of assertions like a real one."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT = "orders-job"
_GRANTS = {"client_credentials": "client_assertion", "urn:ietf:params:oauth:grant-type:jwt-bearer": "assertion"}


@dataclass
class Provider:
    """An identity provider. `keys`: trusted public keys. `now_s`: the provider's current time."""

    keys: list[Any]
    now_s: float
    url: str = ""
    audience: str | None = None
    requires_jti: bool = False
    requests: list[dict[str, str]] = field(default_factory=list)
    token: str = ""
    """The token to return. If empty, each request gets a different token."""
    headers: list[dict[str, str]] = field(default_factory=list)
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims of the last accepted assertion."""
    header: dict[str, Any] = field(default_factory=dict)
    _used_jtis: set[str] = field(default_factory=set)

    def build_response(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.requests.append(form)
        fault = self._fault(form)
        if fault is not None:
            return 401, {"error": fault, "error_description": "hush-9"}
        return 200, {"access_token": self.token or f"token-{len(self.requests)}", "expires_in": 100}

    def _fault(self, form: dict[str, str]) -> str | None:
        name = _GRANTS.get(form.get("grant_type", ""))
        if name is None or name not in form:
            return "unsupported_grant_type"
        kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        if name == "client_assertion" and form.get("client_assertion_type") != kind:
            return "invalid_request"
        head, body, signature = form[name].split(".")
        header, claims = json.loads(_bytes(head)), json.loads(_bytes(body))
        if not any(_is_signed(key, header["alg"], f"{head}.{body}".encode(), _bytes(signature)) for key in self.keys):
            return "invalid_client"
        times = claims["nbf"] <= self.now_s < claims["exp"] and claims["iat"] <= self.now_s + 1
        if not times or claims["aud"] != (self.audience or self.url) or (claims["iss"], claims["sub"]) != (CLIENT,) * 2:
            return "invalid_client"
        if self.requires_jti:
            if claims.get("jti") in {None, *self._used_jtis}:
                return "invalid_grant"
            self._used_jtis.add(claims["jti"])
        self.header, self.claims = header, claims
        return None


def _bytes(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _is_signed(key: Any, algorithm: str, data: bytes, signature: bytes) -> bool:
    try:
        if algorithm == "RS256" and isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), SHA256())
            return True
        if algorithm == "ES256" and isinstance(key, ec.EllipticCurvePublicKey):
            numbers = [int.from_bytes(signature[start : start + 32], "big") for start in (0, 32)]
            key.verify(utils.encode_dss_signature(*numbers), data, ec.ECDSA(SHA256()))
            return len(signature) == 64
    except InvalidSignature:
        pass
    return False


@contextmanager
def oidc_provider(*keys: Any, now_s: float) -> Iterator[Provider]:
    provider = Provider(list(keys), now_s)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            provider.headers.append(dict(self.headers))
            status, content = provider.build_response(dict(urllib.parse.parse_qsl(body)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(provider.now_s, usegmt=True)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    provider.url = f"http://127.0.0.1:{server.server_port}/token"
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
