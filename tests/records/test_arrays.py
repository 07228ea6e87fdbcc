"""Conversions between Arrow and numpy, compared with those of pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records import arrays
from spark_kafka_sink.records.arrays import (
    EMPTY_BYTES,
    build_null_mask,
    bytes_to_arrow,
    integers_to_numpy,
    numbers_to_arrow,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.none() | INT64), st.integers(0, 20), st.integers(0, 9))
def test_reads_integers_and_nulls_of_sliced_array(values: list[int | None], start: int, end: int) -> None:
    array = pa.array(values, pa.int64()).slice(start, max(0, len(values) - start - end))
    expected = array.to_pylist()
    assert build_null_mask(array).tolist() == [value is None for value in expected]
    assert integers_to_numpy(array, null=-7).tolist() == [-7 if value is None else value for value in expected]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.int64()])
def test_numbers_of_every_width_survive_round_trip(kind: pa.DataType) -> None:
    numbers = np.array([3, 0, 100], kind.to_pandas_dtype())
    assert numbers_to_arrow(numbers).equals(pa.array([3, 0, 100], kind))
    assert numbers_to_arrow(numbers[::-1], np.array([False, True, False])).equals(pa.array([100, None, 3], kind))
    assert integers_to_numpy(numbers_to_arrow(numbers)).dtype == numbers.dtype


@given(st.lists(st.none() | st.binary(max_size=9)))
def test_bytes_to_arrow_equals_pyarrow(values: list[bytes | None]) -> None:
    made = bytes_to_arrow(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary()))


def test_bytes_beyond_32_bit_offsets_get_large_type_or_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_OFFSET", 5)
    assert bytes_to_arrow([b"123", b"45"]).type == pa.binary()
    assert bytes_to_arrow([b"123", None, b"456"]).equals(pa.array([b"123", None, b"456"], pa.large_binary()))
    with pytest.raises(OverflowError, match="6 bytes in 2 values exceed the 5 bytes that string can address"):
        bytes_to_arrow([b"123", b"456"], pa.string())


def test_reads_arrays_without_buffers() -> None:
    for length in (0, 9):
        nothing = pa.nulls(length, pa.int64())
        assert integers_to_numpy(nothing, null=4).tolist() == [4] * length
        assert build_null_mask(nothing).tolist() == [True] * length
        assert build_null_mask(pa.nulls(length)).tolist() == [True] * length
    without_offsets = pa.Array.from_buffers(pa.list_(pa.int8()), 0, [None, None], children=[pa.nulls(0, pa.int8())])
    assert integers_to_numpy(without_offsets.offsets).tolist() == [0]
    assert EMPTY_BYTES.as_py() == b""
