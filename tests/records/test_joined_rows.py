"""JoinedRowsBuilder: columns of numbers, bytes and constants, in any order, against rows that Python puts together."""

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
from tests.records.slices import BatchSlice, encoded

ROWS = 40
HIGHEST = [0, 1, 63, 64, 8_191, 8_192, 2**31 - 1, 2**62]
"""Around the ends of the varints of one byte, and of two bytes."""


def random_column(chance: Random) -> tuple[str, list[Any]]:
    kind = chance.choice(["constant", "numbers", "bytes"])
    if kind == "constant":
        return kind, [chance.randbytes(chance.randrange(1, 4))] * ROWS
    if kind == "numbers":
        highest = chance.choice(HIGHEST)
        lowest = chance.choice([highest, 0, -highest])
        return kind, [chance.randint(lowest, highest) for _ in range(ROWS)]
    return kind, [chance.choice([None, b"", chance.randbytes(chance.randrange(9))]) for _ in range(ROWS)]


def as_bytes(kind: str, value: Any) -> bytes:
    if kind == "constant":
        return bytes(value)
    if kind == "numbers":
        return encode_varint(value)
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


@pytest.mark.parametrize("seed", range(300))
def test_joined_rows_contain_all_columns_in_order(seed: int) -> None:
    chance = Random(seed)
    columns = [random_column(chance) for _ in range(chance.randrange(1, 7))]
    order = chance.choice([None, np.array(chance.sample(range(ROWS), ROWS), np.int32)])
    with_length, stops = chance.random() < 0.7, chance.choice([[ROWS], [1, 17, ROWS]])

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
    """Of a record without headers: all up to the length of the key, key, length of the value, value."""
    written: list[int] = []

    really_cast = pc.cast

    def cast(views: pa.Array, *options: Any, **named: Any) -> pa.Array:
        written.append(len(views))
        return really_cast(views, *options, **named)

    keys, values = ([b"x" * (row % 5 + least) for row in range(100)] for least in (1, 60))
    columns = RecordColumns(pa.array(values), pa.array(keys))
    monkeypatch.setattr(pc, "cast", cast)
    assert encoded(columns, [BatchSlice(0, 0, 100)], 0)
    assert written[-1] == 4 * 100 + 1


def test_rejects_row_above_two_gibibytes() -> None:
    """Arrow's newest versions do not look, and 32-bit sizes would be negative."""
    data = pa.py_buffer(np.zeros(MAX_OFFSET - 9, np.uint8))  # pages that are never touched
    rows = JoinedRowsBuilder(1)
    rows.add_constant(b"\0" * 7)
    rows.add_length_prefixed([ByteColumn(np.array([0, MAX_OFFSET - 9], np.int32), data)])
    rows.prepend_lengths()
    with pytest.raises(RecordTooLargeError, match="2 GiB"):
        next(rows.join([1]))
