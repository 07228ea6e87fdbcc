"""Fake of Confluent's schema registry on the loopback interface, for tests without a JVM.

It stores subjects, versions and ids, compares schemas by their JSON, and has one compatibility rule: a new version of
an Avro schema must not add a field without a default. `tests/formats/registry_contract.py` tests that the fake behaves
like a real registry.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    def __init__(self) -> None:
        self.subjects: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.error_statuses: list[int] = []
        """Error statuses of the next requests; later requests succeed."""
        self.error_message = "not now"
        """Message of the responses with these statuses."""
        self.error_code = 50001
        """Error code of the responses with these statuses."""
        self.retry_after: str | None = None
        self.location: str | None = None
        """Location header of the responses with these statuses."""
        self.user_info: str | None = None
        self.default_rule_set: dict[str, Any] | None = None
        """Default `ruleSet` of new versions."""
        self.returns_id_only = False
        """Whether the response to a registration has only the id, as before Confluent Platform 7.4."""
        self.has_guids = False
        """Whether versions and schemas have GUIDs, as since Confluent Platform 8.0. A registration returns none."""
        self.url = ""
        self._ids: dict[str, int] = {}

    def handle_request(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, Any]]:
        self.requests.append((method, target))
        self.headers.append(headers)
        if self.error_statuses:
            return self.error_statuses.pop(0), {"error_code": self.error_code, "message": self.error_message}
        if self.user_info is not None:
            expected = "Basic " + base64.b64encode(self.user_info.encode()).decode()
            if headers.get("authorization") != expected:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        path = urllib.parse.urlsplit(target).path
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        if method == "GET" and len(parts) == 4 and parts[2:] == ["versions", "latest"]:
            return self._latest(parts[1])
        if method == "GET" and parts[:2] == ["schemas", "ids"]:
            return self._by_id(int(parts[2]))
        if method == "GET" and parts[:2] == ["schemas", "guids"]:
            return self._by_guid(parts[2])
        if method == "GET":
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        request = json.loads(body)
        if method == "POST" and len(parts) == 3 and parts[2] == "versions":
            return self._register(parts[1], request)
        return self._lookup(parts[1], request)

    def _latest(self, subject: str) -> tuple[int, dict[str, Any]]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        schema_id, schema = self.subjects[subject][-1]
        version = {"subject": subject, "version": len(self.subjects[subject]), "id": schema_id, **schema}
        return 200, self._with_guid(version)

    def _by_id(self, schema_id: int) -> tuple[int, dict[str, Any]]:
        for versions in self.subjects.values():
            for known, schema in versions:
                if known == schema_id:
                    return 200, schema
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _by_guid(self, guid: str) -> tuple[int, dict[str, Any]]:
        schemas = (schema for versions in self.subjects.values() for _, schema in versions)
        match = next((schema for schema in schemas if _build_guid(schema) == guid), None)
        return (404, {"error_code": 40403, "message": "Schema not found"}) if match is None else (200, match)

    def _with_guid(self, version: dict[str, Any]) -> dict[str, Any]:
        return {**version, "guid": _build_guid(version)} if self.has_guids else version

    def _lookup(self, subject: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        for version, (schema_id, schema) in enumerate(self.subjects[subject], 1):
            if _normalize(schema) == _normalize(request):
                return 200, self._with_guid({"subject": subject, "version": version, "id": schema_id, **schema})
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _register(self, subject: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, known = self._lookup(subject, request)
        if status == 200:
            return 200, self._registration(known["id"], known)
        if request.get("schemaType", "AVRO") == "AVRO":
            try:
                parsed = json.loads(request["schema"])
            except ValueError:
                return 422, {"error_code": 42201, "message": "Invalid schema"}
            earlier = self.subjects.get(subject)
            if earlier and _has_new_field_without_default(json.loads(earlier[-1][1]["schema"]), parsed):
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
        schema_id = self._ids.setdefault(_normalize(request), len(self._ids) + 1)
        versions = self.subjects.setdefault(subject, [])
        inherited = versions[-1][1].get("ruleSet") if versions else self.default_rule_set
        version = request if inherited is None else {"ruleSet": inherited, **request}
        versions.append((schema_id, version))
        return 200, self._registration(schema_id, version)

    def _registration(self, schema_id: int, version: dict[str, Any]) -> dict[str, Any]:
        return {"id": schema_id} if self.returns_id_only else {**version, "id": schema_id}


def _build_guid(schema: dict[str, Any]) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, _normalize(schema)))


def _normalize(schema: dict[str, Any]) -> str:
    text = schema["schema"]
    if schema.get("schemaType") != "PROTOBUF":
        text = json.dumps(json.loads(text), sort_keys=True)
    return f"{schema.get('schemaType', 'AVRO')} {text}"


def _has_new_field_without_default(previous: Any, new: Any) -> bool:
    names = {field["name"] for field in previous["fields"]}
    return any(field["name"] not in names and "default" not in field for field in new["fields"])


@contextmanager
def fake_registry(context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    """Run a fake registry, with TLS if there is a context."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with suppress(ssl.SSLError):  # a client that does not trust the certificate
                super().handle()

        def do_GET(self) -> None:
            self._respond("GET")

        def do_POST(self) -> None:
            self._respond("POST")

        def _respond(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = registry.handle_request(
                method, self.path, {name.lower(): value for name, value in self.headers.items()}, body
            )
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            if registry.retry_after is not None and status != 200:
                self.send_header("Retry-After", registry.retry_after)
            if registry.location is not None and status != 200:
                self.send_header("Location", registry.location)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Suppress the log of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'https' if context else 'http'}://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
