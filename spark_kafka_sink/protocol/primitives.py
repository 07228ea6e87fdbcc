"""Reading and writing the primitives of Kafka's protocol, in bounds.

A Writer collects what is written, piece by piece; payloads that already exist as bytes are spliced in as segments of
their own and not copied, unless they are so small that a copy is the least of it. A Reader walks over bytes
that come from a peer: it checks each length against the bytes that remain before it allocates anything, so memory and
time stay proportional to the input, and DecodeError is all that it raises.

    unsigned varint   7 bits a byte, least significant group first, the high bit says that another byte follows

Signed ones stand in records alone: records/fields.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from spark_kafka_sink.errors import DecodeError

Buffer = bytes | bytearray | memoryview

VARINT_BYTES_MAX = 5
_VARINT_BITS = 32

# An array element can take one byte on the wire and two hundred in memory, so a frame's length alone is a loose bound.
# The metadata of a cluster with 200,000 partitions, three replicas each, has 1.4 million elements.
ELEMENTS_MAX = 4_000_000

COPIED_BYTES_MAX = 128
"""A segment costs more than a copy of this few bytes, for example of a record batch's header."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))
_TWO_BYTES = struct.Struct("2B").pack  # far quicker than bytes() of a tuple of numbers
_THREE_BYTES = struct.Struct("3B").pack


def unsigned_varint(value: int) -> bytes:
    if value < 0x80:  # nearly all of them: lengths, counts and tags are small
        return _ONE_BYTE[value]
    if value < 0x4000:
        return _TWO_BYTES(value & 0x7F | 0x80, value >> 7)
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def compact_length(length: int) -> bytes:
    value = length + 1
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return _TWO_BYTES(value & 0x7F | 0x80, value >> 7)
    if value < 0x20_0000:  # the lengths of most record batches
        return _THREE_BYTES(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    return unsigned_varint(value)


class Writer:
    """`put` takes one piece; `segments` are all that was put, joined, with the spliced ones between."""

    __slots__ = ("_pieces", "_segments", "put")

    def __init__(self) -> None:
        self._segments: list[Buffer] = []
        self._pieces: list[Buffer] = []  # behind the last segment
        self.put: Callable[[Buffer], None] = self._pieces.append

    def splice(self, segments: Sequence[Buffer], pack_length: Callable[[int], bytes]) -> None:
        """Put the length of the segments, then the segments themselves without a copy."""
        pieces = self._pieces
        pieces.append(pack_length(sum(map(len, segments))))
        for segment in segments:
            if len(segment) <= COPIED_BYTES_MAX:
                pieces.append(segment)
                continue
            if pieces:
                self._segments.append(b"".join(pieces))
                pieces.clear()
            self._segments.append(segment)

    def segments(self) -> list[Buffer]:
        if self._pieces:
            self._segments.append(b"".join(self._pieces))
            self._pieces.clear()
        return self._segments


class Reader:
    """Reads from `position` up to `end`, never beyond."""

    __slots__ = ("buffer", "elements_left", "end", "position")

    def __init__(self, data: Buffer, elements_max: int = ELEMENTS_MAX) -> None:
        view = memoryview(data)
        self.buffer = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self.position = 0
        self.end = len(self.buffer)
        self.elements_left = elements_max

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        position = self.position
        after = position + layout.size
        if after > self.end:
            raise DecodeError(f"{layout.size} bytes needed at byte {position}, {self.end - position} are left")
        self.position = after
        return layout.unpack_from(self.buffer, position)

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        position = self.position
        after = position + size
        if size < 0 or after > self.end:
            raise DecodeError(f"length {size} at byte {position}, {self.end - position} are left")
        self.position = after
        return self.buffer[position:after]

    def _long_varint(self) -> int:
        buffer, position, end = self.buffer, self.position, self.end
        value = shift = 0
        for index in range(position, min(end, position + VARINT_BYTES_MAX)):
            byte = buffer[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> _VARINT_BITS:
                    raise DecodeError(f"varint at byte {position} exceeds {_VARINT_BITS} bits")
                self.position = index + 1
                return value
            shift += 7
        bytes_there = min(VARINT_BYTES_MAX, end - position)
        raise DecodeError(f"varint at byte {position} has no end within {bytes_there} bytes")

    def unsigned_varint(self) -> int:
        position = self.position
        if position < self.end:
            byte = self.buffer[position]
            if byte < 0x80:
                self.position = position + 1
                return byte
        return self._long_varint()

    def int16_length(self) -> int:
        length: int = self.fixed(_INT16)[0]
        return length

    def int32_length(self) -> int:
        length: int = self.fixed(_INT32)[0]
        return length

    def compact_length(self) -> int:
        position = self.position
        if position < self.end:
            byte = self.buffer[position]
            if byte < 0x80:
                self.position = position + 1
                return byte - 1
        return self.unsigned_varint() - 1

    def count(self, count: int, element_bytes_min: int) -> int:
        """Checks an array's count before anything is allocated for it."""
        if count < 0 or count * (element_bytes_min or 1) > self.end - self.position:
            raise DecodeError(f"count {count} before byte {self.position}, {self.end - self.position} bytes are left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise DecodeError(f"{-self.elements_left} array elements more than one message may have")
        return count
