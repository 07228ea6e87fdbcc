"""Long frames on many connections share a limited memory, and all of them are eventually read."""

from __future__ import annotations

import random
import struct

import pytest

from spark_kafka_sink.network.channel import KafkaChannel
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.frame import READ_AHEAD_BYTES, NetworkReceive
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.selector import Selector
from tests.fake_system import FakeSystem, Peer
from tests.network.peers import connect, frame

LONG = 3 * READ_AHEAD_BYTES


class Listener:
    """A selector with memory for `frames` long frames, and connections to peers that send them."""

    def __init__(self, frames: float, connections: int) -> None:
        self.system = FakeSystem()
        self.system.listen("broker", 9092, Peer())
        self.memory: FrameMemory[KafkaChannel] = FrameMemory(int(frames * LONG))
        self.selector = Selector(
            self.system, frame_memory=self.memory, timeouts=ChannelTimeouts(idle_ms=-1, setup_ms=1000, frame_ms=1000)
        )
        self.peers = [connect(self.system, self.selector, str(number)) for number in range(connections)]
        self.kept: list[NetworkReceive] = []
        self.ended: dict[str, str] = {}

    def poll(self) -> list[str]:
        """Poll, and return the received frames. Their memory is reserved until `release_memory`."""
        self.selector.poll(100)
        self.kept += self.selector.completed_receives
        self.ended.update({name: str(state.error) for name, state in self.selector.disconnected.items()})
        assert 0 <= self.memory.available_bytes <= self.memory.max_bytes
        return [receive.channel_id for receive in self.selector.completed_receives]

    def release_memory(self, count: int) -> None:
        for receive in self.kept[:count]:
            self.selector.release_memory(receive.reserved_bytes)
        del self.kept[:count]


def test_does_not_read_frame_until_memory_is_available() -> None:
    listener = Listener(frames=2.5, connections=10)
    for peer in listener.peers:
        peer.send(frame(bytes(LONG)))
    for _ in range(3):
        listener.poll()
    assert [receive.channel_id for receive in listener.kept] == ["0", "1"]
    order = ["0", "1"]
    while listener.kept:
        listener.release_memory(1)
        for _ in range(2):
            order += listener.poll()
        assert len(listener.kept) <= 2
    assert order == [str(number) for number in range(10)]
    assert listener.memory.available_bytes == listener.memory.max_bytes
    assert listener.ended == {}


def test_short_frames_do_not_overtake_queued_long_frame() -> None:
    listener = Listener(frames=3, connections=3)
    small, large, other = listener.peers
    small.send(frame(bytes(LONG)))
    listener.poll()
    large.send(frame(bytes(3 * LONG)))
    listener.poll()
    other.send(frame(bytes(LONG)))
    for _ in range(3):
        assert listener.poll() == []
    listener.release_memory(1)
    assert [listener.poll(), listener.poll()] == [["1"], []]
    listener.release_memory(1)
    assert listener.poll() == ["2"]


def test_short_frames_need_no_reservation() -> None:
    listener = Listener(frames=1, connections=2)
    listener.peers[0].send(struct.pack(">i", LONG))
    listener.poll()
    assert listener.memory.available_bytes == 0
    listener.peers[1].send(frame(bytes(READ_AHEAD_BYTES - 4)))
    assert listener.poll() == ["1"]
    assert listener.kept[0].reserved_bytes == 0


@pytest.mark.parametrize("disconnection", ["ended by its client", "closed here", "too late"])
def test_releases_memory_of_partial_frame_on_disconnection(disconnection: str) -> None:
    listener = Listener(frames=1, connections=2)
    half, whole = listener.peers
    half.send(struct.pack(">i", LONG) + bytes(10))
    listener.poll()
    whole.send(frame(bytes(LONG)))
    assert listener.poll() == []
    if disconnection == "ended by its client":
        half.close()
    elif disconnection == "closed here":
        listener.selector.close_channel("0")
    else:
        begun = listener.system.now()
        assert [listener.poll() for _ in range(8)] == [[]] * 8
        assert listener.system.now() - begun < 1000
    assert [name for _ in range(3) for name in listener.poll()] == ["1"]
    assert ("1" in listener.ended, listener.memory.available_bytes) == (False, 0)


def test_disconnected_channel_leaves_memory_queue() -> None:
    listener = Listener(frames=1, connections=3)
    for peer in listener.peers:
        peer.send(frame(bytes(LONG)))
    listener.poll()
    listener.selector.close_channel("1")
    listener.release_memory(1)
    assert [name for _ in range(3) for name in listener.poll()] == ["2"]


def test_closes_connection_when_frame_exceeds_all_memory() -> None:
    listener = Listener(frames=1, connections=1)
    listener.peers[0].send(struct.pack(">i", LONG + 1))
    listener.poll()
    assert f"at most {LONG} bytes are allowed" in listener.ended["0"]
    assert listener.memory.available_bytes == LONG


def test_muted_channel_with_granted_memory_resumes_when_unmuted() -> None:
    listener = Listener(frames=1, connections=2)
    for peer in listener.peers:
        peer.send(frame(bytes(LONG)))
    listener.poll()
    listener.selector.mute("1")
    listener.release_memory(1)
    assert [listener.poll() for _ in range(3)] == [[], [], []]
    listener.selector.unmute("1")
    assert listener.poll() == ["1"]


def test_releases_all_memory_after_any_sequence_of_events() -> None:
    source = random.Random(3)
    listener = Listener(frames=3.5, connections=12)
    for _ in range(400):
        peer = source.choice([peer for peer in listener.peers if peer.open] or listener.peers)
        name = str(listener.peers.index(peer))
        action = source.randrange(10)
        if action < 5 and peer.open:
            size = source.choice((10, LONG, 2 * LONG))
            peer.send(frame(bytes(size))[: source.choice((None, None, 10, LONG // 2))])
        elif action == 5:
            peer.close()
        elif listener.selector.channel(name) is not None and action == 6:
            listener.selector.close_channel(name)
            peer.open = False
        elif listener.selector.channel(name) is not None and action == 7:
            listener.selector.mute(name)
        elif listener.selector.channel(name) is not None:
            listener.selector.unmute(name)
        listener.poll()
        listener.release_memory(source.randrange(3))
    for number in range(12):
        if listener.selector.channel(str(number)) is not None:
            listener.selector.unmute(str(number))
    for _ in range(100):
        listener.poll()
        listener.release_memory(len(listener.kept))
    listener.selector.close()
    assert listener.memory.available_bytes == listener.memory.max_bytes
