"""Fetching a broker's certificate in virtual time: the errors of listeners that do not complete a TLS handshake.

Certificates of real listeners are tested in tests/preflight/test_certificate_checks.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_sink.errors import DisconnectedError, NetworkError, TlsError
from spark_kafka_sink.network.security.peer_certificate import PeerCertificate, fetch_peer_certificate
from spark_kafka_sink.network.security.tls_context import TlsConfig
from tests.fake_system import FakeConnection, FakeSystem, Peer

TIMEOUT_MS = 5_000


class Responder(Peer):
    """Sends the same bytes in response to any bytes. Counts its connections."""

    def __init__(self, response: bytes) -> None:
        self._response = response
        self.connection_count = 0

    def on_connect(self, connection: FakeConnection) -> None:
        self.connection_count += 1

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        connection.send(self._response)


@pytest.fixture
def system() -> Iterator[FakeSystem]:
    system = FakeSystem(latency_ms=2)
    yield system
    assert not system.open_sockets


def fetch(system: FakeSystem) -> PeerCertificate:
    (address,) = system.resolve("broker", 9092)
    return fetch_peer_certificate(TlsConfig(), address, system, system.now() + TIMEOUT_MS)


def test_raises_error_when_nothing_listens(system: FakeSystem) -> None:
    system.refuse("broker", 9092)
    with pytest.raises(DisconnectedError, match=r"broker:9092.*: Connection refused"):
        fetch(system)


@pytest.mark.parametrize("accepts_connection", [False, True])
def test_raises_error_at_deadline_when_listener_does_not_respond(system: FakeSystem, accepts_connection: bool) -> None:
    if accepts_connection:
        system.listen("broker", 9092, Peer())
    else:
        system.swallow("broker", 9092)
    started_ms = system.now()
    with pytest.raises(NetworkError, match="no response before the deadline"):
        fetch(system)
    assert system.now() == started_ms + TIMEOUT_MS


def test_connects_once_to_listener_that_does_not_speak_tls(system: FakeSystem) -> None:
    """Only a certificate that is not trusted needs further handshakes."""
    responder = Responder(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    system.listen("broker", 9092, responder)
    with pytest.raises(TlsError, match="does not speak TLS"):
        fetch(system)
    assert responder.connection_count == 1
