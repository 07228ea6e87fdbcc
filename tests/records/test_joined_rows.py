"""JoinedRowsBuilder: columns of numbers, bytes and constants, compared with rows that Python joins."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.records.arrays import MAX_OFFSET
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.fields import encode_varint
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder
from tests.records.slices import BatchSlice, encode_slices

ROWS = 40
VARINT_LIMITS = [0, 1, 63, 64, 8_191, 8_192, 2**31 - 1, 2**62]
"""Numbers around the limits of varints of one and two bytes."""


def random_column(rng: Random) -> tuple[str, list[Any]]:
    kind = rng.choice(["constant", "numbers", "bytes"])
    if kind == "constant":
        return kind, [rng.randbytes(rng.randrange(1, 4))] * ROWS
    if kind == "numbers":
        highest = rng.choice(VARINT_LIMITS)
        lowest = rng.choice([highest, 0, -highest])
        return kind, [rng.randint(lowest, highest) for _ in range(ROWS)]
    return kind, [rng.choice([None, b"", rng.randbytes(rng.randrange(9))]) for _ in range(ROWS)]


def as_bytes(kind: str, value: Any) -> bytes:
    if kind == "constant":
        return bytes(value)
    if kind == "numbers":
        return encode_varint(value)
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


def test_joined_rows_contain_all_columns_in_order() -> None:
    for seed in range(300):
        check_joined_rows(seed)


def check_joined_rows(seed: int) -> None:
    rng = Random(seed)
    columns = [random_column(rng) for _ in range(rng.randrange(1, 7))]
    order = rng.choice([None, np.array(rng.sample(range(ROWS), ROWS), np.int32)])
    with_length, stops = rng.random() < 0.7, rng.choice([[ROWS], [1, 17, ROWS]])

    rows = JoinedRowsBuilder(ROWS, order)
    expected = [b""] * ROWS
    for kind, values in columns:
        at = range(ROWS) if order is None or kind == "numbers" else order.tolist()
        expected = [row + as_bytes(kind, values[place]) for row, place in zip(expected, at, strict=True)]
        if kind == "constant":
            rows.add_constant(values[0])
        elif kind == "numbers":
            rows.add_varints(np.array(values, np.int64))
        else:
            rows.add_length_prefixed(
                [read_byte_column(pa.array(part, pa.binary())) for part in (values[:7], values[7:])]
            )
    if with_length:
        rows.prepend_lengths()
        expected = [encode_varint(len(row)) + row for row in expected]

    joined = []
    for data, edges in rows.join(stops):
        joined += [bytes(memoryview(data)[start:stop]) for start, stop in pairwise(edges)]
    assert joined == expected


def test_joins_adjacent_numbers_into_one_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record without headers has four fields: everything up to the key length, key, value length and value."""
    cast_lengths: list[int] = []
    original_cast = pc.cast

    def cast(views: pa.Array, *options: Any, **named: Any) -> pa.Array:
        cast_lengths.append(len(views))
        return original_cast(views, *options, **named)

    keys, values = ([b"x" * (row % 5 + least) for row in range(100)] for least in (1, 60))
    columns = RecordColumns(pa.array(values), pa.array(keys))
    monkeypatch.setattr(pc, "cast", cast)
    assert encode_slices(columns, [BatchSlice(0, 0, 100)], 0)
    assert cast_lengths[-1] == 4 * 100 + 1


def test_rejects_row_above_two_gibibytes() -> None:
    """The latest versions of Arrow do not check this, and 32-bit sizes would be negative."""
    data = pa.py_buffer(np.zeros(MAX_OFFSET - 9, np.uint8))  # these pages are never touched
    rows = JoinedRowsBuilder(1)
    rows.add_constant(b"\0" * 7)
    rows.add_length_prefixed([ByteColumn(np.array([0, MAX_OFFSET - 9], np.int32), data)])
    rows.prepend_lengths()
    with pytest.raises(RecordTooLargeError, match="2 GiB"):
        next(rows.join([1]))
