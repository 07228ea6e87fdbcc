"""Rows of every shape and their batches, for tests against other readers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_kafka_sink.records.batch_slicing import (
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, compress
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.records.batch_headers import build_header
from tests.records.column_strategies import NOW
from tests.records.reference_encoder import Row
from tests.records.slices import encode_slices, to_rows

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


def encode_batches(columns: RecordColumns, codec: Codec, batch_bytes: int = 1 << 21, level: int | None = None) -> bytes:
    batch_slices = split_into_batches(
        compute_record_size_bounds(columns),
        build_single_partition_slices(columns.num_rows),
        batch_bytes,
        find_timestamp_range(columns, NOW),
    )
    plan = to_rows(batch_slices)
    out = []
    for part, piece in zip(plan, encode_slices(columns, plan, NOW), strict=True):
        body = compress(codec, [piece.segment], level)
        out += [
            build_header(
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


def expected_rows(rows: Sequence[Row]) -> list[tuple[int, Row]]:
    return [
        (i, Row(row.value, row.key, row.headers or (), NOW if row.timestamp is None else row.timestamp))
        for i, row in enumerate(rows)
    ]


def to_columns(rows: Sequence[Row]) -> RecordColumns:
    return RecordColumns(
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.headers for row in rows], pa.map_(pa.string(), pa.binary())),
        pa.array([row.timestamp for row in rows], pa.int64()),
    )


def decode_rows(buffer: bytes) -> list[tuple[int, Row]]:
    rows = [row for batch in decode_batches(buffer) for row in batch.columns.to_pylist()]
    return [
        (
            row["offset"],
            Row(row["value"], row["key"], tuple((h["key"], h["value"]) for h in row["headers"]), row["timestamp"]),
        )
        for row in rows
    ]
