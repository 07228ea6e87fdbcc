"""Columns of varints equal one varint after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.records.arrays import encode_varint, varint_array, varint_widths, zigzag_column
from spark_kafka_sink.records.decoder import read_varints
from tests.records.slow_encoder import slow_varint

borders = [sign * (1 << bits) + off for bits in range(0, 63, 7) for off in (-1, 0, 1) for sign in (1, -1)]
extremes = [*borders, *(b // 2 for b in borders), (1 << 63) - 1, -(1 << 63), (1 << 62), (1 << 62) - 1, -(1 << 62)]
numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-70, 70), st.sampled_from(extremes))


@given(st.lists(numbers, max_size=50))
@settings(max_examples=200, deadline=None)
def test_a_column_of_numbers_equals_one_number_after_the_other(column: list[int]) -> None:
    coded = zigzag_column(np.array(column, np.int64))
    expected = [slow_varint(value) for value in column]
    assert varint_array(coded).to_pylist() == expected
    assert varint_widths(coded).tolist() == [len(each) for each in expected]
    assert [encode_varint(value) for value in column] == expected


@given(st.lists(numbers.filter(lambda value: -(1 << 31) <= value < 1 << 31), max_size=50))
@settings(max_examples=100, deadline=None)
def test_numbers_of_32_bits_are_the_same_numbers(column: list[int]) -> None:
    narrow, wide = (zigzag_column(np.array(column, kind)) for kind in (np.int32, np.int64))
    assert narrow.tolist() == wide.tolist()
    assert varint_array(narrow).equals(varint_array(wide))
    assert varint_widths(narrow).tolist() == varint_widths(wide).tolist()


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
