"""HTTP requests to identity providers and schema registries, with strict limits.

There is one timeout for connecting and one for the whole request, which holds even if the server sends its response
byte by byte. The connect timeout cannot interrupt the system's resolver while it looks up a name. The response size is
limited. Redirects are not followed, and proxy settings from the environment are ignored.
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
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.network.system import find_host_error

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class HttpResponse(NamedTuple):
    """A response whose body has been received in full."""

    status: int
    body: bytes
    retry_after: str | None = None
    """The unparsed Retry-After header."""
    date_s: float | None = None
    """The server's time from the Date header, as a Unix timestamp in seconds."""
    location: str | None = None
    """The unparsed Location header, which is the target of a redirect."""


class HttpResponseTooLong(OSError):
    """The response is larger than allowed."""


class _Reader(io.BufferedReader):
    """A reader that rejects negative sizes.

    http.client does not check the size of a chunk, and a negative size would make it read until the connection closes.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException("a chunk has a negative size")
        return super().read(size)


class _Response(http.client.HTTPResponse):
    """A response that is read through `_Reader`."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = _Reader(self.fp.detach())


def find_url_error(url: str) -> str | None:
    """Return why a URL is not allowed, or None if it is allowed.

    The reason is a predicate, such as "must begin with https:// or http://", to put after the name of an option or
    argument. It does not quote the URL, which may contain a password.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
        _ = parts.port  # raises ValueError if the port is not a number from 0 to 65535
    except ValueError:
        return "is not a valid URL"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with https:// or http://"
    if any(not "!" <= character <= "~" for character in url):  # urlsplit silently removes line breaks
        return "must not contain spaces, line breaks or non-ASCII characters"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user name and password"
    if "#" in url or find_host_error(host) is not None:
        return "is not a valid URL"
    return None


def is_https(url: str) -> bool:
    return url.startswith("https:")


def is_loopback(url: str) -> bool:
    return urllib.parse.urlsplit(url).hostname in LOOPBACK_HOSTS


def is_redirect(status: int) -> bool:
    """Return whether the status of a response is that of a redirect (3xx)."""
    return HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST


def open_connection(url: str, ssl_context: ssl.SSLContext | None, timeout_s: float) -> http.client.HTTPConnection:
    """Connect to a URL's server, using TLS for https. Raise OSError if connecting fails or times out.

    `ssl_context`: the TLS settings; None for Python's defaults.
    """
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    deadline_s = time.monotonic() + timeout_s
    if parts.scheme != "https":
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
        connection.sock = _connect_socket(parts.hostname, connection.port, deadline_s)
        return connection
    ssl_context = ssl_context or ssl.create_default_context()
    https_connection = http.client.HTTPSConnection(parts.hostname, parts.port, context=ssl_context)
    sock = _connect_socket(parts.hostname, https_connection.port, deadline_s)
    try:
        sock.settimeout(_compute_remaining_s(deadline_s))
        https_connection.sock = ssl_context.wrap_socket(sock, server_hostname=parts.hostname)
    except BaseException:
        sock.close()
        raise
    return https_connection


def send_request(  # noqa: PLR0913 - the parts of the request, and the limits of the response
    connection: http.client.HTTPConnection,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    timeout_s: float,
    max_bytes: int,
) -> HttpResponse:
    """Send a request, receive the complete response and close the connection.

    Raise OSError or HTTPException if no complete response arrives within the timeout. Raise HttpResponseTooLong, an
    OSError, if the body exceeds `max_bytes`.
    """
    connection.response_class = _Response
    parts = urllib.parse.urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with _time_limit(connection, timeout_s):
        connection.sock.settimeout(timeout_s)
        connection.request(method, target, body=body, headers=dict(headers))
        with connection.getresponse() as response:
            response_body = response.read(max_bytes + 1)  # one more byte shows that the response is too long
            # `length` is the rest of the announced Content-Length; None or 0 if nothing is missing.
            is_truncated = bool(response.length) and len(response_body) <= max_bytes
    if len(response_body) > max_bytes:
        raise HttpResponseTooLong(f"the response exceeds {max_bytes} bytes")
    if is_truncated:
        raise http.client.IncompleteRead(b"")
    return HttpResponse(
        response.status,
        response_body,
        retry_after=response.headers.get("Retry-After"),
        date_s=_parse_date_s(response.headers.get("Date")),
        location=response.headers.get("Location"),
    )


def _parse_date_s(date_header: str | None) -> float | None:
    """Parse a Date header to a Unix timestamp in seconds. Return None if the header is missing or invalid."""
    date_fields = None if date_header is None else email.utils.parsedate_tz(date_header)
    try:
        return None if date_fields is None else float(email.utils.mktime_tz(date_fields))
    except (ValueError, OverflowError):
        return None


def describe_http_error(error: Exception) -> str:
    """Return the error's type, followed by its message if it is an OSError.

    An HTTPException's message is omitted, because it may quote the server's response.
    """
    message = f" ({sanitize(str(error))})" if isinstance(error, OSError) and str(error) else ""
    return type(error).__name__ + message


def parse_json_object(document: bytes) -> dict[str, object]:
    """Parse a JSON object. Return an empty dict if the document is anything else."""
    try:
        value = json.loads(document)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _connect_socket(host: str, port: int, deadline_s: float) -> socket.socket:
    """Connect to the first of the host's addresses that accepts the connection. Raise OSError if none does.

    Before each attempt, the remaining time is divided equally among the addresses that have not been tried yet.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label of the host name is empty or too long
        raise OSError("invalid host name") from error
    last_error: OSError = OSError("the host has no address")
    for index, (family, kind, protocol, _, sockaddr) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            untried_count = len(addresses) - index
            sock.settimeout(_compute_remaining_s(deadline_s) / untried_count)
            sock.connect(sockaddr)
            return sock
        except OSError as error:
            sock.close()
            last_error = error
    raise last_error


def _compute_remaining_s(deadline_s: float) -> float:
    """Return the time until a deadline of the monotonic clock. Raise TimeoutError if it has passed."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError("the connection timed out")
    return remaining_s


@contextlib.contextmanager
def _time_limit(connection: http.client.HTTPConnection, timeout_s: float) -> Iterator[None]:
    """Close the connection after the block. Raise TimeoutError if the block takes longer than the timeout.

    A socket's timeout starts again with each read, so a server that sends single bytes would never exceed it. A timer
    therefore limits the whole block.
    """
    has_timed_out = threading.Event()
    timer = threading.Timer(timeout_s, _abort, (connection.sock, has_timed_out))
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if has_timed_out.is_set():
            raise _build_timeout_error(timeout_s) from None  # the caught error only shows that _abort was called
        raise
    finally:
        timer.cancel()
        connection.close()
    if has_timed_out.is_set():  # without a Content-Length, a response looks complete when the timer ends the connection
        raise _build_timeout_error(timeout_s)


def _abort(sock: socket.socket, has_timed_out: threading.Event) -> None:
    """Shut down the connection, so that the thread that reads from it stops waiting."""
    has_timed_out.set()
    with contextlib.suppress(OSError):
        # Bypass SSLSocket.shutdown: it would discard the SSLObject that another thread is reading from.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _build_timeout_error(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"no complete response within {timeout_s * 1000:.0f} ms")
