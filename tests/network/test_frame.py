"""Frames: segments pass uncopied, memory follows what has arrived, nonsense is refused by name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX, TRUST_BYTES_MAX, FrameReader, FrameWriter


def feed(reader: FrameReader, data: bytes) -> tuple[memoryview | None, bytes]:
    """Give a reader what it has space for; its payload, if complete, and the bytes that were not taken."""
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        del space
        data = data[count:]
        payload = reader.advance(count)
        if payload is not None:
            return payload, data
    return None, data


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.integers(1, 60), min_size=1), st.integers(1, 5))
def test_whatever_a_socket_takes_at_a_time_the_bytes_are_the_frame(
    segments: list[bytes], takes: list[int], segments_max: int
) -> None:
    writer, written, turn = FrameWriter(segments), bytearray(), 0
    while not writer.done:
        window = writer.window(segments_max)
        assert 0 < len(window) <= segments_max
        assert all(window), "an empty segment would look like a socket that takes nothing"
        joined = b"".join(window)[: takes[turn % len(takes)]]
        written += joined
        writer.advance(len(joined))
        turn += 1
    payload = b"".join(segments)
    assert bytes(written) == struct.pack(">i", len(payload)) + payload
    assert writer.size == writer.written == len(written)


def test_segments_are_views_of_the_callers_memory() -> None:
    memory = bytearray(b"abc")
    writer = FrameWriter([memory])
    memory[0] = ord("x")
    assert [bytes(view) for view in writer.window(10)] == [b"\0\0\0\3", b"xbc"]


def test_ten_thousand_tiny_segments_are_each_looked_at_once_per_write() -> None:
    writer = FrameWriter([b"xy"] * 10_000)
    handled = 0
    while not writer.done:
        window = writer.window(1024)
        handled += len(window)
        writer.advance(sum(map(len, window)) - 1)
        if not writer.done and len(writer.window(2)) == 1:
            writer.advance(1)
    assert handled < 10_100


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.data())
def test_however_the_bytes_are_cut_the_same_frames_come_out(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)
    found, reader = [], FrameReader(1000)
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        piece, stream = stream[:cut], stream[cut:]
        while piece:
            payload, piece = feed(reader, piece)
            if payload is not None:
                found.append(bytes(payload))
                reader = FrameReader(1000)
    assert found == payloads


def test_a_huge_length_takes_memory_only_as_bytes_arrive() -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    feed(reader, struct.pack(">i", FRAME_BYTES_MAX))
    arrived = 0
    for piece in [10, 70_000, 300_000]:
        feed(reader, bytes(piece))
        arrived += piece
        assert len(reader.space()) + arrived <= max(64 * 1024, 5 * arrived)


def test_who_has_sent_long_frames_gets_the_room_for_another_at_once_but_not_for_any_length() -> None:
    for size, room in ((1_000_000, 1_000_000), (FRAME_BYTES_MAX, TRUST_BYTES_MAX)):
        reader = FrameReader(FRAME_BYTES_MAX, longest_before=size)
        feed(reader, struct.pack(">i", size))
        assert len(reader.space()) == room


def test_a_length_at_the_limit_is_taken_and_one_above_is_refused_before_anything_is_allocated() -> None:
    payload, _ = feed(FrameReader(5), struct.pack(">i", 5) + b"12345")
    assert payload is not None
    assert bytes(payload) == b"12345"
    with pytest.raises(DecodeError, match="6 bytes was announced, at most 5"):
        feed(FrameReader(5), struct.pack(">i", 6))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"HTTP", "HTTP server"),
        (b"GET ", "HTTP request"),
        (b"SSH-", "SSH"),
        (b"\x15\x03\x03\x00", "security.protocol"),
        (b"\x16\x03\x01\x02", "TLS handshake"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x80\x00\x00\x00", "out of step"),
    ],
)
def test_what_is_not_kafka_is_called_by_its_name(start: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        feed(FrameReader(FRAME_BYTES_MAX), start)
