"""Byte columns: offsets and data of string and binary arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.arrays import (
    numbers_to_arrow,
)
from spark_kafka_sink.records.byte_column import compute_byte_sizes


def test_byte_sizes_ignore_bytes_under_nulls() -> None:
    """Arrow allows values under nulls."""
    offsets, data = numbers_to_arrow(np.array([0, 2, 5, 6], np.int32)), pa.py_buffer(b"aabbbc")
    validity = pa.py_buffer(np.packbits([True, False, True], bitorder="little"))
    array = pa.Array.from_buffers(pa.binary(), 3, [validity, offsets.buffers()[1], data])
    assert compute_byte_sizes(array).tolist() == [2, 0, 1]
    assert compute_byte_sizes(array.slice(1)).tolist() == [0, 1]
    assert compute_byte_sizes(pa.nulls(2)).tolist() == [0, 0]
