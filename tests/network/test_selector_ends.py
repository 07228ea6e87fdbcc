"""Selector: frames received before the end of a connection are delivered before the end is reported."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.network.channel import ChannelStateKind, KafkaChannel
from spark_kafka_sink.network.frame import NetworkReceive, NetworkSend
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeSystem
from tests.network.peers import UnresponsivePeer, address, connect, frame, poll_until, received
from tests.network.test_selector import selector as selector
from tests.network.test_selector import system as system


def test_delivers_responses_before_reporting_disconnection(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    connection.send(frame(b"1") + frame(b"2"))
    connection.close()
    events = []
    for _ in range(3):
        selector.poll(1000)
        events.append((received(selector), list(selector.disconnected)))
    assert events == [([("a", b"1")], []), ([("a", b"2")], []), ([], ["a"])]


def test_delivers_responses_after_failed_write(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    connection.send(frame(b"1") + frame(b"2") + frame(b"3"))
    connection.reset()
    system.advance(10)
    selector.send(NetworkSend("a", [b"x"]))
    before, events = system.now(), []
    for _ in range(4):
        selector.poll(10_000)
        events.append((received(selector), list(selector.disconnected)))
    assert events == [([("a", b"1")], []), ([("a", b"2")], []), ([("a", b"3")], []), ([], ["a"])]
    assert system.now() == before


def closing_channel(system: FakeSystem, selector: Selector, *payloads: bytes) -> None:
    """Bring channel "a" into the state after a failed send, in which frames of its peer remain to be delivered."""
    connection = connect(system, selector)
    connection.send(b"".join(map(frame, payloads)))
    connection.reset()
    system.advance(10)
    selector.send(NetworkSend("a", [b"x"]))
    selector.poll(0)


def test_reads_long_frame_of_closing_connection_without_waiting(system: FakeSystem, selector: Selector) -> None:
    """Each poll reads a limited number of bytes, and the poller no longer reports the rest."""
    system.listen("broker", 9092, UnresponsivePeer())
    long = b"x" * 5_000_000
    before = system.now()
    closing_channel(system, selector, b"1", long)
    took = system.now() - before
    assert received(selector) == [("a", b"1")]
    for _ in range(20):
        selector.poll(10_000)
        if selector.completed_receives:
            break
    assert received(selector) == [("a", long)]
    assert system.now() - before == took


def test_muted_closing_channel_keeps_receives_until_unmuted(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    closing_channel(system, selector, b"1", b"2")
    selector.mute("a")
    selector.poll(1000)
    assert (received(selector), dict(selector.disconnected)) == ([], {})
    selector.unmute("a")
    selector.poll(1000)
    assert received(selector) == [("a", b"2")]


def test_send_to_closing_channel_closes_it(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    closing_channel(system, selector, b"1", b"2", b"3")
    selector.send(NetworkSend("a", [b"y"]))
    selector.poll(1000)
    assert (received(selector), list(selector.disconnected)) == ([], ["a"])


def test_rejected_send_does_not_affect_later_channel_with_same_id(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    for is_refused in (True, False):
        closing_channel(system, selector, b"1", b"2")
        assert received(selector) == [("a", b"1")]
        if is_refused:
            selector.send(NetworkSend("a", [b"y"]))
            selector.close_channel("a")
    selector.poll(0)
    assert received(selector) == [("a", b"2")]


def test_truncated_frame_is_a_disconnection(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    connection.send(frame(b"hello")[:-1])
    connection.close()
    poll_until(selector, lambda: bool(selector.disconnected))
    state = selector.disconnected["a"]
    assert (state.kind, received(selector)) == (ChannelStateKind.READY, [])
    assert str(state.error) == "broker:9092: the peer closed the connection"


@pytest.mark.parametrize("data", [b"", b"\0"])
def test_reports_whether_a_closed_connection_has_received_bytes(
    system: FakeSystem, selector: Selector, data: bytes
) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    connection.send(data)
    connection.reset()
    poll_until(selector, lambda: bool(selector.disconnected))
    assert selector.disconnected["a"].has_received is bool(data)


def test_unexpected_error_closes_only_its_channel_and_is_logged_once(
    system: FakeSystem, selector: Selector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    failing, healthy = connect(system, selector, "a"), connect(system, selector, "b")
    failing.send(frame(b"1"))
    healthy.send(frame(b"2"))
    read = KafkaChannel.read

    def fail_in_channel_a(channel: KafkaChannel, now_ms: float) -> NetworkReceive | None:
        if channel.id == "a":
            raise ValueError("not expected")
        return read(channel, now_ms)

    monkeypatch.setattr(KafkaChannel, "read", fail_in_channel_a)
    selector.poll(1000)
    assert received(selector) == [("b", b"2")]
    assert list(selector.disconnected) == ["a"]
    assert "unexpected error: ValueError: not expected" in str(selector.disconnected["a"].error)
    selector.poll(0)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    healthy.send(frame(b"3"))
    selector.poll(1000)
    assert received(selector) == [("b", b"3")]


def test_unexpected_error_while_reading_after_a_reset_closes_the_channel(
    system: FakeSystem, selector: Selector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    closing_channel(system, selector, b"1", b"2")
    assert received(selector) == [("a", b"1")]

    def fail(_: KafkaChannel, now_ms: float) -> NetworkReceive | None:
        raise ValueError("not expected")

    monkeypatch.setattr(KafkaChannel, "read", fail)
    selector.poll(0)
    assert list(selector.disconnected) == ["a"]
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize("error", [IllegalStateError, AssertionError])
def test_poll_raises_fatal_errors(
    system: FakeSystem, selector: Selector, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    connection.send(frame(b"1"))

    def fail(_: KafkaChannel, now_ms: float) -> NetworkReceive | None:
        raise error("inconsistent")

    monkeypatch.setattr(KafkaChannel, "read", fail)
    with pytest.raises(error, match="inconsistent"):
        selector.poll(1000)


@pytest.mark.parametrize("error", [IllegalStateError, AssertionError])
def test_poll_raises_fatal_errors_while_reading_after_reset(
    system: FakeSystem, selector: Selector, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    closing_channel(system, selector, b"1", b"2")

    def fail(_: KafkaChannel, now_ms: float) -> NetworkReceive | None:
        raise error("inconsistent")

    monkeypatch.setattr(KafkaChannel, "read", fail)
    with pytest.raises(error, match="inconsistent"):
        selector.poll(0)


def test_channel_that_fails_while_connecting_is_not_reported_as_connected(
    system: FakeSystem, selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_connect = KafkaChannel.finish_connect

    def connect_without_login(channel: KafkaChannel) -> None:
        finish_connect(channel)
        channel.is_ready = False

    def fail(_: KafkaChannel, now_ms: float) -> None:
        raise ValueError("not expected")

    monkeypatch.setattr(KafkaChannel, "finish_connect", connect_without_login)
    monkeypatch.setattr(KafkaChannel, "prepare", fail)
    system.listen("broker", 9092, UnresponsivePeer())
    selector.connect("a", address(system))
    for _ in range(3):
        selector.poll(10)
        if selector.disconnected:
            break
    assert (selector.connected, list(selector.disconnected)) == ([], ["a"])
