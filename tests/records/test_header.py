"""Encoding, parsing and patching of the 61 header bytes of a batch."""

from __future__ import annotations

import struct
import sys
import threading

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError, UnsupportedFormatError
from spark_kafka_sink.records.decoder import parse_batches
from spark_kafka_sink.records.header import HEADER_BYTES, parse_header, patch_header
from tests.records.batch_headers import build_header


def stamp(segments: list[bytes | memoryview], **fields: int) -> bytes:
    settings = {"record_count": 3, "base_timestamp": 1000, "max_timestamp": 1002, **fields}
    return build_header(segments, **settings)


def test_header_has_layout_of_kafka() -> None:
    header = stamp([b"abc", memoryview(b"defg")], codec=4, producer_id=7, producer_epoch=2, base_sequence=5)
    assert len(header) == HEADER_BYTES
    assert struct.unpack(">qiib", header[:17]) == (0, HEADER_BYTES - 12 + 7, -1, 2)
    assert struct.unpack(">I", header[17:21])[0] == crc32c.crc32c(header[21:] + b"abcdefg")
    assert struct.unpack(">hiqqqhii", header[21:]) == (4, 2, 1000, 1002, 7, 2, 5, 3)


@given(
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.integers(-1, (1 << 63) - 1),
    st.integers(-1, 32767),
    st.integers(-1, (1 << 31) - 1),
)
def test_parses_encoded_header(
    codec: int, transactional: bool, control: bool, producer_id: int, epoch: int, sequence: int
) -> None:
    coded = stamp(
        [b"x"],
        codec=codec,
        transactional=transactional,
        control=control,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        base_offset=9,
    )
    header = parse_header(coded)
    assert (header.codec, header.is_transactional, header.is_control) == (codec, transactional, control)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, sequence)
    assert (header.base_offset, header.last_offset, header.record_count) == (9, 11, 3)
    assert header.size_bytes == HEADER_BYTES + 1


def test_encodes_new_header_for_same_records() -> None:
    segments: list[bytes | memoryview] = [b"first", b"second"]
    before, after = stamp(segments, producer_id=1), stamp(segments, producer_id=2, base_sequence=44)
    for header in (before, after):
        assert parse_batches(header + b"firstsecond")
    assert before != after


def test_patches_offset_and_leader_epoch_without_new_crc() -> None:
    batch = bytearray(stamp([b"records"]) + b"records")
    crc = parse_header(batch).crc
    patch_header(batch, base_offset=1234, leader_epoch=9)
    ((header, view),) = parse_batches(batch)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (1234, 9, crc)
    assert view.nbytes == len(batch)


def test_patches_log_append_time_with_new_crc() -> None:
    batch = bytearray(stamp([b"records"]) + b"records")
    patch_header(batch, append_time=5555)
    ((header, _),) = parse_batches(batch)
    assert header.has_log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (1000, 5555)


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_formats_older_than_kafka_0_11(magic: int) -> None:
    old = bytes(16) + bytes([magic])
    for message_set in (old + bytes(5), old + bytes(100)):
        with pytest.raises(UnsupportedFormatError, match=f"v{magic}.*0.11"):
            parse_header(message_set)


def test_rejects_unknown_newer_format() -> None:
    with pytest.raises(UnsupportedFormatError, match="v3"):
        parse_header(bytes(16) + b"\x03" + bytes(60))


@pytest.mark.parametrize("length", [0, 48, -1])
def test_rejects_batch_shorter_than_its_header(length: int) -> None:
    batch = bytearray(stamp([]))
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(DecodeError, match="less than its header"):
        parse_header(batch)
    with pytest.raises(DecodeError, match="61 bytes"):
        parse_header(batch[:60])


def test_checksum_does_not_release_the_gil() -> None:
    """Releasing the GIL and waiting for it takes longer than the checksum of a batch."""
    may_run, ran = threading.Lock(), []

    def record_run() -> None:
        with may_run:
            ran.append(True)

    interval = sys.getswitchinterval()
    records = [memoryview(bytes(32 << 20))]
    may_run.acquire()
    thread = threading.Thread(target=record_run)
    try:
        sys.setswitchinterval(1_000)  # from now on threads switch only when one of them releases the GIL
        thread.start()
        may_run.release()
        build_header(records, 1)
        ran_meanwhile = bool(ran)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert not ran_meanwhile
    assert ran
