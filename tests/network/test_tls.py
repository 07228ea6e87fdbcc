"""TLS between a client and a server in one thread, with real OpenSSL, generated certificates and a socket pair."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import DisconnectedError, TlsError
from spark_kafka_sink.network.authenticator import NoAuthentication
from spark_kafka_sink.network.channel import ChannelBuilder, ChannelState, ChannelStateKind, KafkaChannel
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import ByteSocket, OperatingSystem, SocketAddress
from spark_kafka_sink.network.tls import ENCRYPTED_BYTES_PER_WRITE, TlsTransport
from tests.fake_system import FakeConnection, FakeSystem, Peer

BOTH_VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


def build_client_ssl_context(
    certificates: Path, authority: str = "ca.pem", identity: str | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates / authority)
    if identity:
        context.load_cert_chain(certificates / identity)
    return context


def server_context(certificates: Path, identity: str = "node.pem", clients: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / identity)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / clients)
    return context


def tls_channels(context: ssl.SSLContext, *, server: bool) -> ChannelBuilder:
    def build(
        channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool, max_frame_bytes: int
    ) -> KafkaChannel:
        transport = TlsTransport(sock, context, server_hostname=None if server else address.host)
        return KafkaChannel(
            channel_id,
            address,
            transport,
            NoAuthentication(),
            is_connecting=is_connecting,
            max_frame_bytes=max_frame_bytes,
        )

    return build


class TlsPair:
    """A client and a server, each with its own Selector, which are connected by the channel "a"."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> None:
        near, far = socket.socketpair()
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # so small that writes are partial
        system = OperatingSystem()
        self.client = Selector(system, channel_builder=tls_channels(client, server=False))
        self.server = Selector(system, channel_builder=tls_channels(server, server=True))
        self.client.register("a", near, SocketAddress(host, 9093, socket.AF_UNIX, (host,)))
        self.server.register("a", far, SocketAddress("client", 1, socket.AF_UNIX, ("client",)))
        self.received: dict[str, list[bytes]] = {"client": [], "server": []}
        self.ends: dict[str, ChannelState] = {}
        self.sent = 0

    def step(self) -> None:
        for name, selector in (("client", self.client), ("server", self.server)):
            selector.poll(0)
            self.received[name] += [bytes(receive.payload) for receive in selector.completed_receives]
            if "a" in selector.disconnected:
                self.ends[name] = selector.disconnected["a"]
        self.sent += len(self.client.completed_sends)

    def complete_handshake(self) -> None:
        for _ in range(50):
            self.step()
            if self.client.is_channel_ready("a") and self.server.is_channel_ready("a"):
                return
        raise AssertionError(f"no handshake: {self.ends}")

    def run_until_client_ends(self) -> dict[str, ChannelState]:
        for _ in range(100):
            self.step()
            if "client" in self.ends:
                break
        return self.ends

    def client_error(self) -> str:
        """Return the client's error for a connection that must fail."""
        state = self.run_until_client_ends()["client"]
        assert state.kind is ChannelStateKind.AUTHENTICATION_FAILED
        assert isinstance(state.error, TlsError)
        return str(state.error)


@pytest.fixture
def pairs() -> Iterator[list[TlsPair]]:
    opened: list[TlsPair] = []
    yield opened
    for pair in opened:
        pair.client.close()
        pair.server.close()


@BOTH_VERSIONS
def test_tls_transfers_frames_in_both_directions(
    certificates: Path, pairs: list[TlsPair], version: ssl.TLSVersion
) -> None:
    client = build_client_ssl_context(certificates)
    client.minimum_version = client.maximum_version = version
    pairs.append(pair := TlsPair(client, server_context(certificates)))
    pair.complete_handshake()
    channel = pair.client.channel("a")
    assert channel is not None
    assert isinstance(channel.transport, TlsTransport)
    assert channel.transport.version == version.name.replace("_", ".")
    pair.client.send(NetworkSend("a", [b"to ", b"", b"the server"]))
    pair.server.send(NetworkSend("a", [b"to the client"]))
    for _ in range(10):
        pair.step()
    assert pair.received == {"client": [b"to the client"], "server": [b"to the server"]}


@BOTH_VERSIONS
def test_large_send_arrives_complete_after_partial_writes(
    certificates: Path, pairs: list[TlsPair], version: ssl.TLSVersion
) -> None:
    server = server_context(certificates)
    server.minimum_version = server.maximum_version = version
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server))
    pair.complete_handshake()
    segments = [os.urandom(61), os.urandom(1_000_000), b"", os.urandom(5), os.urandom(300_000), b"x"]
    pair.client.send(NetworkSend("a", segments))
    polls = 0
    while not pair.received["server"]:
        pair.step()
        polls += 1
    assert pair.received["server"] == [b"".join(segments)]
    assert pair.sent == 1
    assert polls > 20, "the writes were meant to be partial"


def test_encrypts_only_a_few_records_ahead_of_socket(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates)))
    pair.complete_handshake()
    channel = pair.client.channel("a")
    assert channel is not None
    window = [memoryview(bytes(1_000_000))]
    assert channel.transport.write(window) == ENCRYPTED_BYTES_PER_WRITE
    assert [channel.transport.write(window) for _ in range(100)] == [0] * 100


def test_send_completes_only_when_socket_has_all_bytes(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates)))
    pair.complete_handshake()
    pair.client.send(NetworkSend("a", [bytes(100_000)]))  # encrypted immediately, but too large for the socket's buffer
    for _ in range(20):
        pair.client.poll(0)
        assert pair.client.completed_sends == []
    while not pair.received["server"]:
        pair.step()
    assert pair.sent == 1


def test_does_not_report_connection_that_fails_in_same_poll(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("tests.fake_system.FakeSocket.sendmsg", broken)
    system = FakeSystem()
    system.listen("broker", 9092, Peer())
    selector = Selector(system, channel_builder=tls_channels(build_client_ssl_context(certificates), server=False))
    selector.connect("a", system.resolve("broker", 9092)[0])
    selector.poll(1000)
    assert (selector.connected, list(selector.disconnected)) == ([], ["a"])


def test_tiny_segments_share_tls_records(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates)))
    pair.complete_handshake()
    segments = [bytes([number % 256]) * (number % 7) for number in range(10_000)]
    pair.client.send(NetworkSend("a", segments))
    for _ in range(200):
        pair.step()
    assert pair.received["server"] == [b"".join(segments)]


@pytest.mark.parametrize("records", [1, 3])
def test_delivers_frames_of_one_record_without_waiting(certificates: Path, pairs: list[TlsPair], records: int) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates)))
    pair.complete_handshake()
    channel = pair.server.channel("a")
    assert channel is not None
    frames = [len(text).to_bytes(4, "big") + text for text in (b"one", b"two", b"three")]
    for record in [b"".join(frames)] if records == 1 else frames:
        channel.transport.write([memoryview(record)])
    received_payloads = []
    for _ in range(3):
        pair.client.poll(600_000)  # the test would hang if this call waited for the socket
        received_payloads += [bytes(receive.payload) for receive in pair.client.completed_receives]
    assert received_payloads == [b"one", b"two", b"three"]


def test_muted_tls_channel_keeps_decrypted_bytes_without_spinning(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates)))
    pair.complete_handshake()
    channel = pair.server.channel("a")
    assert channel is not None
    channel.transport.write([memoryview(b"\0\0\0\1x\0\0\0\1y")])
    pair.client.poll(600_000)
    pair.client.mute("a")
    started = OperatingSystem().now()
    pair.client.poll(20)
    assert pair.client.completed_receives == []
    assert OperatingSystem().now() - started >= 19
    pair.client.unmute("a")
    pair.client.poll(600_000)
    assert [bytes(receive.payload) for receive in pair.client.completed_receives] == [b"y"]


@BOTH_VERSIONS
def test_rejects_certificate_of_untrusted_authority(
    certificates: Path, pairs: list[TlsPair], version: ssl.TLSVersion
) -> None:
    client = build_client_ssl_context(certificates, "stranger-ca.pem")
    client.minimum_version = client.maximum_version = version
    pairs.append(pair := TlsPair(client, server_context(certificates)))
    message = pair.client_error()
    counts = pair.client.counts
    assert (counts.successful_authentications, counts.failed_authentications) == (0, 1)
    assert "not trusted" in message
    assert "ssl.truststore" in message
    assert "localhost:9093" in message


def test_rejects_certificate_for_another_host(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(
        pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates), host="elsewhere.example")
    )
    message = pair.client_error()
    assert "not valid for 'elsewhere.example'" in message
    assert "advertised.listeners" in message


def test_rejects_ip_address_that_is_not_in_certificate(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(
        pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates), host="127.0.0.1")
    )
    assert "not valid for '127.0.0.1'" in pair.client_error()


def test_accepts_host_name_with_trailing_dot(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(
        pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates), host="localhost.")
    )
    pair.complete_handshake()


def test_rejects_expired_certificate(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates, "expired.pem")))
    assert "has expired" in pair.client_error()


@BOTH_VERSIONS
def test_accepts_client_with_certificate(certificates: Path, pairs: list[TlsPair], version: ssl.TLSVersion) -> None:
    server = server_context(certificates, clients="ca.pem")
    server.minimum_version = server.maximum_version = version
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates, identity="client.pem"), server))
    pair.complete_handshake()
    counts = pair.client.counts
    assert (counts.successful_authentications, counts.failed_authentications) == (1, 0)


@BOTH_VERSIONS
def test_error_without_client_certificate_asks_for_it(
    certificates: Path, pairs: list[TlsPair], version: ssl.TLSVersion
) -> None:
    # With TLS 1.3, the client completes its handshake before the server checks it, and then reads the alert.
    server = server_context(certificates, clients="ca.pem")
    server.minimum_version = server.maximum_version = version
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server))
    assert "certificate" in pair.client_error()
    assert "ssl.keystore" in pair.client_error()
    counts = pair.client.counts
    assert counts.failed_authentications == 1
    assert counts.successful_authentications == (1 if version is ssl.TLSVersion.TLSv1_3 else 0)
    assert counts.failed_reauthentications == 0


def test_error_for_untrusted_client_certificate_names_its_issuer(certificates: Path, pairs: list[TlsPair]) -> None:
    server = server_context(certificates, clients="stranger-ca.pem")
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates, identity="client.pem"), server))
    assert "authority that signed the certificate" in pair.client_error()


def test_error_without_common_tls_version_names_option(certificates: Path, pairs: list[TlsPair]) -> None:
    client, server = build_client_ssl_context(certificates), server_context(certificates)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    pairs.append(pair := TlsPair(client, server))
    assert "ssl.enabled.protocols" in pair.client_error()


def test_connection_end_is_not_an_authentication_failure(certificates: Path, pairs: list[TlsPair]) -> None:
    pairs.append(pair := TlsPair(build_client_ssl_context(certificates), server_context(certificates)))
    pair.complete_handshake()
    pair.server.close_channel("a")
    state = pair.run_until_client_ends()["client"]
    assert state.kind is ChannelStateKind.READY
    assert isinstance(state.error, DisconnectedError)
    assert state.has_received, "the handshake"


class _Says(Peer):
    def __init__(self, response: bytes) -> None:
        self._response = response

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        connection.send(self._response)
        connection.close()


def _meet(certificates: Path, response: bytes) -> ChannelState:
    """Return the state of a TLS client's channel after its peer has sent `response` and closed the connection."""
    system = FakeSystem()
    system.listen("broker", 9092, _Says(response))
    selector = Selector(system, channel_builder=tls_channels(build_client_ssl_context(certificates), server=False))
    selector.connect("a", system.resolve("broker", 9092)[0])
    while not selector.disconnected:
        selector.poll(1000)
    assert not system.open_sockets
    return selector.disconnected["a"]


@pytest.mark.parametrize("response", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x0a0123456789"])
def test_error_explains_peer_without_tls(certificates: Path, response: bytes) -> None:
    state = _meet(certificates, response)
    assert isinstance(state.error, TlsError)
    assert "does not speak TLS" in str(state.error)


def test_disconnection_during_handshake_has_remedy(certificates: Path) -> None:
    # A Kafka listener without TLS closes the connection: it rejects the first bytes as an invalid frame length.
    state = _meet(certificates, b"")
    assert state.kind is ChannelStateKind.AUTHENTICATE
    assert isinstance(state.error, DisconnectedError)
    assert "may expect plaintext" in str(state.error)
    assert not state.has_received
