"""Rows of bytes for binary formats: numbers as fields, bytes as arrays, and how they are put together.

A piece is a `Field` (up to 8 bytes of each row in a number, see `records/fields.py`) or a binary array without nulls.
The pieces of a column follow each other in every row. A row that must not appear has length 0 in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.formats.binary_arrays import as_binary, constant, constant_rows, either
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask, numbers_to_arrow
from spark_kafka_sink.records.byte_column import read_byte_column
from spark_kafka_sink.records.fields import Field, mask_field
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder

Piece: TypeAlias = "Field | pa.Array"
Mask: TypeAlias = "NDArray[np.bool_] | None"
"""Which rows are meant; None: all."""


def joined(pieces: Sequence[Piece], rows: int, header: bytes = b"") -> pa.Array:
    """One binary array: `header` and then the pieces of each row."""
    if not rows or not (pieces or header):
        return constant_rows(b"", rows)
    result = JoinedRowsBuilder(rows)
    result.add_constant(header)
    for piece in pieces:
        if isinstance(piece, Field):
            result.add_fields([piece])
        else:
            result.add_payloads([read_byte_column(piece)])
    return result.to_array()


def masked(pieces: Sequence[Piece], mask: Mask) -> list[Piece]:
    """The pieces with nothing in the other rows."""
    if mask is None:
        return list(pieces)
    return [mask_field(piece, mask) if isinstance(piece, Field) else _masked_array(piece, mask) for piece in pieces]


def _masked_array(array: pa.Array, mask: NDArray[np.bool_]) -> pa.Array:
    return array if mask.all() else either(mask, array, constant(b""))


def bytes_of(column: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Lengths and bytes of a string or binary column, none where it is null."""
    array = as_binary(column)
    _, offset_buffer, _ = array.buffers()
    if not len(array):
        return np.zeros(0, np.int64), array
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, 4 * array.offset)
    lengths = np.diff(offsets).astype(np.int64)
    if array.null_count:
        nulls = null_mask(array)
        if lengths[nulls].any():
            return bytes_of(array.take(numbers_to_arrow(np.arange(len(array)))))
        lengths[nulls] = 0
        array = pa.BinaryArray.from_buffers(pa.binary(), len(array), [None, *array.buffers()[1:]], 0, array.offset)
    return lengths, array


def lengths_of(array: pa.Array) -> NDArray[np.int64]:
    """The length of each row of a binary array without nulls."""
    if not len(array):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return np.diff(offsets).astype(np.int64)


def list_ranges(column: pa.Array) -> tuple[NDArray[np.int64], int, int]:
    """Where the elements of each row of a list or map begin, counted from the first one, that one, and their number."""
    offsets = integers_to_numpy(column.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, first, last - first


def rows_of_elements(elements: pa.Array, starts: NDArray[np.int64]) -> pa.Array:
    """The bytes of each row's elements. They lie one after the other already, so nothing is copied."""
    if not len(elements):
        return constant_rows(b"", len(starts) - 1)
    _, offset_buffer, data = elements.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(elements) + 1, 4 * elements.offset)
    at = pa.py_buffer(offsets[starts])
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts) - 1, [None, at, data], 0)


def element_mask(starts: NDArray[np.int64], mask: Mask) -> Mask:
    """Which elements belong to rows that are meant."""
    return None if mask is None else np.repeat(mask, np.diff(starts))


def both(mask: Mask, other: Mask) -> Mask:
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def valid_mask(column: pa.Array) -> Mask:
    """Which rows are not null."""
    return ~null_mask(column) if column.null_count else None


def bool_values(column: pa.Array) -> NDArray[np.uint8]:
    """1 for true; 0 for false and null."""
    values: NDArray[np.uint8] = integers_to_numpy(column.cast(pa.uint8()))
    return values
