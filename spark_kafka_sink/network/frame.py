"""Kafka's framing: a four-byte length (big-endian, signed), then a payload of that many bytes. No I/O is done here.

    +-------------------+----------------- - - -
    | length N (int32)  | payload, N bytes
    +-------------------+----------------- - - -

`OutgoingFrame` tracks which part of a frame has not been written yet. It neither joins nor copies the payload's
segments. If a write stops inside a segment, the next write continues there.

`FrameReader` assembles frames. It reads up to READ_AHEAD_BYTES at once. Most responses are short, so one read usually
picks up both the length and the payload of a frame, and often the next frame as well. A short frame is copied out of
the buffer when it is returned. A long frame has memory of its own: the bytes already in the buffer are moved there, and
the rest is received into it directly.

A peer can announce any length at no cost, so the length is validated before memory is allocated, and a long frame's
memory grows as its bytes arrive. Only a peer that has sent long frames before gets up to MAX_TRUSTED_BYTES at once.
On a listener, the reader also reserves memory before it starts a long frame (see frame_memory.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spark_kafka_sink.errors import DecodeError, IllegalStateError
from spark_kafka_sink.network.system import Buffer

DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""The default maximum frame size, which equals the default of the broker setting socket.request.max.bytes."""

MAX_FRAME_BYTES = 2**31 - 1
"""The largest frame size that an int32 length can express."""

READ_AHEAD_BYTES = 4 * 1024
"""The size of a reader's buffer. A frame is long if its length and payload together do not fit into the buffer."""

MIN_GROWTH_BYTES = 64 * 1024
"""The minimum memory allocated for a long frame, unless its whole payload needs less."""

GROWTH_FACTOR = 4
"""When a long frame's memory is full, it grows to this multiple of the bytes received so far."""

MAX_TRUSTED_BYTES = 4 * 1024 * 1024
"""The maximum memory allocated when a long frame starts.

A peer gets at most the size of the longest frame that it has sent before, but not less than MIN_GROWTH_BYTES.
"""

_LENGTH = struct.Struct(">i")

# The first bytes of other protocols, which the reader would take for a frame length, and how to explain them.
_FOREIGN_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (b"HTTP", "an HTTP server responded: this is not the port of a Kafka listener"),
    (b"GET ", "an HTTP request was received: this is the port of a Kafka listener"),
    (b"POST", "an HTTP request was received: this is the port of a Kafka listener"),
    (b"SSH-", "an SSH server responded: this is not the port of a Kafka listener"),
    (b"\x15\x03", "a TLS alert was received: the listener expects TLS, set security.protocol to SSL or SASL_SSL"),
    (b"\x16\x03", "a TLS handshake was received: only one side uses TLS, compare security.protocol on both sides"),
)


class NetworkSend(NamedTuple):
    """A frame to send. Its payload is the concatenation of the segments.

    `tag`: any object; the caller gets it back with the send in `Selector.completed_sends`.
    """

    channel_id: str
    segments: Sequence[Buffer]
    tag: object = None


class NetworkReceive(NamedTuple):
    """A received frame, without its length."""

    channel_id: str
    payload: memoryview
    reserved_bytes: int = 0
    """The number of bytes to pass to `Selector.release_memory` once the payload is no longer needed."""


class OutgoingFrame:
    """A frame that is being written. It tracks which part of the frame the transport has not accepted yet."""

    __slots__ = ("_position", "_segments", "is_complete", "size", "written_bytes")

    def __init__(self, segments: Sequence[Buffer]) -> None:
        sizes = list(map(len, segments))
        if 0 in sizes:  # writing only empty segments would look like a socket that accepts no bytes
            segments = [segment for segment in segments if len(segment)]
        payload_size = sum(sizes)
        if payload_size > MAX_FRAME_BYTES:
            raise IllegalStateError(
                f"cannot send a frame of {payload_size} bytes: the protocol's limit is {MAX_FRAME_BYTES} bytes"
            )
        self._segments: list[Buffer] = [_LENGTH.pack(payload_size), *segments]
        self._position = 0
        self.written_bytes = 0
        self.is_complete = False
        self.size = payload_size + _LENGTH.size

    def next_segments(self, max_segments: int) -> list[Buffer]:
        """Return the next segments to write, excluding bytes that have already been written."""
        return self._segments[self._position : self._position + max_segments]

    def advance(self, newly_written_bytes: int) -> None:
        """Record that this many more bytes have been written."""
        self.written_bytes += newly_written_bytes
        if self.written_bytes == self.size:  # the usual case: the whole frame in one write
            self.is_complete = True
            return
        segments, position = self._segments, self._position
        # Skip the segments that were written in full. If the next one was written in part, keep the rest of it. For
        # example, with segments of 4, 10 and 20 bytes and 7 bytes written, 7 and 20 bytes remain.
        while newly_written_bytes >= (size := len(segments[position])):
            newly_written_bytes -= size
            position += 1
        if newly_written_bytes:
            segments[position] = memoryview(segments[position])[newly_written_bytes:]
        self._position = position


class FrameReader:
    """Assembles the frames of a connection.

    Call `next_frame` until it returns None. Then read into `prepare_buffer()` and call `advance` with the byte count.
    """

    __slots__ = (
        "_buffer",
        "_longest_frame_bytes",
        "_payload",
        "_payload_size",
        "_received_payload_bytes",
        "_try_reserve",
        "_unread_end",
        "_unread_start",
        "is_waiting_for_memory",
    )

    def __init__(self, try_reserve: Callable[[int], bool] | None = None) -> None:
        """Create the reader for a new connection.

        `try_reserve`: reserves memory; called once for each long frame, with the payload size. If it returns False, the
        frame is not read until `resume` is called. None means that memory is not limited.
        """
        self.is_waiting_for_memory = False
        """Whether the next frame is still waiting for memory. Nothing may be read until `resume` is called."""
        self._try_reserve = try_reserve
        self._buffer = memoryview(bytearray(READ_AHEAD_BYTES))
        self._unread_start = 0  # _buffer[_unread_start:_unread_end] has not been returned yet
        self._unread_end = 0
        self._payload: memoryview | None = None  # memory for the long frame in progress; may still grow
        self._payload_size = 0  # the full payload size of the long frame
        self._received_payload_bytes = 0  # how many bytes of the long frame have been received
        self._longest_frame_bytes = 0  # the payload size of the longest frame so far

    @property
    def has_buffered_input(self) -> bool:
        """Whether `next_frame` can make progress without more bytes.

        It can if the buffer contains a whole frame, and also if the frame is long, because `next_frame` then moves it
        to memory of its own.
        """
        unread_bytes = self._unread_end - self._unread_start
        if unread_bytes < _LENGTH.size or self.is_waiting_for_memory:
            return False
        payload_size: int = _LENGTH.unpack_from(self._buffer, self._unread_start)[0]
        frame_size = _LENGTH.size + payload_size
        return frame_size <= unread_bytes or frame_size > READ_AHEAD_BYTES

    @property
    def has_partial_frame(self) -> bool:
        """Whether bytes have been received that `next_frame` has not returned yet."""
        return self._payload is not None or self._unread_end > self._unread_start

    def resume(self) -> None:
        """Start reading the frame whose memory has been granted."""
        self.is_waiting_for_memory = False
        self._begin_long_frame()

    def next_frame(self, max_bytes: int) -> memoryview | None:
        """Return the payload of the next frame, or None if the frame is incomplete or waiting for memory.

        Raise DecodeError if the frame is longer than `max_bytes`, or if the peer speaks another protocol.
        """
        if self._payload is not None:
            return self._finish_long_frame()
        if self.is_waiting_for_memory:
            return None
        payload_start = self._unread_start + _LENGTH.size
        if payload_start > self._unread_end:
            return None
        payload_size = _LENGTH.unpack_from(self._buffer, self._unread_start)[0]
        if not 0 <= payload_size <= max_bytes:
            length_bytes = bytes(self._buffer[self._unread_start : payload_start])
            raise DecodeError(_describe_invalid_length(length_bytes, payload_size, max_bytes))
        payload_end = payload_start + payload_size
        if payload_end > self._unread_end:
            # A short frame stays in the buffer until it is complete. A long one gets memory of its own.
            if _LENGTH.size + payload_size > READ_AHEAD_BYTES:
                if self._try_reserve is None or self._try_reserve(payload_size):
                    self._begin_long_frame()
                else:
                    self.is_waiting_for_memory = True
            return None
        self._unread_start = payload_end
        return memoryview(bytearray(self._buffer[payload_start:payload_end]))

    def prepare_buffer(self) -> memoryview:
        """Make room for the next bytes and return the memory to read them into.

        Call this only after `next_frame` has returned None.
        """
        if self._payload is not None:
            if self._received_payload_bytes == len(self._payload):
                self._grow_payload()
            return self._payload[self._received_payload_bytes :]
        if self._unread_start:
            unread_bytes = self._unread_end - self._unread_start
            self._buffer[:unread_bytes] = self._buffer[self._unread_start : self._unread_end]
            self._unread_start, self._unread_end = 0, unread_bytes
        return self._buffer[self._unread_end :]

    def advance(self, received_bytes: int) -> None:
        """Record that this many bytes have been read into the buffer."""
        if self._payload is not None:
            self._received_payload_bytes += received_bytes
        else:
            self._unread_end += received_bytes

    def _begin_long_frame(self) -> None:
        """Move the first bytes of a long frame from the buffer to memory of its own."""
        received_payload = self._buffer[self._unread_start + _LENGTH.size : self._unread_end]
        self._payload_size = _LENGTH.unpack_from(self._buffer, self._unread_start)[0]
        self._received_payload_bytes = len(received_payload)
        self._payload = received_payload
        self._grow_payload()  # copies the received bytes, so the buffer can be reused
        self._unread_start = self._unread_end = 0

    def _grow_payload(self) -> None:
        """Move the bytes received so far to a larger buffer, which is at most as large as the whole payload."""
        assert self._payload is not None
        initial_bytes = max(MIN_GROWTH_BYTES, min(self._longest_frame_bytes, MAX_TRUSTED_BYTES))
        capacity = min(self._payload_size, max(initial_bytes, GROWTH_FACTOR * self._received_payload_bytes))
        payload = np.empty(capacity, np.uint8).data  # unlike a bytearray, this memory is not zeroed first
        payload[: self._received_payload_bytes] = self._payload
        self._payload = payload

    def _finish_long_frame(self) -> memoryview | None:
        """Return the payload of the long frame in progress, or None if it is incomplete."""
        if self._received_payload_bytes < self._payload_size:
            return None
        payload, self._payload = self._payload, None
        self._longest_frame_bytes = max(self._longest_frame_bytes, self._payload_size)
        return payload


def _describe_invalid_length(length_bytes: bytes, size: int, max_bytes: int) -> str:
    """Explain an invalid frame length. Its bytes may show that the peer speaks another protocol."""
    for prefix, meaning in _FOREIGN_PREFIXES:
        if length_bytes.startswith(prefix):
            return f"not Kafka's protocol: {meaning}"
    if size < 0:
        return f"invalid frame length {size}: the peer does not speak Kafka's protocol, or the stream is corrupt"
    return f"the peer announced a frame of {size} bytes; at most {max_bytes} bytes are allowed"
