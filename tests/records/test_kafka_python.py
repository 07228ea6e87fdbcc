"""Batches across the border: what we write is read by kafka-python's parser, what it writes is read by us."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from spark_kafka_sink.errors import UnsupportedFormatError
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import LEVELS, Codec, compress
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.records.encoder import PartitionSlice, encode, plan_batches, record_size_bounds
from spark_kafka_sink.records.header import stamp_header
from tests.records.column_strategies import NOW, arrow_columns, even_rows, mixed_rows
from tests.records.slow_encoder import Row

HEADERS = (("trace", b"\x00\xff"), ("empty", b""), ("none", None), ("trace", b"again"))
SHAPES: dict[str, list[Row]] = {
    "one": [Row(b"value", b"key")],
    "even": [Row(b"v" * 100, b"%012d" % i) for i in range(300)],
    "uneven": [Row(b"v" * (i % 200), b"k" * (i % 7)) for i in range(300)],
    "nulls": [Row(None if i % 2 else b"v", None if i % 3 else b"k") for i in range(100)],
    "tombstones": [Row(None, b"k%d" % i) for i in range(70)],
    "empty": [Row(b"", b"")] * 70,
    "headers": [Row(b"v", b"k", HEADERS[: i % 5], NOW - i) for i in range(100)],
    "many headers": [Row(b"v", None, HEADERS * 50), Row(b"w", None, ())],
    "unicode": [Row("straße 東京 🙂".encode(), "ключ".encode(), (("größe", "東".encode()),))] * 3,
    "a megabyte": [Row(b"v" * (1 << 20), b"k"), Row(b"after")],
    "times": [Row(b"v", None, None, t) for t in (NOW, NOW - 10_000, NOW + 64, 0, NOW)],
}


def our_batches(columns: RecordColumns, codec: Codec, batch_bytes: int = 1 << 21, level: int | None = None) -> bytes:
    plan = plan_batches(record_size_bounds(columns), [PartitionSlice(0, columns.num_rows)], batch_bytes)
    out = []
    for part, piece in zip(plan, encode(columns, plan, NOW), strict=True):
        body = compress(codec, [piece.segment], level)
        out += [
            stamp_header(
                segments=[body],
                record_count=piece.record_count,
                base_timestamp=piece.base_timestamp,
                max_timestamp=piece.max_timestamp,
                codec=codec,
                base_offset=part.start,
            ),
            body,
        ]
    return b"".join(out)


def read_by_kafka_python(buffer: bytes) -> list[tuple[int, Row]]:
    records = MemoryRecords(buffer)
    found = []
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        found += [(r.offset, Row(r.value, r.key, tuple(r.headers), r.timestamp)) for r in batch]
    return found


def as_written(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    return [
        (i, Row(row.value, row.key, row.headers or (), NOW if row.timestamp is None else row.timestamp))
        for i, row in enumerate(rows)
    ]


def plain_columns(rows: Sequence[Row]) -> RecordColumns:
    return RecordColumns(
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.headers for row in rows], pa.map_(pa.string(), pa.binary())),
        pa.array([row.timestamp for row in rows], pa.int64()),
    )


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("shape", SHAPES)
def test_kafka_python_reads_every_codec_and_shape_of_ours(codec: Codec, shape: str) -> None:
    rows = SHAPES[shape]
    assert read_by_kafka_python(our_batches(plain_columns(rows), codec)) == as_written(rows)


@pytest.mark.parametrize("codec", list(LEVELS))
def test_kafka_python_reads_every_level_of_ours(codec: Codec) -> None:
    low, high, default = LEVELS[codec]
    for level in {low, high, default, 5}:
        buffer = our_batches(plain_columns(SHAPES["uneven"]), codec, level=level)
        assert read_by_kafka_python(buffer) == as_written(SHAPES["uneven"])


@given(st.data(), mixed_rows | even_rows(), st.sampled_from(list(Codec)), st.integers(200, 5_000))
@settings(max_examples=60, deadline=None)
def test_kafka_python_reads_any_columns_of_ours(
    data: st.DataObject, rows: list[Row], codec: Codec, batch_bytes: int
) -> None:
    columns = data.draw(arrow_columns(rows))
    assert read_by_kafka_python(our_batches(columns, codec, batch_bytes)) == as_written(rows)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("shape", SHAPES)
def test_batches_of_kafka_python_are_read(codec: Codec, shape: str) -> None:
    rows = SHAPES[shape]
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 22)
    for _, row in as_written(rows):
        assert builder.append(row.timestamp, row.key, row.value, list(row.headers or ())) is not None
    builder.close()
    assert read_by_us(bytes(builder.buffer())) == as_written(rows)


def test_idempotent_and_transactional_batches_of_kafka_python_are_read() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, True, 7, 3, 11, 1 << 20)
    builder.append(0, NOW, b"k", b"v", [])
    ((header, columns),) = decode_batches(bytes(builder.build()))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.transactional
    assert columns.num_rows == 1


def read_by_us(buffer: bytes) -> list[tuple[int, Row]]:
    rows = [row for batch in decode_batches(buffer) for row in batch.columns.to_pylist()]
    pair: Callable[[dict[str, bytes]], tuple[str, bytes]] = lambda h: (h["key"], h["value"])  # type: ignore[assignment,return-value]  # noqa: E731
    return [
        (row["offset"], Row(row["value"], row["key"], tuple(map(pair, row["headers"])), row["timestamp"]))
        for row in rows
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_kafka_python_in_older_formats_are_refused(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    builder.append(NOW, b"k", b"v")
    builder.close()
    with pytest.raises(UnsupportedFormatError, match=f"v{magic}"):
        list(decode_batches(bytes(builder.buffer())))
