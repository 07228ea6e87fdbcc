"""Writer and bounds-checked reader for the primitives of Kafka's protocol.

A Writer collects encoded bytes. A payload that already exists as bytes becomes a separate segment instead of being
copied, unless it is so small that copying is cheaper.

A Reader reads bytes from a peer. It checks each length against the remaining bytes before allocating anything, so
memory and time stay proportional to the input. It raises no error other than DecodeError.

    unsigned varint   7 bits per byte, least significant group first; the high bit is set if more bytes follow

Signed varints are used only in records (records/fields.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from spark_kafka_sink.errors import DecodeError

Buffer = bytes | bytearray | memoryview

MAX_VARINT_BYTES = 5
_VARINT_BITS = 32

MAX_ARRAY_ELEMENTS = 4_000_000
"""Maximum number of array elements and tagged fields in a message.

An element of one byte on the wire can take two hundred bytes in memory, so limiting the frame length is not enough. The
metadata of a cluster with 200,000 partitions and three replicas each has 1.4 million elements.
"""

MAX_COPIED_BYTES = 128
"""Payload segments up to this size, such as a record batch's header, are copied because separate segments would cost
more."""

_INT16_LAYOUT = struct.Struct(">h")
_INT32_LAYOUT = struct.Struct(">i")
_ONE_BYTE_VARINTS = tuple(bytes([value]) for value in range(0x80))
_pack_two_bytes = struct.Struct("2B").pack  # much faster than bytes((first, second))
_pack_three_bytes = struct.Struct("3B").pack


def encode_unsigned_varint(value: int) -> bytes:
    """Encode a number from 0 to 2^32 - 1, for example 300 as AC 02."""
    if value < 0x80:  # nearly all lengths, counts and tags
        return _ONE_BYTE_VARINTS[value]
    if value < 0x4000:
        return _pack_two_bytes((value & 0x7F) | 0x80, value >> 7)
    data = bytearray()
    while value > 0x7F:
        data.append((value & 0x7F) | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def encode_compact_length(length: int) -> bytes:
    """Encode the length of a compact type as an unsigned varint. A length of -1 stands for null."""
    value = length + 1
    if value < 0x80:
        return _ONE_BYTE_VARINTS[value]
    if value < 0x4000:
        return _pack_two_bytes((value & 0x7F) | 0x80, value >> 7)
    if value < 0x20_0000:  # the lengths of most record batches
        return _pack_three_bytes((value & 0x7F) | 0x80, ((value >> 7) & 0x7F) | 0x80, value >> 14)
    return encode_unsigned_varint(value)


class Writer:
    """Collects encoded bytes. `put` appends a few bytes, and `put_payload` appends a payload that may be large."""

    __slots__ = ("_segments", "_short_buffers", "put")

    def __init__(self) -> None:
        self._segments: list[Buffer] = []
        self._short_buffers: list[Buffer] = []  # bytes after the last segment, to be joined into the next one
        self.put: Callable[[Buffer], None] = self._short_buffers.append

    def put_payload(self, segments: Sequence[Buffer], encode_length: Callable[[int], bytes]) -> None:
        """Append a payload's total length and then its segments. Long segments are not copied."""
        short_buffers = self._short_buffers
        short_buffers.append(encode_length(sum(map(len, segments))))
        for segment in segments:
            if len(segment) <= MAX_COPIED_BYTES:
                short_buffers.append(segment)
                continue
            if short_buffers:
                self._segments.append(b"".join(short_buffers))
                short_buffers.clear()
            self._segments.append(segment)

    def to_segments(self) -> list[Buffer]:
        """Return all appended bytes as buffers, in order. Each long payload segment is a separate buffer."""
        if self._short_buffers:
            self._segments.append(b"".join(self._short_buffers))
            self._short_buffers.clear()
        return self._segments


class Reader:
    """Reads a buffer from `position` on, and never beyond `end`."""

    __slots__ = ("buffer", "element_budget", "end", "position")

    def __init__(self, data: Buffer, max_elements: int = MAX_ARRAY_ELEMENTS) -> None:
        view = memoryview(data)
        self.buffer = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self.position = 0
        self.end = len(self.buffer)
        self.element_budget = max_elements  # how many array elements and tagged fields the message may still contain

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes from `position` to `end`."""
        return self.end - self.position

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the values of a fixed-size layout."""
        position = self.position
        next_position = position + layout.size
        if next_position > self.end:
            raise DecodeError(
                f"expected {layout.size} bytes at byte {position}, but only {self.remaining_bytes} remain"
            )
        self.position = next_position
        return layout.unpack_from(self.buffer, position)

    def read_view(self, size: int) -> memoryview:
        """Return a view of the next `size` bytes."""
        position = self.position
        next_position = position + size
        if size < 0 or next_position > self.end:
            raise DecodeError(
                f"invalid length {size} before byte {position}, after which {self.remaining_bytes} bytes remain"
            )
        self.position = next_position
        return self.buffer[position:next_position]

    def _read_long_varint(self) -> int:
        """Read an unsigned varint of any length. Called only if the varint is not a single byte."""
        buffer, position, end = self.buffer, self.position, self.end
        value = shift = 0
        for index in range(position, min(end, position + MAX_VARINT_BYTES)):
            byte = buffer[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> _VARINT_BITS:
                    raise DecodeError(f"varint at byte {position} exceeds {_VARINT_BITS} bits")
                self.position = index + 1
                return value
            shift += 7
        available_bytes = min(MAX_VARINT_BYTES, end - position)
        raise DecodeError(f"varint at byte {position} does not end within {available_bytes} bytes")

    def read_unsigned_varint(self) -> int:
        """Read a number from 0 to 2^32 - 1."""
        position = self.position
        if position < self.end:
            byte = self.buffer[position]
            if byte < 0x80:
                self.position = position + 1
                return byte
        return self._read_long_varint()

    def read_int16_length(self) -> int:
        """Read a two-byte length. -1 stands for null. `read_view` and `reserve_elements` reject negative lengths."""
        length: int = self.unpack(_INT16_LAYOUT)[0]
        return length

    def read_int32_length(self) -> int:
        """Read a four-byte length. Negative lengths are treated as in `read_int16_length`."""
        length: int = self.unpack(_INT32_LAYOUT)[0]
        return length

    def read_compact_length(self) -> int:
        """Read the length of a compact type. A length of -1 stands for null."""
        position = self.position
        if position < self.end:
            byte = self.buffer[position]
            if byte < 0x80:
                self.position = position + 1
                return byte - 1
        return self.read_unsigned_varint() - 1

    def reserve_elements(self, count: int, min_element_bytes: int) -> None:
        """Check a declared count of array elements or tagged fields, and deduct it from the message's element budget.

        Call this before allocating anything for the elements. Raise DecodeError if the remaining bytes cannot contain
        that many elements, or if the message would have more than `max_elements` in total.
        """
        # An element without fields has a minimum size of 0. Count it as one byte, so that the message's size also
        # limits the number of such elements.
        if count < 0 or count * (min_element_bytes or 1) > self.end - self.position:
            raise DecodeError(
                f"invalid count of {count} elements before byte {self.position}, after which {self.remaining_bytes} "
                "bytes remain"
            )
        self.element_budget -= count
        if self.element_budget < 0:
            raise DecodeError(f"too many array elements and tagged fields: {-self.element_budget} over the limit")
