"""Frames that arrive together: one is handed out per poll, and none waits for bytes that may never come."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.network.channel import ChannelStateKind
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import SilentPeer, connect, frame, received
from tests.network.test_tls import TlsPair, build_client_ssl_context, server_context


@pytest.fixture
def system() -> FakeSystem:
    system = FakeSystem()
    system.listen("broker", 9092, SilentPeer())
    return system


@pytest.fixture
def selector(system: FakeSystem) -> Selector:
    return Selector(system)


@pytest.fixture
def connection(system: FakeSystem, selector: Selector) -> FakeConnection:
    return connect(system, selector)


def test_each_poll_hands_out_one_and_none_of_them_waits(
    system: FakeSystem, selector: Selector, connection: FakeConnection
) -> None:
    connection.send(frame(b"1") + frame(b"2") + frame(b"3")[:4])
    selector.poll(1000)
    assert received(selector) == [("a", b"1")]
    before = system.now()
    selector.poll(1000)
    assert received(selector) == [("a", b"2")]
    assert system.now() == before
    selector.poll(10)  # of the third not all has come: this is no reason to go round without waiting
    assert (received(selector), system.now()) == ([], before + 10)
    connection.send(frame(b"3")[4:])
    selector.poll(1000)
    assert received(selector) == [("a", b"3")]


def test_a_muted_channel_keeps_the_second_until_it_is_unmuted(
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


def test_all_that_came_before_the_end_of_a_connection_is_handed_out(
    selector: Selector, connection: FakeConnection
) -> None:
    connection.send(frame(b"1") + frame(b"2") + frame(b"3"))
    connection.reset()
    seen = []
    while not selector.disconnected:
        selector.poll(1000)
        seen += received(selector)
    assert seen == [("a", b"1"), ("a", b"2"), ("a", b"3")]


def test_frames_that_arrived_are_handed_out_when_a_write_finds_the_connection_broken(
    selector: Selector, connection: FakeConnection
) -> None:
    connection.send(frame(b"1") + frame(b"2") + frame(b"3"))
    selector.poll(1000)
    connection.reset()
    selector.send(NetworkSend("a", [b"x"]))
    seen = received(selector)
    while not selector.disconnected:
        selector.poll(1000)
        seen += received(selector)
    assert seen == [("a", b"1"), ("a", b"2"), ("a", b"3")]


def test_a_length_above_the_limit_ends_the_connection_although_no_more_bytes_come(system: FakeSystem) -> None:
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


def test_over_tls_it_is_the_same(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    pair = TlsPair(build_client_ssl_context(tmp_path), server_context(tmp_path))
    pair.shake_hands()
    for payload in (b"1", b"2", bytes(5000)):
        pair.server.send(NetworkSend("a", [payload]))
        pair.server.poll(100)
        assert pair.server.completed_sends
    seen: list[int] = []
    while len(seen) < 3:
        pair.client.poll(100)
        assert len(pair.client.completed_receives) <= 1
        seen += [len(payload) for _, payload in received(pair.client)]
    assert seen == [1, 1, 5000]
    pair.client.close()
    pair.server.close()
