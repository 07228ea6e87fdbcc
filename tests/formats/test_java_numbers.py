"""Text of floats and doubles, compared with Java's since JDK 19."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.formats.java_numbers import format_floats
from tests.formats.reference_json import reference_double


def format_values(data_type: pa.DataType, *values: float | None) -> list[str | None]:
    return [None if text is None else text.decode() for text in format_floats(pa.array(values, data_type)).to_pylist()]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (100.0, "100.0"),
        (0.1, "0.1"),
        (1e7, "1.0E7"),
        (9999999.999999998, "9999999.999999998"),
        (123456789.125, "1.23456789125E8"),
        (1234567890.0, "1.23456789E9"),
        (0.001, "0.001"),
        (9.999999999999998e-4, "9.999999999999998E-4"),
        (0.000123, "1.23E-4"),
        (1e-6, "1.0E-6"),
        (1e-7, "1.0E-7"),
        (1e23, "1.0E23"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
        (4.9e-324, "4.9E-324"),
        (1e-323, "9.9E-324"),
        (2e-323, "2.0E-323"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (-1.5e-10, "-1.5E-10"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_formats_double_like_java(value: float, text: str) -> None:
    assert format_values(pa.float64(), value) == [text]
    assert reference_double(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.1, "1.1"), (16777216.0, "1.6777216E7"), (8.5e9, "8.5E9"), (1.4e-45, "1.4E-45"), (3.4028235e38, "3.4028235E38")],
)
def test_formats_float_like_java(value: float, text: str) -> None:
    assert format_values(pa.float32(), value) == [text]


@given(
    st.lists(st.none() | st.floats() | st.floats(-1e-3, 1e8) | st.integers(-(10**12), 10**12).map(float), max_size=8)
)
def test_formats_column_of_doubles_like_reference(values: list[float | None]) -> None:
    expected = [None if value is None else reference_double(value) for value in values]
    assert format_values(pa.float64(), *values) == expected
    assert format_values(pa.float64(), 1.0, *values, 2.0)[1:-1] == expected


@given(st.lists(st.none() | st.floats(width=32), max_size=8))
def test_formats_column_of_floats_like_reference(values: list[float | None]) -> None:
    expected = [None if value is None else reference_double(value, True) for value in values]
    assert format_values(pa.float32(), *values) == expected


def test_smallest_numbers_have_two_digits() -> None:
    doubles = [count * 5e-324 for count in range(1, 400)]
    assert format_values(pa.float64(), *doubles) == [reference_double(value) for value in doubles]
    floats = np.arange(1, 400, dtype=np.uint32).view(np.float32).tolist()
    assert format_values(pa.float32(), *floats) == [reference_double(value, True) for value in floats]


def test_formats_slice_from_its_offset() -> None:
    array = pa.array([1.0, None, 3e20, math.nan, 5.5]).slice(1)
    assert format_floats(array).to_pylist() == [None, b"3.0E20", b"NaN", b"5.5"]
