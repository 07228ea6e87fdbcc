"""Byte columns: offsets and data of string and binary arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.records import byte_column
from spark_kafka_sink.records.arrays import (
    numbers_to_arrow,
)
from spark_kafka_sink.records.byte_column import compute_byte_sizes, read_byte_column, to_binary
from tests.records.large_arrays import build_behind_2_gib


def test_byte_sizes_ignore_bytes_under_nulls() -> None:
    """Arrow allows values under nulls."""
    offsets, data = numbers_to_arrow(np.array([0, 2, 5, 6], np.int32)), pa.py_buffer(b"aabbbc")
    validity = pa.py_buffer(np.packbits([True, False, True], bitorder="little"))
    array = pa.Array.from_buffers(pa.binary(), 3, [validity, offsets.buffers()[1], data])
    assert compute_byte_sizes(array).tolist() == [2, 0, 1]
    assert compute_byte_sizes(array.slice(1)).tolist() == [0, 1]
    assert compute_byte_sizes(pa.nulls(2)).tolist() == [0, 0]


@pytest.mark.parametrize("data_type", [pa.large_binary(), pa.large_string()])
def test_converts_slice_behind_2_gib_to_binary(data_type: pa.DataType) -> None:
    array = build_behind_2_gib([b"a", None, b"", b"bcd"], data_type)
    assert to_binary(array).equals(pa.array([b"a", None, b"", b"bcd"]))
    assert to_binary(array[1:]).equals(pa.array([None, b"", b"bcd"], pa.binary()))
    assert to_binary(array[3:]).buffers()[2].address == array.buffers()[2].address + (1 << 31) + 1


@pytest.mark.parametrize(
    "data_type", [pa.null(), pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view()]
)
def test_converts_empty_and_null_arrays_of_each_type_to_binary(data_type: pa.DataType) -> None:
    for row_count in (0, 2):
        assert to_binary(pa.nulls(row_count, data_type)).equals(pa.nulls(row_count, pa.binary()))


def test_array_that_needs_64_bit_offsets_raises_capacity_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_column, "MAX_OFFSET", 5)
    array = pa.array([b"abc", b"def"], pa.large_binary())
    for convert in (to_binary, read_byte_column):
        with pytest.raises(pa.ArrowCapacityError, match="6 bytes exceed the 5 bytes that 32-bit offsets can address"):
            convert(array)
        assert convert(array[1:]) is not None
