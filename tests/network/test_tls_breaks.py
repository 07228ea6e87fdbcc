"""Errors for each way in which a TLS stream ends or breaks, and input that OpenSSL has buffered."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import DisconnectedError, NetworkError, TlsError
from spark_kafka_sink.network.tls import MAX_RECORD_BYTES, TlsTransport


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


class Pair:
    """A client and a server over a socket pair."""

    def __init__(self, certificates: Path) -> None:
        self.near, self.far = socket.socketpair()
        for sock in (self.near, self.far):
            sock.setblocking(False)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.load_verify_locations(certificates / "ca.pem")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificates / "node.pem")
        self.client = TlsTransport(self.near, client, server_hostname="localhost")
        self.server = TlsTransport(self.far, server, server_hostname=None)

    def complete_handshake(self) -> Pair:
        for _ in range(10):
            self.client.handshake()
            self.server.handshake()
        assert self.client.is_ready
        assert self.server.is_ready
        return self

    def read(self, size: int = 100) -> bytes:
        space = memoryview(bytearray(size))
        return bytes(space[: self.client.read_into(space)])


def has_buffered_input(pair: Pair) -> bool:
    return pair.client.has_buffered_input


def read_on(transport: TlsTransport) -> None:
    while True:
        transport.read_into(memoryview(bytearray(1 << 16)))


def write_on(transport: TlsTransport) -> None:
    for _ in range(3):
        transport.write([b"x"])


@pytest.fixture
def pair(certificates: Path) -> Iterator[Pair]:
    pair = Pair(certificates)
    yield pair
    for sock in (pair.near, pair.far):
        sock.close()


def test_has_buffered_input_until_buffered_record_is_read(pair: Pair) -> None:
    pair.complete_handshake()
    pair.read()  # reads the session tickets
    pair.server.write([memoryview(bytes(MAX_RECORD_BYTES))])
    assert pair.read(10) == bytes(10)
    # The socket and the buffer in front of OpenSSL are empty, so no poller will report the rest of the record.
    with pytest.raises(BlockingIOError):
        pair.near.recv(1)
    assert pair.client._incoming.pending == 0
    assert has_buffered_input(pair) is True
    assert len(pair.read(MAX_RECORD_BYTES)) == MAX_RECORD_BYTES - 10
    assert has_buffered_input(pair) is False
    assert pair.read() == b""


def test_distinguishes_close_notify_from_truncation(pair: Pair) -> None:
    pair.complete_handshake()
    pair.server.write([b"last words"])
    pair.server.close()
    assert pair.read() == b"last words"
    with pytest.raises(DisconnectedError, match="the peer closed the TLS connection"):
        pair.read()


def test_truncated_tls_stream_is_a_disconnection(pair: Pair) -> None:
    pair.complete_handshake()
    pair.far.close()
    with pytest.raises(DisconnectedError, match="the peer closed the connection"):
        read_on(pair.client)


@pytest.mark.parametrize("read_before", [True, False])
def test_invalid_record_is_a_disconnection_not_a_tls_error(pair: Pair, read_before: bool) -> None:
    pair.complete_handshake()
    if read_before:
        pair.server.write([b"x"])
        assert pair.read() == b"x"
    pair.far.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(NetworkError, match="the TLS connection failed") as caught:
        pair.read()
    assert not isinstance(caught.value, TlsError)


def test_write_after_invalid_record_is_a_disconnection(pair: Pair) -> None:
    pair.complete_handshake()
    pair.far.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(NetworkError, match="the TLS connection failed"):
        pair.read()
    with pytest.raises(NetworkError, match="the TLS connection failed"):
        write_on(pair.client)


def test_modified_record_is_a_disconnection(pair: Pair) -> None:
    pair.complete_handshake()
    pair.read()
    pair.server.write([b"a secret"])
    record = bytearray(pair.near.recv(1000))
    record[-1] ^= 1
    pair.far.send(record)
    with pytest.raises(NetworkError, match="the TLS connection failed"):
        pair.read()


def test_end_during_handshake_names_possible_causes(pair: Pair) -> None:
    pair.client.handshake()
    pair.far.close()
    # On some systems, closing a socket with unread bytes resets the connection.
    with pytest.raises((DisconnectedError, ConnectionResetError), match=r"during the TLS handshake|reset by peer"):
        pair.client.handshake()
    assert not pair.client.is_ready


def test_reports_end_of_stream_after_partial_handshake(pair: Pair) -> None:
    pair.client.handshake()
    pair.far.recv(10_000)
    pair.far.shutdown(socket.SHUT_WR)
    with pytest.raises(DisconnectedError, match="during the TLS handshake: the listener may expect plaintext"):
        pair.client.handshake()


def test_write_to_closed_connection_raises_socket_error(pair: Pair) -> None:
    pair.complete_handshake()
    pair.far.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        write_on(pair.client)


def test_sends_close_notify_unless_output_is_pending(pair: Pair) -> None:
    pair.complete_handshake()
    pair.read()
    while not pair.client.has_buffered_output:
        pair.client.write([bytes(1 << 20)])
    pair.client.close()
    with pytest.raises(DisconnectedError, match="the peer closed the connection"):
        read_on(pair.server)
