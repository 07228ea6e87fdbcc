"""JoinedRows: columns of numbers, bytes and constants, in any order, against rows that Python puts together."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.records.arrays import OFFSETS_MAX, byte_column, encode_varint
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.cutting import BatchSlice
from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.records.joined_rows import _SMALL_CODES, JOINED_BYTES_MAX, JoinedRows, _small_varints

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
def test_rows_are_what_their_columns_are_one_after_the_other(seed: int) -> None:
    chance = Random(seed)
    columns = [random_column(chance) for _ in range(chance.randrange(1, 7))]
    order = chance.choice([None, np.array(chance.sample(range(ROWS), ROWS), np.int32)])
    with_length, stops = chance.random() < 0.7, chance.choice([[ROWS], [1, 17, ROWS]])

    rows = JoinedRows(ROWS, order)
    expected = [b""] * ROWS
    for kind, values in columns:
        at = range(ROWS) if order is None or kind == "numbers" else order.tolist()
        expected = [row + as_bytes(kind, values[place]) for row, place in zip(expected, at, strict=True)]
        if kind == "constant":
            rows.add_constant(values[0])
        elif kind == "numbers":
            rows.add_numbers(np.array(values, np.int64))
        else:
            rows.add_bytes([byte_column(pa.array(part, pa.binary())) for part in (values[:7], values[7:])])
    if with_length:
        rows.add_length_in_front()
        expected = [encode_varint(len(row)) + row for row in expected]

    joined = []
    for data, edges in rows.join(stops):
        joined += [bytes(memoryview(data)[start:stop]) for start, stop in pairwise(edges)]
    assert joined == expected


def test_what_is_the_same_in_all_records_is_not_taken_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a record without headers: length, offset delta, the lengths of key and value, key, value."""
    taken: list[int] = []

    really_take = pc.take

    def take(pieces: pa.Array, places: pa.Array, **options: Any) -> pa.Array:
        taken.append(len(places))
        return really_take(pieces, places, **options)

    monkeypatch.setattr(pc, "take", take)
    keys, values = ([b"x" * (row % 5 + least) for row in range(100)] for least in (1, 60))
    columns = RecordColumns(pa.array(values), pa.array(keys))
    assert encode(columns, [BatchSlice(0, 0, 100)], 0)
    assert taken == [6 * 100 + 1]


def test_the_varints_of_small_numbers_fit_beside_the_largest_rows() -> None:
    """Six columns of a record and its headers may each have all of them, behind a few bytes that are the same."""
    tables = 6 * _small_varints(b"\0" * 12, (_SMALL_CODES - 1).bit_length()).buffers()[2].size
    assert JOINED_BYTES_MAX + tables <= OFFSETS_MAX
