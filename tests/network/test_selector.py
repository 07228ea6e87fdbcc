"""Selector: the effects of a poll, and the results that it returns in its collections."""

from __future__ import annotations

import errno

import pytest

from spark_kafka_sink.errors import DecodeError, DisconnectedError, IllegalStateError
from spark_kafka_sink.network.channel import ChannelStateKind
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeConnection, FakeSystem
from tests.network.peers import FramePeer, UnresponsivePeer, address, connect, frame, poll_until, received


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem(latency_ms=5.0)


@pytest.fixture
def selector(system: FakeSystem) -> Selector:
    return Selector(system)


def test_reports_connection_in_one_poll_only(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connect(system, selector)
    assert selector.is_channel_ready("a")
    selector.poll(0)
    assert selector.connected == []


def test_reports_immediate_connection_without_waiting(system: FakeSystem, selector: Selector) -> None:
    system.connect_at_once = True
    system.listen("broker", 9092, UnresponsivePeer())
    selector.connect("a", address(system))
    before = system.now()
    selector.poll(10_000)
    assert (selector.connected, system.now()) == (["a"], before)


def test_reports_refused_connection_with_address_and_reason(system: FakeSystem, selector: Selector) -> None:
    selector.connect("a", address(system))
    selector.poll(1000)
    state = selector.disconnected["a"]
    assert (selector.connected, state.kind) == ([], ChannelStateKind.NOT_CONNECTED)
    assert isinstance(state.error, DisconnectedError)
    assert str(state.error) == "broker:9092: Connection refused"
    assert not system.open_sockets


def test_immediate_connection_failure_raises_and_leaves_no_channel(
    system: FakeSystem, selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(system, "connect", unreachable)
    with pytest.raises(DisconnectedError, match="broker:9092: Network is unreachable"):
        selector.connect("a", address(system))
    assert selector.channel("a") is None


def test_channel_stays_connecting_when_host_does_not_respond(system: FakeSystem, selector: Selector) -> None:
    system.swallow("broker", 9092)
    selector.connect("a", address(system))
    selector.poll(5000)
    assert (selector.connected, dict(selector.disconnected)) == ([], {})
    assert not selector.is_channel_ready("a")


def test_sends_frame_and_receives_response(system: FakeSystem, selector: Selector) -> None:
    peer = FramePeer()
    system.listen("broker", 9092, peer)
    connect(system, selector)
    send = NetworkSend("a", [b"he", bytearray(b"l"), memoryview(b"lo")], tag="mine")
    selector.send(send)
    selector.poll(1000)
    assert selector.completed_sends == [send]
    selector.poll(1000)
    assert (selector.completed_sends, received(selector), peer.frames) == ([], [("a", b"hello")], [b"hello"])


def test_writes_send_without_waiting_for_poll_timeout(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connect(system, selector)
    before = system.now()
    selector.send(NetworkSend("a", [b"x"]))
    selector.poll(10_000)
    assert (len(selector.completed_sends), system.now()) == (1, before)


def large_send_to_a_slow_reader() -> tuple[FakeSystem, Selector]:
    """Send 10,000 bytes to a peer that accepts 1,000 in every 5 ms."""
    system = FakeSystem(latency_ms=5.0, window_bytes=1000)
    system.listen("broker", 9092, UnresponsivePeer())
    selector = Selector(system)
    connect(system, selector)
    selector.send(NetworkSend("a", [b"x" * 10_000]))
    return system, selector


def test_one_poll_completes_send_over_many_partial_writes() -> None:
    _, selector = large_send_to_a_slow_reader()
    selector.poll(10_000)
    assert len(selector.completed_sends) == 1


def test_writing_poll_ends_at_its_timeout() -> None:
    system, selector = large_send_to_a_slow_reader()
    before = system.now()
    selector.poll(12)
    assert (selector.completed_sends, system.now() - before) == ([], 12)


def test_writing_poll_ends_at_wakeup() -> None:
    system, selector = large_send_to_a_slow_reader()
    before = system.now()
    system.after(12, selector.wakeup)
    selector.poll(10_000)
    assert (selector.completed_sends, system.now() - before) == ([], 12)


def test_writing_poll_ends_at_response_on_another_channel() -> None:
    system, selector = large_send_to_a_slow_reader()
    other = connect(system, selector, "other")
    other.send(frame(b"1"), after_ms=7)
    selector.poll(10_000)
    assert (selector.completed_sends, received(selector)) == ([], [("other", b"1")])


def test_rejects_second_send_while_channel_is_writing(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connect(system, selector)
    selector.send(NetworkSend("a", [b"x"]))
    with pytest.raises(IllegalStateError):
        selector.send(NetworkSend("a", [b"y"]))


def test_rejects_send_to_unknown_channel(selector: Selector) -> None:
    with pytest.raises(IllegalStateError, match="channel a does not exist"):
        selector.send(NetworkSend("a", [b"x"]))


def test_rejects_connect_with_id_in_use(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connect(system, selector)
    with pytest.raises(IllegalStateError):
        selector.connect("a", address(system))


def test_returns_responses_received_together_one_per_poll_in_order(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    connection.send(frame(b"1") + frame(b"2") + frame(b""))
    events = []
    for _ in range(3):
        selector.poll(1000)
        events.append(received(selector))
    assert events == [[("a", b"1")], [("a", b"2")], [("a", b"")]]


def test_busy_channel_does_not_delay_another(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    chatty, quiet = connect(system, selector, "chatty"), connect(system, selector, "quiet")
    chatty.send(frame(b"x") * 100)
    quiet.send(frame(b"y"))
    selector.poll(1000)
    assert received(selector) == [("chatty", b"x"), ("quiet", b"y")]


def test_assembles_frame_received_byte_by_byte(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    for position, byte in enumerate(frame(b"hello")):
        connection.send(bytes([byte]), after_ms=position)
    poll_until(selector, lambda: bool(selector.completed_receives))
    assert received(selector) == [("a", b"hello")]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "expects TLS"),
        (b"\xff\xff\xff\xff", "invalid frame length -1"),
        (b"\x7f\xff\xff\xff", "at most"),
    ],
)
def test_closes_foreign_peer_and_names_its_protocol(
    system: FakeSystem, selector: Selector, start: bytes, message: str
) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connect(system, selector).send(start)
    poll_until(selector, lambda: bool(selector.disconnected))
    error = selector.disconnected["a"].error
    assert isinstance(error, DecodeError)
    assert message in str(error)
    assert "broker:9092" in str(error)


def test_does_not_read_muted_channel(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connection = connect(system, selector)
    selector.mute("a")
    connection.send(frame(b"1"))
    selector.poll(1000)
    assert received(selector) == []
    selector.unmute("a")
    selector.poll(1000)
    assert received(selector) == [("a", b"1")]


def test_muted_channel_still_writes(system: FakeSystem, selector: Selector) -> None:
    peer = FramePeer(lambda connection, payload: None)
    system.listen("broker", 9092, peer)
    connect(system, selector)
    selector.mute("a")
    selector.send(NetworkSend("a", [b"x"]))
    selector.poll(100)
    selector.poll(100)
    assert peer.frames == [b"x"]
    selector.unmute("a")


def test_closes_least_recently_used_channels_when_idle(system: FakeSystem) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    selector = Selector(system, timeouts=ChannelTimeouts(idle_ms=1000))
    first, second = connect(system, selector, "first"), connect(system, selector, "second")
    first.send(frame(b"x"), after_ms=600)
    ends: list[tuple[float, str]] = []
    start = system.now()
    for _ in range(40):
        selector.poll(50)
        ends += [(system.now() - start, channel_id) for channel_id in selector.disconnected]
        assert all(state.kind is ChannelStateKind.EXPIRED for state in selector.disconnected.values())
    assert [channel_id for _, channel_id in ends] == ["second", "first"]
    assert ends[0][0] == pytest.approx(1000, abs=60)
    assert ends[1][0] == pytest.approx(1600, abs=60)
    assert second.open
    assert not system.open_sockets


def test_wakeup_ends_current_wait_but_not_the_next(system: FakeSystem, selector: Selector) -> None:
    system.after(100, selector.wakeup)
    system.after(100, selector.wakeup)
    before = system.now()
    selector.poll(10_000)
    assert system.now() - before == 100
    selector.poll(1000)
    assert system.now() - before == 1100
    selector.wakeup()
    selector.poll(1000)
    assert system.now() - before == 1100


def test_close_channel_closes_socket_without_reporting_it(system: FakeSystem, selector: Selector) -> None:
    peer = FramePeer()
    system.listen("broker", 9092, peer)
    connect(system, selector)
    selector.close_channel("a")
    selector.poll(100)
    assert (dict(selector.disconnected), peer.closed) == ({}, 1)
    assert not system.open_sockets


def test_reuses_id_after_channel_is_closed(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, FramePeer())
    connect(system, selector)
    selector.close_channel("a")
    connect(system, selector)
    assert selector.is_channel_ready("a")


def test_counts_traffic_per_id_over_successive_channels(system: FakeSystem) -> None:
    selector = Selector(system, counts_per_channel=True)
    for host in ("one", "two"):
        system.listen(host, 9092, FramePeer(lambda connection, payload: connection.send(frame(payload * 2))))
    for channel_id, host in (("a", "one"), ("b", "two"), ("a", "one")):
        selector.close_channel(channel_id)
        selector.connect(channel_id, system.resolve(host, 9092)[0])
        poll_until(selector, lambda: bool(selector.connected))
        selector.send(NetworkSend(channel_id, [b"12345"]))
        poll_until(selector, lambda: bool(selector.completed_receives))
    assert selector.counts.channel_counts is not None
    counts = selector.counts.channel_counts
    assert [(counts[name].sends, counts[name].receives) for name in ("a", "b")] == [(2, 2), (1, 1)]
    assert [(counts[name].bytes_sent, counts[name].bytes_received) for name in ("a", "b")] == [(18, 28), (9, 14)]
    assert [list(counts[name].send_sizes) for name in ("a", "b")] == [[9, 9], [9]]
    assert (selector.counts.bytes_sent, selector.counts.bytes_received, selector.counts.sends) == (27, 42, 3)


def test_counts_no_traffic_per_channel_by_default(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    connect(system, selector)
    assert selector.counts.channel_counts is None
    assert selector.counts.connections_opened == 1


def test_close_closes_all_sockets(system: FakeSystem, selector: Selector) -> None:
    system.listen("broker", 9092, UnresponsivePeer())
    for number in range(5):
        connect(system, selector, str(number))
    selector.close()
    assert not system.open_sockets


def test_stalled_peer_does_not_delay_others(system: FakeSystem, selector: Selector) -> None:
    """If one of three peers stops reading, the others receive as many frames (within 2 %) in as many polls."""

    def frames_delivered(stalled: int, polls: int) -> dict[str, int]:
        peer = FramePeer(lambda connection, payload: connection.send(frame(b"ok")))
        fake = FakeSystem(latency_ms=1.0, window_bytes=100_000)
        fake.listen("broker", 9092, peer)
        loop = Selector(fake)
        ends: list[FakeConnection] = [connect(fake, loop, str(number)) for number in range(3)]
        for end in ends[:stalled]:
            end.stall()
        segments, done = [b"x" * 60_000], {str(number): 0 for number in range(3)}
        for number in range(3):
            loop.send(NetworkSend(str(number), segments))
        for _ in range(polls):
            loop.poll(100)
            for channel_id, _payload in received(loop):
                done[channel_id] += 1
            for send in loop.completed_sends:
                loop.send(NetworkSend(send.channel_id, segments))
        return done

    alone, together = frames_delivered(stalled=0, polls=300), frames_delivered(stalled=1, polls=300)
    assert together["0"] == 0
    assert alone["1"] > 50
    assert [together["1"], together["2"]] == pytest.approx([alone["1"], alone["2"]], rel=0.02)
