"""Columns of varints equal one varint after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.records.decoder import read_varints
from spark_kafka_sink.records.packing import pack
from spark_kafka_sink.records.varint import constant, encode_varint, varint_fields, varint_widths
from tests.records.slow_encoder import slow_varint

borders = [sign * (1 << bits) + off for bits in range(0, 63, 7) for off in (-1, 0, 1) for sign in (1, -1)]
extremes = [*borders, *(b // 2 for b in borders), (1 << 63) - 1, -(1 << 63), (1 << 62), (1 << 62) - 1, -(1 << 62)]
numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-70, 70), st.sampled_from(extremes))


@given(st.lists(numbers, max_size=30), st.lists(numbers, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_columns_of_numbers_stand_one_after_the_other(column: list[int], constants: list[int]) -> None:
    values = np.array(column, np.int64)
    fields = [*varint_fields(values), constant(b"\x07")]
    for number in constants:
        fields += [*varint_fields(number), *varint_fields(values)]
    data, at = pack(fields, len(column))
    for row, value in enumerate(column):
        expected = slow_varint(value) + b"\x07" + b"".join(slow_varint(c) + slow_varint(value) for c in constants)
        assert bytes(data[at[row] : at[row + 1]]) == expected


@given(st.lists(numbers, max_size=50))
@settings(max_examples=100, deadline=None)
def test_widths_are_known_before_the_bytes(column: list[int]) -> None:
    expected = [len(slow_varint(value)) for value in column]
    assert varint_widths(np.array(column, np.int64)).tolist() == expected
    assert [encode_varint(value) for value in column] == [slow_varint(value) for value in column]


@given(st.lists(numbers, min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_a_column_is_read_back_to_the_same_numbers(column: list[int]) -> None:
    coded = [slow_varint(value) for value in column]
    at = np.cumsum([0, *(len(c) for c in coded)])
    values, after = read_varints(np.frombuffer(b"".join(coded), np.uint8), at[:-1], 10)
    assert values.tolist() == column
    assert after.tolist() == at[1:].tolist()


def test_a_varint_without_an_end_is_refused() -> None:
    with pytest.raises(DecodeError, match="no end"):
        read_varints(np.full(40, 0xFF, np.uint8), np.array([0, 3]), 5)
