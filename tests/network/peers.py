"""Scripted peers that exchange frames, and helpers that drive a Selector."""

from __future__ import annotations

import struct
from collections.abc import Callable

from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import SocketAddress
from tests.fake_system import FakeConnection, FakeSystem, Peer


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class FramePeer(Peer):
    """Splits received bytes into frames, and passes each to `respond`, which sends it back by default."""

    def __init__(self, respond: Callable[[FakeConnection, bytes], None] | None = None) -> None:
        self.frames: list[bytes] = []
        self.closed = 0
        self._respond = respond or (lambda connection, payload: connection.send(frame(payload)))
        self._bytes: dict[FakeConnection, bytes] = {}

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        pending = self._bytes.get(connection, b"") + data
        while len(pending) >= 4:
            size = struct.unpack_from(">i", pending)[0]
            if len(pending) < 4 + size:
                break
            payload, pending = pending[4 : 4 + size], pending[4 + size :]
            self.frames.append(payload)
            self._respond(connection, payload)
        self._bytes[connection] = pending

    def on_close(self, connection: FakeConnection) -> None:
        self.closed += 1


class UnresponsivePeer(Peer):
    """Accepts connections and bytes, and never responds."""


def address(system: FakeSystem, port: int = 9092) -> SocketAddress:
    return system.resolve("broker", port)[0]


def connect(system: FakeSystem, selector: Selector, channel_id: str = "a", port: int = 9092) -> FakeConnection:
    """Connect, and return the peer's end of the connection."""
    selector.connect(channel_id, address(system, port))
    selector.poll(1000)
    assert selector.connected == [channel_id]
    return system.connections[-1]


def received(selector: Selector) -> list[tuple[str, bytes]]:
    return [(receive.channel_id, bytes(receive.payload)) for receive in selector.completed_receives]


def poll_until(selector: Selector, done: Callable[[], bool], max_polls: int = 1000) -> int:
    """Poll until the condition holds after a poll. Return the number of polls."""
    for count in range(1, max_polls + 1):
        selector.poll(1000)
        if done():
            return count
    raise AssertionError(f"not within {max_polls} polls")
