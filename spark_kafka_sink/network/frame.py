"""Frames: a length of four bytes, big-endian and signed, then so many bytes. No IO here.

    +-------------------+----------------- - - -
    | length N (int32)  | payload, N bytes
    +-------------------+----------------- - - -

`FrameWriter` holds what is left to write of one frame, in the segments it was given: nothing is joined or
copied, and a write that stopped in the middle of a segment goes on there. `FrameReader` collects one frame. The length
is judged before anything is allocated, and memory is taken as bytes arrive, because a length costs its sender nothing:
only who has sent long frames before gets the room for another one at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spark_kafka_sink.errors import DecodeError, IllegalStateError
from spark_kafka_sink.network.system import Buffer

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""The longest frame that is taken unless an option says otherwise: the brokers' own default for requests."""

FRAME_BYTES_LIMIT = 2**31 - 1
GROWTH_BYTES_MIN = 64 * 1024
GROWTH_FACTOR = 4
TRUST_BYTES_MAX = 4 * 1024 * 1024

_LENGTH = struct.Struct(">i")

# What stands where a length should, when the other end speaks something else.
_FOREIGN_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"HTTP", "an HTTP server answered: this is not the port of a Kafka listener"),
    (b"GET ", "an HTTP request came in: this is the port of a Kafka listener"),
    (b"POST", "an HTTP request came in: this is the port of a Kafka listener"),
    (b"SSH-", "an SSH server answered: this is not the port of a Kafka listener"),
    (b"\x15\x03", "a TLS alert came in: the listener expects TLS, set security.protocol to SSL or SASL_SSL"),
    (b"\x16\x03", "a TLS handshake came in: one side speaks TLS and the other does not, compare security.protocol"),
)


class NetworkSend(NamedTuple):
    """One frame to be written. `tag` is the caller's own and comes back with the completed send."""

    channel_id: str
    segments: Sequence[Buffer]
    tag: object = None


class NetworkReceive(NamedTuple):
    channel_id: str
    payload: memoryview


class FrameWriter:
    """What is left to write of one frame."""

    __slots__ = ("_position", "_segments", "done", "size", "written")

    def __init__(self, segments: Sequence[Buffer]) -> None:
        # An empty segment would be an attempt to write nothing, which looks like a socket that takes nothing.
        # Nearly all of the others can be counted, cut and written as they are: their length is their bytes.
        pieces = [
            segment
            if type(segment) is bytes or (type(segment) is memoryview and len(segment) == segment.nbytes)
            else memoryview(segment).cast("B")
            for segment in segments
            if segment
        ]
        payload_size = sum(map(len, pieces))
        if payload_size > FRAME_BYTES_LIMIT:
            raise IllegalStateError(
                f"a frame of {payload_size} bytes: four bytes of length cannot say more than 2^31-1"
            )
        self._segments: list[bytes | memoryview] = [_LENGTH.pack(payload_size), *pieces]
        self._position = 0
        self.written = 0
        self.done = False
        self.size = payload_size + _LENGTH.size

    def window(self, segments_max: int) -> list[bytes | memoryview]:
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
    """Collects one frame: fill `space()`, say how much with `advance()`, until that returns the payload."""

    __slots__ = ("_buffer", "_bytes_max", "_filled", "_first_bytes", "_header_seen", "_size")

    def __init__(self, bytes_max: int, longest_before: int = 0) -> None:
        """`longest_before`: what the longest frame had that came from there."""
        self._bytes_max = bytes_max
        self._first_bytes = max(GROWTH_BYTES_MIN, min(longest_before, TRUST_BYTES_MAX))
        self._buffer = memoryview(bytearray(_LENGTH.size))
        self._size = _LENGTH.size
        self._filled = 0
        self._header_seen = False

    @property
    def started(self) -> bool:
        """Some bytes of the frame have arrived."""
        return self._header_seen or self._filled > 0

    def space(self) -> memoryview:
        """Where the next bytes go."""
        if self._filled == len(self._buffer):
            capacity = min(self._size, max(self._first_bytes, GROWTH_FACTOR * self._filled))
            longer = np.empty(capacity, np.uint8).data  # a bytearray would be filled with zeros first
            longer[: self._filled] = self._buffer
            self._buffer = longer
        return self._buffer[self._filled :]

    def advance(self, received: int) -> memoryview | None:
        self._filled += received
        if self._filled < self._size:
            return None
        if not self._header_seen:
            self._begin_payload(_LENGTH.unpack(self._buffer)[0])
            if self._size > 0:
                return None
        return self._buffer

    def _begin_payload(self, size: int) -> None:
        if not 0 <= size <= self._bytes_max:
            raise DecodeError(_refusal(bytes(self._buffer), size, self._bytes_max))
        self._header_seen = True
        self._buffer = memoryview(b"")
        self._size = size
        self._filled = 0


def _refusal(start: bytes, size: int, bytes_max: int) -> str:
    for foreign, meaning in _FOREIGN_STARTS:
        if start.startswith(foreign):
            return f"not Kafka's protocol: {meaning}"
    if size < 0:
        return f"a frame of {size} bytes was announced: not Kafka's protocol, or the stream is out of step"
    return f"a frame of {size} bytes was announced, at most {bytes_max} are taken"
