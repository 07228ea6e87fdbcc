"""One question over HTTP and its answer, for what is asked beside Kafka: identity providers and schema registries.

Each step has a time in which it is over, however the other end drips its bytes; answers are bounded; redirects are not
followed, and no proxy of the environment is used. Looking up a name takes as long as the system's resolver lets it.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.network.system import host_fault

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpResponse(NamedTuple):
    status: int
    data: bytes
    retry_after: str | None = None
    """As the server wrote it."""
    date_s: float | None = None
    """What the server's clock said, in seconds since the epoch, if it said so."""


class HttpResponseTooLong(OSError):
    """The answer exceeds what was allowed."""


class _Reader(io.BufferedReader):
    """Rejects a negative size: http.client passes on that of a chunk, and would read until the connection ends."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException("a chunk has a negative size")
        return super().read(size)


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = _Reader(self.fp.detach())


def url_fault(url: str) -> str | None:
    """What keeps this from being an address over http, in words that do not repeat it: it may hold a password."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not an address"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with https:// or http://"
    if any(not "!" <= character <= "~" for character in url):  # urlsplit itself drops line breaks
        return "must have no blanks, line breaks or characters beyond ASCII in it"
    if parts.username is not None or parts.password is not None:
        return "must have no user and password in it"
    if "#" in url or host_fault(host) is not None:
        return "is not an address"
    return None


def is_encrypted(url: str) -> bool:
    return url.startswith("https:")


def is_loopback(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


def connected(url: str, context: ssl.SSLContext | None, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to the server of this address, with TLS if it is https; OSError if there is none in time."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    until_s = time.monotonic() + timeout_s
    if parts.scheme != "https":
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
        connection.sock = _socket(parts.hostname, connection.port, until_s)
        return connection
    tls = context or ssl.create_default_context()
    secured = http.client.HTTPSConnection(parts.hostname, parts.port, context=tls)
    plain = _socket(parts.hostname, secured.port, until_s)
    try:
        plain.settimeout(_left_s(until_s))
        secured.sock = tls.wrap_socket(plain, server_hostname=parts.hostname)
    except BaseException:
        plain.close()
        raise
    return secured


def asked(  # noqa: PLR0913 - what is asked, and what bounds the answer
    connection: http.client.HTTPConnection,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    timeout_s: float,
    bytes_max: int,
) -> HttpResponse:
    """The answer, whole and in time; OSError or HTTPException if there is none. The connection is closed."""
    connection.response_class = _Response
    parts = urllib.parse.urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Each read waits anew, so a server that drips its bytes would never be too late: a clock of our own ends it.
    is_over = threading.Event()
    clock = threading.Timer(timeout_s, _end, (connection.sock, is_over))
    clock.daemon = True
    clock.start()
    try:
        connection.sock.settimeout(timeout_s)
        connection.request(method, target, body=body, headers=dict(headers))
        with connection.getresponse() as response:
            data = response.read(bytes_max + 1)
            is_cut = bool(response.length) and len(data) <= bytes_max
    except (OSError, http.client.HTTPException):
        if is_over.is_set():
            raise _too_late(timeout_s) from None
        raise
    finally:
        clock.cancel()
        connection.close()
    if is_over.is_set():  # an answer without a length just ends there
        raise _too_late(timeout_s)
    if len(data) > bytes_max:
        raise HttpResponseTooLong(f"the answer exceeds {bytes_max} bytes")
    if is_cut:
        raise http.client.IncompleteRead(b"")
    return HttpResponse(
        response.status, data, response.headers.get("Retry-After"), _date_s(response.headers.get("Date"))
    )


def _date_s(text: str | None) -> float | None:
    parts = None if text is None else email.utils.parsedate_tz(text)
    try:
        return None if parts is None else float(email.utils.mktime_tz(parts))
    except (ValueError, OverflowError):
        return None


def failure_words(error: Exception) -> str:
    """What an OSError says. What came in place of HTTP is not repeated: only the error's name."""
    said = f" ({sanitize(str(error))})" if isinstance(error, OSError) and str(error) else ""
    return type(error).__name__ + said


def json_object(data: bytes) -> dict[str, object]:
    """Empty if the data is none."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _socket(host: str, port: int, until_s: float) -> socket.socket:
    """Connected to the first of the host's addresses that answers. Each has its share of the time that is left."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a part of the name is empty or too long
        raise OSError("this is no name of a host") from error
    fault: OSError = OSError("the host has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        candidate = socket.socket(family, kind, protocol)
        try:
            candidate.settimeout(_left_s(until_s) / (len(found) - number))
            candidate.connect(address)
            return candidate
        except OSError as error:
            candidate.close()
            fault = error
    raise fault


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no connection in time")
    return left_s


def _end(connection: socket.socket, is_over: threading.Event) -> None:
    is_over.set()
    with contextlib.suppress(OSError):
        # Not SSLSocket's own, which takes the TLS away from the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _too_late(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"no whole answer within {timeout_s * 1000:.0f} ms")
