"""Timeouts of channels: connections that exceed them are closed, and connections that are merely slow stay open."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from spark_kafka_sink.network.channel import ChannelStateKind
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.security.secured_channel_builders import create_server_channel_builder
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.protocol.headers import encode_request
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.sasl.mechanism import ServerMechanism
from tests.fake_system import FakeConnection, FakeSystem, Peer
from tests.network.peers import connect, frame, received
from tests.network.security.sasl_peers import PasswordCheck, handle_api_versions


def listener(**limits: float) -> tuple[FakeSystem, Selector, FakeConnection]:
    system = FakeSystem()
    system.listen("broker", 9092, Peer())
    selector = Selector(system, timeouts=ChannelTimeouts(**limits))
    return system, selector, connect(system, selector)


def find_channel_end(system: FakeSystem, selector: Selector, for_ms: float) -> tuple[float, str] | None:
    """Return the time after which the channel was closed, and the error. Return None if it stays open."""
    start = system.now()
    while system.now() - start < for_ms:
        selector.poll(10)
        if "a" in selector.disconnected:
            return system.now() - start, str(selector.disconnected["a"].error)
    return None


@pytest.mark.parametrize(
    "frame_start", [b"\0", struct.pack(">i", 50) + b"1", struct.pack(">i", 100_000) + bytes(50_000)]
)
@pytest.mark.parametrize("drips", [0, 40])
def test_closes_channel_when_frame_takes_too_long(frame_start: bytes, drips: int) -> None:
    system, selector, peer = listener(frame_ms=1000)
    peer.send(frame_start)
    for drip in range(min(drips, 2) if len(frame_start) == 1 else drips):
        peer.send(b"\0", after_ms=100.0 * drip)
    ended = find_channel_end(system, selector, 5000)
    assert ended is not None
    assert ended[0] == pytest.approx(1000, abs=20)
    assert "a frame was incomplete after 1000 ms" in ended[1]
    assert not system.open_sockets


def test_each_frame_has_its_own_timeout() -> None:
    _, selector, peer = listener(frame_ms=1000)
    whole = frame(b"hello")
    for number in range(20):
        # Each chunk ends a frame and begins the next one, so the channel is always in the middle of a frame.
        peer.send(whole[3:] + whole[:3] if number else whole + whole[:3], after_ms=300.0 * number)
    got = 0
    for _ in range(600):
        selector.poll(10)
        got += len(received(selector))
        assert "a" not in selector.disconnected
    assert got == 20


def test_frame_has_no_deadline_while_channel_is_muted() -> None:
    system, selector, peer = listener(frame_ms=1000)
    peer.send(frame(b"x") + struct.pack(">i", 5) + b"12")
    selector.poll(100)
    selector.mute("a")
    assert find_channel_end(system, selector, 5000) is None
    selector.unmute("a")
    peer.send(b"345", after_ms=900)
    selector.poll(950)
    assert received(selector) == [("a", b"12345")]


def test_closes_busy_client_that_does_not_authenticate() -> None:
    system = FakeSystem()
    system.listen("broker", 9092, Peer())
    mechanisms: dict[str, Callable[[], ServerMechanism]] = {"PASSWORD": PasswordCheck}
    channels = create_server_channel_builder(mechanisms=mechanisms, handle_api_versions=handle_api_versions)
    selector = Selector(system, channel_builder=channels, timeouts=ChannelTimeouts(setup_ms=1000))
    peer = connect(system, selector)
    for number in range(30):
        asking = b"".join(encode_request(ApiVersionsRequest(), 0, number, "x"))
        peer.send(frame(asking), after_ms=100.0 * number)
    ended = find_channel_end(system, selector, 5000)
    assert ended is not None
    assert ended[0] == pytest.approx(1000, abs=20)
    assert "connecting or authenticating took longer than 1000 ms" in ended[1]


def test_ready_channel_has_no_setup_timeout() -> None:
    system, selector, _ = listener(setup_ms=1000, frame_ms=1000)
    assert find_channel_end(system, selector, 5000) is None


def test_idle_channel_has_different_error_than_slow_channel() -> None:
    system, selector, _ = listener(idle_ms=500, setup_ms=1000, frame_ms=1000)
    ended = find_channel_end(system, selector, 5000)
    assert ended is not None
    assert (round(ended[0], -2), "idle for 500 ms" in ended[1]) == (500, True)
    assert selector.disconnected["a"].kind is ChannelStateKind.EXPIRED
