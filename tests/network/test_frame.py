"""Frames: segments are not copied, memory grows with the received bytes, and invalid lengths are rejected."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.network.frame import (
    DEFAULT_MAX_FRAME_BYTES,
    MAX_TRUSTED_BYTES,
    MIN_GROWTH_BYTES,
    READ_AHEAD_BYTES,
    FrameReader,
    OutgoingFrame,
)


def feed(reader: FrameReader, data: bytes, max_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> list[bytes]:
    """Pass bytes to a reader as it has space for them, and return the payloads of complete frames."""
    payloads = []
    while True:
        while (payload := reader.next_frame(max_bytes)) is not None:
            payloads.append(bytes(payload))
        if not data:
            return payloads
        space = reader.prepare_buffer()
        count = min(len(space), len(data))
        assert count > 0
        space[:count] = data[:count]
        reader.advance(count)
        data = data[count:]


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.integers(1, 60), min_size=1), st.integers(1, 5))
def test_partial_writes_add_up_to_the_frame(segments: list[bytes], takes: list[int], max_segments: int) -> None:
    writer, written, turn = OutgoingFrame(segments), bytearray(), 0
    while not writer.is_complete:
        window = writer.next_segments(max_segments)
        assert 0 < len(window) <= max_segments
        assert all(window), "an empty segment would look like a socket that takes nothing"
        joined = b"".join(window)[: takes[turn % len(takes)]]
        written += joined
        writer.advance(len(joined))
        turn += 1
    payload = b"".join(segments)
    assert bytes(written) == struct.pack(">i", len(payload)) + payload
    assert writer.size == writer.written_bytes == len(written)


def test_segments_are_views_of_caller_memory() -> None:
    memory = bytearray(b"abc")
    writer = OutgoingFrame([memory])
    memory[0] = ord("x")
    assert [bytes(view) for view in writer.next_segments(10)] == [b"\0\0\0\3", b"xbc"]


def test_writes_many_tiny_segments_in_linear_time() -> None:
    writer = OutgoingFrame([b"xy"] * 10_000)
    handled = 0
    while not writer.is_complete:
        window = writer.next_segments(1024)
        handled += len(window)
        writer.advance(sum(map(len, window)) - 1)
        if not writer.is_complete and len(writer.next_segments(2)) == 1:
            writer.advance(1)
    assert handled < 10_100


PAYLOADS = st.one_of(
    st.binary(max_size=300),
    st.integers(READ_AHEAD_BYTES - 8, READ_AHEAD_BYTES + 8).map(
        lambda size: bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    ),
    st.integers(MIN_GROWTH_BYTES - 4, MIN_GROWTH_BYTES + 4).map(bytes),
)


@given(
    st.lists(PAYLOADS, min_size=1, max_size=6), st.lists(st.integers(1, 3 * READ_AHEAD_BYTES), min_size=1, max_size=20)
)
def test_reads_same_frames_from_any_chunks(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)
    received_payloads: list[bytes] = []
    reader, turn = FrameReader(), 0
    while stream:
        cut = cuts[turn % len(cuts)] if turn < 500 else len(stream)
        received_payloads += feed(reader, stream[:cut])
        stream, turn = stream[cut:], turn + 1
    assert received_payloads == payloads


@given(st.lists(st.integers(0, 600), min_size=1, max_size=8), st.integers(1, READ_AHEAD_BYTES))
def test_reader_reports_buffered_complete_frame(sizes: list[int], arrived: int) -> None:
    reader = FrameReader()
    stream = b"".join(struct.pack(">i", size) + bytes(size) for size in sizes)[:arrived]
    reader.prepare_buffer()[: len(stream)] = stream
    reader.advance(len(stream))
    while reader.has_buffered_input:
        assert reader.next_frame(1000) is not None
    assert reader.next_frame(1000) is None


def test_payload_is_unchanged_by_later_reads() -> None:
    reader, payloads = FrameReader(), []
    for letter in b"abc":
        message = struct.pack(">i", 100) + bytes([letter]) * 100
        reader.prepare_buffer()[: len(message)] = message
        reader.advance(len(message))
        payloads.append(reader.next_frame(100))
    assert [bytes(payload) for payload in payloads if payload is not None] == [b"a" * 100, b"b" * 100, b"c" * 100]


def test_allocates_memory_only_as_bytes_arrive() -> None:
    reader = FrameReader()
    feed(reader, struct.pack(">i", DEFAULT_MAX_FRAME_BYTES))
    arrived = 0
    for piece in [10, 70_000, 300_000]:
        feed(reader, bytes(piece))
        arrived += piece
        assert len(reader.prepare_buffer()) + arrived <= max(64 * 1024, 5 * arrived)


def test_peer_of_long_frames_gets_limited_memory_at_once() -> None:
    for size, room in ((1_000_000, 1_000_000), (2 * MAX_TRUSTED_BYTES, MAX_TRUSTED_BYTES)):
        reader = FrameReader()
        assert feed(reader, struct.pack(">i", size) + bytes(size)) == [bytes(size)]
        feed(reader, struct.pack(">i", size))
        assert len(reader.prepare_buffer()) == room


def test_receives_long_frame_into_its_own_memory() -> None:
    reader = FrameReader()
    feed(reader, struct.pack(">i", 60_000) + bytes(READ_AHEAD_BYTES - 4))
    space = reader.prepare_buffer()
    assert len(space) == 60_000 - (READ_AHEAD_BYTES - 4)
    reader.advance(len(space))
    payload = reader.next_frame(60_000)
    assert payload is not None
    space[-1] = 7
    assert payload[-1] == 7


def test_rejects_length_above_limit_before_allocation() -> None:
    assert feed(FrameReader(), struct.pack(">i", 5) + b"12345", max_bytes=5) == [b"12345"]
    with pytest.raises(DecodeError, match="announced a frame of 6 bytes; at most 5"):
        feed(FrameReader(), struct.pack(">i", 6), max_bytes=5)


def test_rejects_excessive_length_after_valid_frame() -> None:
    reader = FrameReader()
    message = struct.pack(">i", 2) + b"ok" + struct.pack(">i", 2**31 - 1)
    reader.prepare_buffer()[: len(message)] = message
    reader.advance(len(message))
    assert bytes(reader.next_frame(1000) or b"") == b"ok"
    assert reader.has_buffered_input
    for _ in range(2):
        with pytest.raises(DecodeError, match="announced a frame of 2147483647 bytes"):
            reader.next_frame(1000)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"HTTP", "HTTP server"),
        (b"GET ", "HTTP request"),
        (b"SSH-", "SSH"),
        (b"\x15\x03\x03\x00", "security.protocol"),
        (b"\x16\x03\x01\x02", "TLS handshake"),
        (b"\xff\xff\xff\xff", "invalid frame length -1"),
        (b"\x80\x00\x00\x00", "the stream is corrupt"),
    ],
)
def test_names_foreign_protocol_in_error(start: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        feed(FrameReader(), start)
