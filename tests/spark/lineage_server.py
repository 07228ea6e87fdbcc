"""An HTTP server on the loopback interface that validates OpenLineage events by OpenLineage's JSON schemas.

The folder openlineage_schemas has copies of the schemas (THIRD-PARTY.md has their licence).
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

_SCHEMAS = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "openlineage_schemas").glob("*.json")
}
_REGISTRY: Registry[Any] = Registry().with_resources(
    [(schema["$id"], Resource.from_contents(schema)) for schema in _SCHEMAS.values()]
)


def validate_event(event: dict[str, Any]) -> list[str]:
    """Return the violations of the schema of run events, and of the schemas of the facets.

    A facet is validated by our copy of its schema, whatever the version in its URL.
    """
    validators = [_validator(f"{_SCHEMAS['OpenLineage']['$id']}#/$defs/RunEvent").iter_errors(event)]
    for facets in _facets(event):
        for name, facet in facets.items():
            schema = _SCHEMAS.get(Path(urlsplit(facet["_schemaURL"]).path).stem)
            if schema is None:
                return [f"no schema for facet {name}"]
            validators.append(_validator(schema["$id"]).iter_errors({name: facet}))
    return [error.message for errors in validators for error in errors]


def _validator(ref: str) -> Any:
    return Draft202012Validator({"$ref": ref}, registry=_REGISTRY, format_checker=FormatChecker())


def _facets(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield event["run"].get("facets", {})
    yield event["job"].get("facets", {})
    for output in event["outputs"]:
        yield output.get("facets", {})
        yield output.get("outputFacets", {})


class LineageServer:
    """Received events, their requests' headers, and violations of the schemas."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.violations: list[str] = []
        self.status = 201
        self.hold: threading.Event | None = None
        """If set, each response waits for this event."""
        self.url = ""


@contextmanager
def lineage_server() -> Iterator[LineageServer]:
    server = LineageServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            event = json.loads(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            if server.hold is not None:
                server.hold.wait()
            server.events.append(event)
            server.headers.append(dict(self.headers))
            server.paths.append(self.path)
            server.violations += validate_event(event)
            self.send_response(server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
