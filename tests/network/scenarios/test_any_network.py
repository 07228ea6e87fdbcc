"""Properties of a Selector: frames survive any network, and no bytes of a peer make `poll` raise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import AuthenticationError, DecodeError, DisconnectedError
from spark_kafka_sink.network.channel import ChannelBuilder
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeConnection, FakeSystem, Peer
from tests.network.peers import FramePeer, frame, poll_until
from tests.network.security.sasl_peers import Mutual, sasl_channels
from tests.network.test_tls import build_client_ssl_context, tls_channels

CHANNELS = ("a", "b", "c")


class DelayedResponder(FramePeer):
    """Responds after these delays, in pieces of this size."""

    def __init__(self, delays_ms: list[int], piece_bytes: int) -> None:
        super().__init__(self._respond_after_delay)
        self._delays_ms = delays_ms
        self._piece_bytes = piece_bytes
        self._turn = 0

    def _respond_after_delay(self, connection: FakeConnection, payload: bytes) -> None:
        self._turn += 1
        delay_ms = self._delays_ms[self._turn % len(self._delays_ms)]
        response_frame = frame(payload[::-1])
        for start in range(0, len(response_frame), self._piece_bytes):
            connection.send(response_frame[start : start + self._piece_bytes], after_ms=delay_ms)


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.tuples(st.sampled_from(CHANNELS), st.binary(max_size=200)), min_size=1, max_size=25),
    delays_ms=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    piece_bytes=st.integers(1, 300),
    max_write_bytes=st.integers(1, 100),
    window_bytes=st.integers(1, 500),
    muted_turns=st.sets(st.integers(0, 60), max_size=20),
)
def test_frames_arrive_complete_once_and_in_order(
    payloads: list[tuple[str, bytes]],
    delays_ms: list[int],
    piece_bytes: int,
    max_write_bytes: int,
    window_bytes: int,
    muted_turns: set[int],
) -> None:
    system = FakeSystem(latency_ms=1.0, window_bytes=window_bytes)
    selector, peers = Selector(system), dict.fromkeys(CHANNELS, FramePeer())
    for port, channel_id in enumerate(CHANNELS):
        peers[channel_id] = DelayedResponder(delays_ms, piece_bytes)
        system.listen("broker", port, peers[channel_id])
        selector.connect(channel_id, system.resolve("broker", port)[0])
    poll_until(selector, lambda: all(map(selector.is_channel_ready, CHANNELS)))
    for connection in system.connections:
        connection.socket.max_write_bytes = max_write_bytes
    waiting, busy, turn = list(payloads), set[str](), 0
    responses: dict[str, list[bytes]] = {channel_id: [] for channel_id in CHANNELS}
    while waiting or sum(map(len, responses.values())) < len(payloads):
        assert turn < 50_000
        (selector.mute if turn in muted_turns else selector.unmute)("a")
        if waiting and waiting[0][0] not in busy:
            channel_id, payload = waiting.pop(0)
            selector.send(NetworkSend(channel_id, [payload[:7], payload[7:]]))
            busy.add(channel_id)
        selector.poll(5)
        busy -= {send.channel_id for send in selector.completed_sends}
        for receive in selector.completed_receives:
            responses[receive.channel_id].append(bytes(receive.payload))
        turn += 1
    for channel_id in CHANNELS:
        sent_payloads = [payload for payload_channel_id, payload in payloads if payload_channel_id == channel_id]
        assert peers[channel_id].frames == sent_payloads
        assert responses[channel_id] == [payload[::-1] for payload in sent_payloads]


class ArbitraryBytesPeer(Peer):
    """Sends these pieces after a connection is established, and then closes it."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def on_connect(self, connection: FakeConnection) -> None:
        for delay_ms, piece in enumerate(self._pieces):
            connection.send(piece, after_ms=delay_ms)
        connection.close(after_ms=100)


@pytest.fixture(scope="module")
def builders(tmp_path_factory: pytest.TempPathFactory) -> list[ChannelBuilder]:
    folder: Path = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return [
        build_plaintext_channel,
        sasl_channels(Mutual),
        tls_channels(build_client_ssl_context(folder), server=False),
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.binary(max_size=40).map(frame),
            st.binary(max_size=30).map(lambda body: b"\x16\x03\x03" + len(body).to_bytes(2, "big") + body),
        ),
        max_size=6,
    )
)
def test_poll_never_raises_for_arbitrary_peer_bytes(builders: list[ChannelBuilder], pieces: list[bytes]) -> None:
    for channels in builders:
        _poll_until_disconnected(channels, pieces)


def _poll_until_disconnected(channels: ChannelBuilder, pieces: list[bytes]) -> None:
    system = FakeSystem()
    system.listen("broker", 9092, ArbitraryBytesPeer(pieces))
    selector = Selector(system, channel_builder=channels)
    selector.connect("a", system.resolve("broker", 9092)[0])
    poll_until(selector, lambda: bool(selector.disconnected), 200)
    error = selector.disconnected["a"].error
    assert isinstance(error, AuthenticationError | DecodeError | DisconnectedError)
    assert str(error).startswith("broker:9092: ")
    assert not system.open_sockets
