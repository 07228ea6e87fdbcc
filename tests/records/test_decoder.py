"""Decoding of valid batches, and DecodeError for any other bytes."""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Sequence
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError, UnsupportedFormatError
from spark_kafka_sink.records import decoder
from spark_kafka_sink.records.batch_slicing import (
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.decoder import (
    _MIN_STREAK_BEFORE_RUN,
    SCHEMA,
    decode_batches,
    decode_records,
    find_keyless_records,
    parse_batches,
)
from spark_kafka_sink.records.header import HEADER_BYTES, parse_header, patch_header
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.records.batch_headers import build_header
from tests.records.column_strategies import NOW, arrow_columns, equal_size_rows, mixed_rows
from tests.records.reference_encoder import Row, reference_record, reference_varint
from tests.records.slices import BatchSlice, encode_slices, to_rows


def build_batch(body: bytes, count: int, codec: int = Codec.NONE, **fields: int | bool) -> bytes:
    records = bytes(compress(Codec(codec), [body]))
    settings: dict[str, int | bool] = {"base_timestamp": NOW, "max_timestamp": NOW + 5, **fields}
    return build_header(segments=[records], record_count=count, codec=codec, **settings) + records


def reference_batch(rows: Sequence[Row], **fields: int | bool) -> bytes:
    return build_batch(b"".join(reference_record(row, i, 0) for i, row in enumerate(rows)), len(rows), **fields)


def decoded(buffer: bytes) -> pa.Table:
    return pa.Table.from_batches([batch.columns for batch in decode_batches(buffer)], SCHEMA)


@given(st.data(), mixed_rows | equal_size_rows(), st.sampled_from(list(Codec)), st.integers(150, 30_000))
@settings(max_examples=150, deadline=None)
def test_decodes_encoded_rows(data: st.DataObject, rows: list[Row], codec: Codec, batch_bytes: int) -> None:
    columns = data.draw(arrow_columns(rows))
    plan = to_rows(
        split_into_batches(
            compute_record_size_bounds(columns),
            build_single_partition_slices(len(rows)),
            batch_bytes,
            find_timestamp_range(columns, NOW),
        )
    )
    buffer = b""
    for part, piece in zip(plan, encode_slices(columns, plan, NOW), strict=True):
        buffer += build_batch(
            bytes(piece.segment),
            piece.record_count,
            codec,
            base_offset=1000 + part.start,
            base_timestamp=piece.base_timestamp,
            max_timestamp=piece.max_timestamp,
        )
    table = decoded(buffer)
    assert table["offset"].to_pylist() == list(range(1000, 1000 + len(rows)))
    assert table["timestamp"].to_pylist() == [NOW if r.timestamp is None else r.timestamp for r in rows]
    assert table["key"].to_pylist() == [r.key for r in rows]
    assert table["value"].to_pylist() == [r.value for r in rows]
    headers = [[(h["key"], h["value"]) for h in row] for row in table["headers"].to_pylist()]
    assert headers == [list(r.headers or ()) for r in rows]
    table.validate(full=True)


@pytest.mark.parametrize("counts", [[300], [0, 300, 1], [3] * 40, list(range(40)), [200] * 20 + [0] * 20])
def test_decodes_any_number_of_headers(counts: list[int]) -> None:
    rows = [
        Row(b"v", None, tuple((f"h{i}", None if i % 4 == 0 else b"x" * (i % 90)) for i in range(count)))
        for count in counts
    ]
    table = decoded(reference_batch(rows))
    assert [[(h["key"], h["value"]) for h in row] for row in table["headers"].to_pylist()] == [
        list(row.headers or ()) for row in rows
    ]


def test_decodes_runs_of_equal_sizes_among_others() -> None:
    sizes = [5] * 50 + [70] * 20 + [5] * 3 + [6] * 100 + [300, 5] * 10 + [9000] * 6
    rows = [Row(bytes([i % 251]) * size) for i, size in enumerate(sizes)]
    assert decoded(reference_batch(rows))["value"].to_pylist() == [row.value for row in rows]


def test_log_append_time_replaces_record_timestamps() -> None:
    batch = bytearray(reference_batch([Row(b"a"), Row(b"b")]))
    patch_header(batch, base_offset=7, append_time=999)
    table = decoded(bytes(batch))
    assert table["timestamp"].to_pylist() == [999, 999]
    assert table["offset"].to_pylist() == [7, 8]


def test_empty_compacted_batch_keeps_its_offsets() -> None:
    batch = build_batch(b"", 0, base_offset=10, last_offset_delta=4)
    ((header, columns),) = decode_batches(batch)
    assert (columns.num_rows, header.last_offset) == (0, 14)


def test_offsets_may_have_gaps_after_compaction() -> None:
    body = reference_record(Row(b"a"), 2, 0) + reference_record(Row(b"b"), 7, 1)
    assert decoded(build_batch(body, 2, base_offset=100, last_offset_delta=9))["offset"].to_pylist() == [102, 107]


def test_decodes_control_batch_with_its_flags() -> None:
    commit = Row(struct.pack(">hi", 0, 3), struct.pack(">hh", 0, 1))
    ((header, columns),) = decode_batches(reference_batch([commit], control=True, transactional=True, producer_id=5))
    assert header.is_control
    assert header.is_transactional
    assert columns["key"].to_pylist() == [b"\x00\x00\x00\x01"]


def test_ignores_truncated_batch_at_end_of_fetch() -> None:
    first, second = reference_batch([Row(b"a")]), reference_batch([Row(b"b" * 100)])
    for cut in (1, 16, 17, 60, 61, 62, len(second) - 1):
        assert len(list(decode_batches(first + second[:cut]))) == 1
        with pytest.raises(DecodeError):
            list(decode_batches(first + second[:cut], allow_partial_last=False))
        with pytest.raises(DecodeError):
            parse_batches(first + second[:cut])


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_old_message_sets_by_version(magic: int) -> None:
    message = struct.pack(">qiIbb", 0, 14 + 3, 0, magic, 0) + struct.pack(">ii", -1, 3) + b"abc"
    with pytest.raises(UnsupportedFormatError, match=f"v{magic}"):
        list(decode_batches(message))
    with pytest.raises(UnsupportedFormatError, match=f"v{magic}"):
        parse_batches(message)


def test_crc_detects_single_changed_bit() -> None:
    batch = reference_batch([Row(b"value", b"key", (("h", b"x"),))])
    for position in range(21, len(batch)):
        changed = bytearray(batch)
        changed[position] ^= 0x10
        with pytest.raises(DecodeError, match="CRC"):
            parse_batches(changed)


BAD_BODIES = {
    "count too low": (reference_record(Row(b"a"), 0, 0) + reference_record(Row(b"b"), 1, 0), 1),
    "count too high": (reference_record(Row(b"a" * 50), 0, 0), 2),
    "count of billions": (reference_record(Row(b"a"), 0, 0), (1 << 31) - 1),
    "negative count": (reference_record(Row(b"a"), 0, 0), -1),
    "bytes after the last record": (reference_record(Row(b"a"), 0, 0) + b"\x00", 1),
    "negative length": (reference_varint(-5) + bytes(20), 1),
    "length beyond the end": (reference_varint(1 << 30) + bytes(20), 1),
    "length without an end": (b"\xff" * 20, 1),
    "length of nothing": (bytes(30), 3),
    "key beyond the record": (reference_varint(8) + b"\0\0\0" + reference_varint(90) + b"\1\0\0\0", 1),
    "key of minus two": (reference_varint(7) + b"\0\0\0" + reference_varint(-2) + b"\1\0\0", 1),
    "value beyond the record": (reference_varint(7) + b"\0\0\0\1" + reference_varint(60) + b"\0\0", 1),
    "timestamp without an end": (reference_varint(20) + b"\0" + b"\xff" * 19, 1),
    "offset without an end": (reference_varint(20) + b"\0\0" + b"\xff" * 18, 1),
    "too many headers": (reference_varint(8) + b"\0\0\0\1\1" + reference_varint(1 << 30), 1),
    "negative headers": (reference_varint(6) + b"\0\0\0\1\1" + reference_varint(-1), 1),
    "a header without a key": (reference_varint(8) + b"\0\0\0\1\1\2\1\1", 1),
    "a header value beyond the record": (reference_varint(8) + b"\0\0\0\1\1\2\0\x7e", 1),
    "bytes left in the record": (reference_varint(8) + b"\0\0\0\1\1\0\0\0", 1),
    "offset beyond the batch": (reference_record(Row(b"a"), 5, 0), 1),
    "offsets that do not ascend": (reference_record(Row(b"a"), 1, 0) + reference_record(Row(b"b"), 1, 0), 2),
    "nothing": (b"", 1),
}


@pytest.mark.parametrize(("body", "count"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_rejects_body_that_contradicts_header(body: bytes, count: int) -> None:
    with pytest.raises(DecodeError):
        list(decode_batches(build_batch(body, count, last_offset_delta=max(0, count - 1))))


def test_rejects_negative_record_count_of_empty_body() -> None:
    with pytest.raises(DecodeError, match="the batch has -1 records"):
        list(decode_batches(build_batch(b"", -1, last_offset_delta=0)))


def test_limits_number_of_records_that_compress_to_nothing() -> None:
    """Decoding a record takes more memory than the shortest record."""
    batch = reference_batch([Row(b"")] * 1_000, codec=Codec.ZSTD)
    enough = 1_000 * decoder.DECODING_BYTES_PER_RECORD
    (decoded_batch,) = decode_batches(batch, max_bytes=enough)
    assert decoded_batch.columns.num_rows == 1_000
    with pytest.raises(DecodeError, match="the batch has 1000 records, but at most 999 are allowed"):
        list(decode_batches(batch, max_bytes=enough - 1))


def test_rejects_record_count_that_does_not_fit_body() -> None:
    body = reference_record(Row(b"a"), 0, 0)
    with pytest.raises(DecodeError, match=f"1000 records do not fit into {len(body)} bytes"):
        list(decode_batches(build_batch(body, 1_000, last_offset_delta=999)))


@pytest.mark.parametrize("count", [-1, 2, 1 << 20])
def test_rejects_header_count_that_does_not_fit_record(count: int) -> None:
    fields = b"\0\0\0\1\1" + reference_varint(count) + b"\0\0\0"
    with pytest.raises(DecodeError, match="a record has a negative number of headers, or more than fit into it"):
        list(decode_batches(build_batch(reference_varint(len(fields)) + fields, 1)))


@pytest.mark.parametrize("rows", [1, 40])
def test_rejects_invalid_headers_in_few_and_many_records(rows: int) -> None:
    for tail in (b"\2\1\1", b"\2\0\x7e", b"\2\2k\x7e", b"\4\0\0", b"\2\x01\x01"):
        body = b"".join(
            reference_varint(5 + len(tail)) + b"\0\0" + reference_varint(i) + b"\1\1" + tail for i in range(rows)
        )
        with pytest.raises(DecodeError):
            list(decode_batches(build_batch(body, rows)))


def test_decodes_header_keys_that_are_not_utf8_like_kafka() -> None:
    """Clients written in C may write any bytes as header keys, and brokers accept them."""
    kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    keys = [b"plain", b"\xff\xfe", b"caf\xc3", "größe".encode()]
    headers = pa.array([[{"key": key, "value": b"x"} for key in keys], None, [{"key": b"\x80", "value": None}]], kind)
    columns = RecordColumns(pa.array([b"v"] * 3), headers=headers)
    (piece,) = encode_slices(columns, [BatchSlice(0, 0, 3)], NOW)
    header = parse_header(build_batch(bytes(piece.segment), 3))
    find_keyless_records(header, piece.segment)
    table = pa.Table.from_batches([decode_records(header, piece.segment)])
    table.validate(full=True)
    keys_read = [[header["key"] for header in row] for row in table["headers"].to_pylist()]
    assert keys_read == [["plain", "\ufffd\ufffd", "caf\ufffd", "größe"], [], ["\ufffd"]]


def test_rejects_compressed_batch_above_limit() -> None:
    bomb = build_batch(bytes(20 << 20), 1, Codec.ZSTD)
    with pytest.raises(DecodeError, match="more than 1000000 bytes"):
        list(decode_batches(bomb, max_bytes=1_000_000))


def test_decodes_record_with_many_headers_quickly() -> None:
    body = b"\0\0\0\1\1" + reference_varint(200_000) + b"\0\1" * 200_000
    others = b"".join(reference_record(Row(b"x"), i, 0) for i in range(1, 5))
    started = time.process_time()
    table = decoded(build_batch(reference_varint(len(body)) + body + others, 5))
    assert len(table["headers"][0]) == 200_000
    assert time.process_time() - started < 20


@pytest.mark.parametrize("records", [1, 40])
def test_limits_number_of_headers_that_compress_to_nothing(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(b"", None, (("", None),) * (2_000 // records)) for _ in range(records)]
    batch = reference_batch(rows, codec=Codec.ZSTD)
    monkeypatch.setattr(decoder, "DECODING_BYTES_PER_HEADER", decoder.DEFAULT_MAX_BYTES // 2_000)
    assert len(decoded(batch)) == records
    monkeypatch.setattr(decoder, "DECODING_BYTES_PER_HEADER", decoder.DEFAULT_MAX_BYTES // 1_999)
    with pytest.raises(DecodeError, match="the batch has 2000 headers, but at most 1999"):
        decoded(batch)


def test_decodes_many_short_runs_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values_read = 0
    from_buffer = np.frombuffer

    def count_values(data: Any, dtype: Any, count: int = -1, offset: int = 0) -> Any:
        nonlocal values_read
        values_read += count if count > 0 else 0
        return from_buffer(data, dtype, count, offset)

    monkeypatch.setattr(np, "frombuffer", count_values)
    run = _MIN_STREAK_BEFORE_RUN + 2
    batch = reference_batch([Row(b"v" * (i % run == 0)) for i in range(200 * run)])
    assert len(decoded(batch)) == 200 * run
    assert values_read < 20 * len(batch)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_decode_or_raise_decode_error(data: bytes) -> None:
    for read in (lambda: list(decode_batches(data)), lambda: parse_batches(data), lambda: parse_header(data)):
        with contextlib.suppress(DecodeError):
            read()


@given(st.integers(0, 4), st.integers(0, 50), st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_body_with_valid_header_decodes_or_raises_decode_error(codec: int, count: int, body: bytes) -> None:
    batch = build_header(segments=[body], record_count=count, base_timestamp=0, max_timestamp=0, codec=codec) + body
    with contextlib.suppress(DecodeError):
        list(decode_batches(batch))


def test_corrupt_records_with_valid_crc_decode_or_raise_decode_error() -> None:
    rng = random.Random(7)
    headers = (("a", b"1"), ("bb", None))
    valid = reference_batch([Row(b"value" * (i % 5), b"key", headers[: i % 3]) for i in range(30)])
    for _ in range(2_000):
        changed = bytearray(valid)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(HEADER_BYTES, len(valid))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, 61])
        struct.pack_into(">I", changed, 17, crc32c.crc32c(memoryview(changed)[21:]))
        try:
            for batch in decode_batches(changed):
                batch.columns.validate(full=True)
        except DecodeError:
            pass


def test_encodes_decoded_batch_again() -> None:
    rows = [Row(b"v%d" % i, None, (("h", None),)) for i in range(10)]
    batch = reference_batch(rows, codec=Codec.LZ4)
    columns = decode_records(parse_header(batch), batch[HEADER_BYTES:])
    again = RecordColumns(columns["value"], columns["key"], columns["headers"], columns["timestamp"])
    halves = encode_slices(again, [BatchSlice(0, 0, 5), BatchSlice(0, 5, 10)], NOW)
    assert bytes(halves[1].segment) == b"".join(reference_record(row, i, 0) for i, row in enumerate(rows[5:]))
