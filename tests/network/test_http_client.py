"""Connections of the HTTP client: the addresses of a host, the connect timeout, and the end of the request's timer.

The limits of responses are tested with the clients in tests/formats/test_schema_registry.py and
tests/network/security/test_oidc.py.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_kafka_sink.network.http_client import HttpResponse, open_connection, send_request
from tests.waiting import WAIT_TIMEOUT_SECONDS


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine that refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def resolve_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let each host name resolve to these ports of the loopback interface."""
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)


def respond(response: bytes) -> HttpResponse:
    """Send a request over a socket pair whose other end has already sent the response."""
    client, server = socket.socketpair()
    with server:
        server.sendall(response)
        connection = http.client.HTTPConnection("registry")
        connection.sock = client
        return send_request(
            connection, "GET", "http://registry/", {}, None, timeout_s=WAIT_TIMEOUT_SECONDS, max_bytes=9
        )


def test_tries_next_address_of_host(monkeypatch: pytest.MonkeyPatch, listener: socket.socket, closed_port: int) -> None:
    port = listener.getsockname()[1]
    resolve_to(monkeypatch, closed_port, port)
    connection = open_connection("http://registry", None, WAIT_TIMEOUT_SECONDS)
    assert connection.sock.getpeername()[1] == port
    connection.close()


def test_raises_error_of_last_address(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    resolve_to(monkeypatch, closed_port, closed_port)
    with pytest.raises(ConnectionRefusedError):
        open_connection("http://registry", None, WAIT_TIMEOUT_SECONDS)


def test_raises_os_error_for_host_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch)
    with pytest.raises(OSError, match="the host has no address"):
        open_connection("http://registry", None, WAIT_TIMEOUT_SECONDS)


def test_raises_os_error_for_host_name_with_too_long_label() -> None:
    with pytest.raises(OSError, match="invalid host name"):
        open_connection(f"http://{'a' * 64}.example", None, WAIT_TIMEOUT_SECONDS)


def test_addresses_share_connect_timeout(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    timeouts: list[float] = []

    class RecordingSocket(socket.socket):
        def connect(self, address: object, /) -> None:
            timeouts.append(self.gettimeout() or 0)
            raise TimeoutError

    monkeypatch.setattr(socket, "socket", RecordingSocket)
    resolve_to(monkeypatch, closed_port, closed_port)
    with pytest.raises(TimeoutError):
        open_connection("http://registry", None, 100.0)
    first, second = timeouts
    assert 0 < first <= 50 < second <= 100


def test_does_not_connect_after_connect_timeout(listener: socket.socket) -> None:
    with pytest.raises(TimeoutError, match="the connection timed out"):
        open_connection(f"http://127.0.0.1:{listener.getsockname()[1]}", None, 0.0)


@pytest.mark.parametrize(
    ("date", "date_s"),
    [
        ("Thu, 01 Jan 1970 00:01:40 GMT", 100.0),
        ("yesterday", None),
        ("Thu, 01 Jan 99999 00:00:00 GMT", None),
    ],
)
def test_ignores_invalid_date_of_server(date: str, date_s: float | None) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: 7\r\nDate: {date}\r\n\r\n"
    assert respond(head.encode() + b"{}") == HttpResponse(200, b"{}", "7", date_s)


def test_returns_location_of_redirect() -> None:
    head = b"HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\nLocation: https://registry/a\r\n\r\n"
    assert respond(head) == HttpResponse(301, b"", location="https://registry/a")


def test_timer_ends_with_request() -> None:
    threads_before = set(threading.enumerate())
    respond(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    for timer in set(threading.enumerate()) - threads_before:
        timer.join(WAIT_TIMEOUT_SECONDS / 10)
        assert not timer.is_alive()
