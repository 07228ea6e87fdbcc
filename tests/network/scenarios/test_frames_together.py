"""Frames that arrive together: each poll returns one, without waiting for further bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.network.channel import ChannelStateKind
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import UnresponsivePeer, connect, frame, received
from tests.network.test_tls import TlsPair, build_client_ssl_context, server_context


@pytest.fixture
def system() -> FakeSystem:
    system = FakeSystem()
    system.listen("broker", 9092, UnresponsivePeer())
    return system


@pytest.fixture
def selector(system: FakeSystem) -> Selector:
    return Selector(system)


@pytest.fixture
def connection(system: FakeSystem, selector: Selector) -> FakeConnection:
    return connect(system, selector)


def test_each_poll_returns_one_receive_without_waiting(
    system: FakeSystem, selector: Selector, connection: FakeConnection
) -> None:
    connection.send(frame(b"1") + frame(b"2") + frame(b"3")[:4])
    selector.poll(1000)
    assert received(selector) == [("a", b"1")]
    before = system.now()
    selector.poll(1000)
    assert received(selector) == [("a", b"2")]
    assert system.now() == before
    selector.poll(10)  # the third frame is incomplete, so the poll must wait
    assert (received(selector), system.now()) == ([], before + 10)
    connection.send(frame(b"3")[4:])
    selector.poll(1000)
    assert received(selector) == [("a", b"3")]


def test_muted_channel_keeps_second_frame_until_unmuted(
    system: FakeSystem, selector: Selector, connection: FakeConnection
) -> None:
    connection.send(frame(b"1") + frame(b"2"))
    selector.poll(1000)
    selector.mute("a")
    before = system.now()
    selector.poll(100)
    assert (received(selector), system.now()) == ([], before + 100)
    selector.unmute("a")
    selector.poll(1000)
    assert received(selector) == [("a", b"2")]


def test_returns_all_frames_received_before_disconnection(selector: Selector, connection: FakeConnection) -> None:
    connection.send(frame(b"1") + frame(b"2") + frame(b"3"))
    connection.reset()
    payloads = []
    while not selector.disconnected:
        selector.poll(1000)
        payloads += received(selector)
    assert payloads == [("a", b"1"), ("a", b"2"), ("a", b"3")]


def test_returns_received_frames_after_failed_write(selector: Selector, connection: FakeConnection) -> None:
    connection.send(frame(b"1") + frame(b"2") + frame(b"3"))
    selector.poll(1000)
    connection.reset()
    selector.send(NetworkSend("a", [b"x"]))
    payloads = received(selector)
    while not selector.disconnected:
        selector.poll(1000)
        payloads += received(selector)
    assert payloads == [("a", b"1"), ("a", b"2"), ("a", b"3")]


def test_closes_connection_for_excessive_length_without_more_bytes(system: FakeSystem) -> None:
    selector = Selector(system, max_frame_bytes=10_000)
    connection = connect(system, selector)
    connection.send(frame(b"1") + frame(bytes(10_001))[:4])
    selector.poll(1000)
    assert received(selector) == [("a", b"1")]
    before = system.now()
    selector.poll(1000)
    assert selector.disconnected["a"].kind is ChannelStateKind.READY
    assert "announced a frame of 10001 bytes" in str(selector.disconnected["a"].error)
    assert system.now() == before


def test_returns_frames_received_together_over_tls(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    pair = TlsPair(build_client_ssl_context(tmp_path), server_context(tmp_path))
    pair.complete_handshake()
    for payload in (b"1", b"2", bytes(5000)):
        pair.server.send(NetworkSend("a", [payload]))
        pair.server.poll(100)
        assert pair.server.completed_sends
    payloads: list[int] = []
    while len(payloads) < 3:
        pair.client.poll(100)
        assert len(pair.client.completed_receives) <= 1
        payloads += [len(payload) for _, payload in received(pair.client)]
    assert payloads == [1, 1, 5000]
    pair.client.close()
    pair.server.close()
