"""Frames: a length of four bytes, big-endian and signed, then that many bytes. No IO here.

    +-------------------+----------------- - - -
    | length N (int32)  | payload, N bytes
    +-------------------+----------------- - - -

`FrameWriter` holds what is left to write of one frame, in the segments it was given: nothing is joined or
copied, and a write that stopped in the middle of a segment goes on there.

`FrameReader` collects frames. It reads AHEAD_BYTES at a time, so that a short frame, as most answers are, comes in one
turn with its length, and perhaps with the frame after it; it gets memory of its own when it is taken. The payload of a
long frame goes to where it stays, but for its beginning. The length is judged before anything is allocated for it, and
memory is taken as bytes arrive, because a length costs its sender nothing: only who has sent long frames before gets
the room for another one at once. A listener's reader asks for leave before it begins a long frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spark_kafka_sink.errors import DecodeError, IllegalStateError
from spark_kafka_sink.network.system import Buffer

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""The longest frame that is taken unless an option says otherwise: the brokers' own default for requests."""

FRAME_BYTES_LIMIT = 2**31 - 1
AHEAD_BYTES = 4 * 1024
GROWTH_BYTES_MIN = 64 * 1024
GROWTH_FACTOR = 4
TRUST_BYTES_MAX = 4 * 1024 * 1024

_LENGTH = struct.Struct(">i")

# What is read in place of a length if the other end speaks another protocol.
_FOREIGN_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"HTTP", "an HTTP server answered: this is not the port of a Kafka listener"),
    (b"GET ", "an HTTP request came in: this is the port of a Kafka listener"),
    (b"POST", "an HTTP request came in: this is the port of a Kafka listener"),
    (b"SSH-", "an SSH server answered: this is not the port of a Kafka listener"),
    (b"\x15\x03", "a TLS alert came in: the listener expects TLS, set security.protocol to SSL or SASL_SSL"),
    (b"\x16\x03", "a TLS handshake came in: one side speaks TLS and the other does not, compare security.protocol"),
)


class NetworkSend(NamedTuple):
    """One frame to be written, in segments whose items are bytes. `tag` is the caller's own and comes back with it."""

    channel_id: str
    segments: Sequence[Buffer]
    tag: object = None


class NetworkReceive(NamedTuple):
    channel_id: str
    payload: memoryview
    reserved: int = 0
    """Bytes that are to be given back to the selector when the payload is no longer needed."""


class FrameWriter:
    """What is left to write of one frame."""

    __slots__ = ("_position", "_segments", "done", "size", "written")

    def __init__(self, segments: Sequence[Buffer]) -> None:
        sizes = list(map(len, segments))
        if 0 in sizes:  # an attempt to write nothing would look like a socket that takes nothing
            segments = [segment for segment in segments if len(segment)]
        payload_size = sum(sizes)
        if payload_size > FRAME_BYTES_LIMIT:
            raise IllegalStateError(
                f"a frame of {payload_size} bytes: four bytes of length cannot say more than 2^31-1"
            )
        self._segments: list[Buffer] = [_LENGTH.pack(payload_size), *segments]
        self._position = 0
        self.written = 0
        self.done = False
        self.size = payload_size + _LENGTH.size

    def window(self, segments_max: int) -> list[Buffer]:
        """The next segments to write, the first of them without what is written of it already."""
        return self._segments[self._position : self._position + segments_max]

    def advance(self, written: int) -> None:
        self.written += written
        if self.written == self.size:  # nearly always at once
            self.done = True
            return
        segments, position = self._segments, self._position
        while written >= (size := len(segments[position])):
            written -= size
            position += 1
        if written:
            segments[position] = memoryview(segments[position])[written:]
        self._position = position


class FrameReader:
    """Collects a connection's frames: `take` the next; as long as there is none, fill `space()` and `advance()`."""

    __slots__ = ("_ahead", "_arrived", "_filled", "_longest", "_may_begin", "_payload", "_size", "_start", "starved")

    def __init__(self, may_begin: Callable[[int], bool] | None = None) -> None:
        """`may_begin` decides about each long frame, once; if it says no, `go_on` decides when the reading begins."""
        self.starved = False
        """There is no memory for the next frame: nothing may be read until `go_on`."""
        self._may_begin = may_begin
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._start = 0  # of the next frame in there
        self._arrived = 0  # the end of what is in there
        self._payload: memoryview | None = None  # of a long frame under way
        self._size = 0  # which it will have
        self._filled = 0  # number of bytes received so far
        self._longest = 0  # frame that came so far

    @property
    def has_input(self) -> bool:
        """With no more bytes, `take` has something to do: a whole frame, or a length to judge, came with the last."""
        rest = self._arrived - self._start
        if rest < _LENGTH.size or self.starved:
            return False
        size: int = _LENGTH.size + _LENGTH.unpack_from(self._ahead, self._start)[0]
        return size <= rest or size > AHEAD_BYTES

    @property
    def has_begun(self) -> bool:
        """A part of a frame is here, and not all of it was taken."""
        return self._payload is not None or self._arrived > self._start

    def go_on(self) -> None:
        """The memory for the frame that waits is there."""
        self.starved = False
        self._begin_long()

    def take(self, bytes_max: int) -> memoryview | None:
        """The payload of the next frame if all of it is here."""
        if self._payload is not None:
            return self._take_long()
        if self.starved:
            return None
        start = self._start + _LENGTH.size
        if start > self._arrived:
            return None
        size = _LENGTH.unpack_from(self._ahead, self._start)[0]
        if not 0 <= size <= bytes_max:
            raise DecodeError(_refusal(bytes(self._ahead[self._start : start]), size, bytes_max))
        end = start + size
        if end > self._arrived:
            if _LENGTH.size + size > AHEAD_BYTES:
                self.starved = self._may_begin is not None and not self._may_begin(size)
                if not self.starved:
                    self._begin_long()
            return None
        self._start = end
        return memoryview(bytearray(self._ahead[start:end]))

    def space(self) -> memoryview:
        """Where the next bytes go, after `take` has found no frame."""
        if self._payload is not None:
            if self._filled == len(self._payload):
                self._make_room()
            return self._payload[self._filled :]
        if self._start:
            rest = self._arrived - self._start
            self._ahead[:rest] = self._ahead[self._start : self._arrived]
            self._start, self._arrived = 0, rest
        return self._ahead[self._arrived :]

    def advance(self, received: int) -> None:
        if self._payload is not None:
            self._filled += received
        else:
            self._arrived += received

    def _begin_long(self) -> None:
        arrived = self._ahead[self._start + _LENGTH.size : self._arrived]
        self._size, self._filled = _LENGTH.unpack_from(self._ahead, self._start)[0], len(arrived)
        self._payload = arrived
        self._make_room()
        self._start = self._arrived = 0

    def _make_room(self) -> None:
        assert self._payload is not None
        first_bytes = max(GROWTH_BYTES_MIN, min(self._longest, TRUST_BYTES_MAX))
        capacity = min(self._size, max(first_bytes, GROWTH_FACTOR * self._filled))
        longer = np.empty(capacity, np.uint8).data  # a bytearray would be filled with zeros first
        longer[: self._filled] = self._payload
        self._payload = longer

    def _take_long(self) -> memoryview | None:
        if self._filled < self._size:
            return None
        payload, self._payload = self._payload, None
        self._longest = max(self._longest, self._size)
        return payload


def _refusal(start: bytes, size: int, bytes_max: int) -> str:
    for foreign, meaning in _FOREIGN_STARTS:
        if start.startswith(foreign):
            return f"not Kafka's protocol: {meaning}"
    if size < 0:
        return f"a frame of {size} bytes was announced: not Kafka's protocol, or the stream is out of step"
    return f"a frame of {size} bytes was announced, at most {bytes_max} are taken"
