"""Rows by their positions, from one column.

Arrow's `take` copies element by element into memory that it makes longer as it goes on. Where all elements have one
length the column is a table, and numpy takes rows of a table in half the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import number_array
from spark_kafka_sink.records.byte_column import byte_column
from spark_kafka_sink.records.packing import items

_NARROW = (pa.binary(), pa.string())
_BYTES_MAX = 1 << 30
"""What 32-bit offsets might not hold once rows are taken more than once."""


def take_rows(array: pa.Array, positions: NDArray[Any]) -> pa.Array:
    """The rows at these positions, copied into a new array."""
    if array.type in _NARROW and array.get_total_buffer_size() >= _BYTES_MAX:
        array = array.cast(pa.large_binary())
    table = _table_of(array)
    if table is None or len(positions) > len(array):  # more rows than there are might not do with 32-bit offsets
        return pc.take(array, number_array(positions), boundscheck=False)
    count, width = len(positions), table.itemsize
    offsets = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(array.type, count, [None, offsets, pa.py_buffer(table.take(positions))], null_count=0)


def _table_of(array: pa.Array) -> NDArray[Any] | None:
    """Its elements as items of one size, if they are."""
    if array.type not in _NARROW or array.null_count or not len(array):
        return None
    column = byte_column(array)
    width = column.fixed_length()
    return items(column.matrix(len(array), width)) if width else None
