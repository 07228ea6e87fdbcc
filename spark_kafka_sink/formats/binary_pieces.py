"""Rows of binary formats, joined from pieces.

A piece is a column of bytes: a `Field` (up to 8 bytes of each row as an integer, see `records/fields.py`) or a binary
array without nulls. A row is the concatenation of its bytes in all pieces. A masked row has length 0 in every piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.formats.binary_arrays import binary_scalar, if_else, repeat_value, to_binary
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask, numbers_to_arrow
from spark_kafka_sink.records.byte_column import read_byte_column
from spark_kafka_sink.records.fields import Field, mask_field
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder

Piece: TypeAlias = "Field | pa.Array"
Mask: TypeAlias = "NDArray[np.bool_] | None"
"""Boolean mask that selects rows; None selects all rows."""


def join_pieces(pieces: Sequence[Piece], row_count: int, header: bytes = b"") -> pa.Array:
    """Join the pieces to one binary array. Each row begins with `header`."""
    if not row_count or not (pieces or header):
        return repeat_value(b"", row_count)
    builder = JoinedRowsBuilder(row_count)
    builder.add_constant(header)
    for piece in pieces:
        if isinstance(piece, Field):
            builder.add_fields([piece])
        else:
            builder.add_payloads([read_byte_column(piece)])
    return builder.to_array()


def mask_pieces(pieces: Sequence[Piece], mask: Mask) -> list[Piece]:
    """Return copies of the pieces in which rows with a False mask have length 0."""
    if mask is None:
        return list(pieces)
    return [mask_field(piece, mask) if isinstance(piece, Field) else _mask_array(piece, mask) for piece in pieces]


def _mask_array(array: pa.Array, mask: NDArray[np.bool_]) -> pa.Array:
    return array if mask.all() else if_else(mask, array, binary_scalar(b""))


def lengths_and_bytes(column: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the lengths and the bytes of a string or binary column. Nulls have length 0."""
    array = to_binary(column)
    _, offset_buffer, _ = array.buffers()
    if not len(array):
        return np.zeros(0, np.int64), array
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, 4 * array.offset)
    lengths = np.diff(offsets).astype(np.int64)
    if array.null_count:
        nulls = null_mask(array)
        if lengths[nulls].any():
            # The array stores bytes for null rows; take() makes a copy without them.
            return lengths_and_bytes(array.take(numbers_to_arrow(np.arange(len(array)))))
        lengths[nulls] = 0
        array = pa.BinaryArray.from_buffers(pa.binary(), len(array), [None, *array.buffers()[1:]], 0, array.offset)
    return lengths, array


def binary_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Return the length of each row of a binary array without nulls."""
    if not len(array):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return np.diff(offsets).astype(np.int64)


def list_offsets(column: pa.Array) -> tuple[NDArray[np.int64], int, int]:
    """Return the offsets of a list or map column, the index of its first element, and the number of elements.

    The offsets are relative to the first element.
    """
    offsets = integers_to_numpy(column.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, first, last - first


def group_elements(elements: pa.Array, offsets: NDArray[np.int64]) -> pa.Array:
    """Concatenate the elements of each list. Adjacent elements are contiguous in memory, so no bytes are copied."""
    if not len(elements):
        return repeat_value(b"", len(offsets) - 1)
    _, offset_buffer, data = elements.buffers()
    byte_offsets = np.frombuffer(offset_buffer, np.int32, len(elements) + 1, 4 * elements.offset)
    buffers = [None, pa.py_buffer(byte_offsets[offsets]), data]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers, 0)


def element_mask(offsets: NDArray[np.int64], mask: Mask) -> Mask:
    """Return a mask of the elements that belong to selected rows."""
    return None if mask is None else np.repeat(mask, np.diff(offsets))


def combine_masks(mask: Mask, other: Mask) -> Mask:
    """Return a mask of the rows that both masks select."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def validity_mask(column: pa.Array) -> Mask:
    """Return a mask of the rows that are not null."""
    return ~null_mask(column) if column.null_count else None


def bools_to_numpy(column: pa.Array) -> NDArray[np.uint8]:
    """Return 1 for true, and 0 for false and null."""
    values: NDArray[np.uint8] = integers_to_numpy(column.cast(pa.uint8()))
    return values
