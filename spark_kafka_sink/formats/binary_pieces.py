"""Encoded columns as pieces that are joined row by row, for the binary formats Avro and Protobuf.

The binary encoders use these terms:

    piece             a column of bytes: a `Field` (up to 8 bytes per row, see records/fields.py) or a binary array
                      without nulls. An encoded row is the concatenation of its bytes in all pieces.
    mask              selects rows: True for rows whose bytes are written. All other rows have length 0 in every piece.
    valid mask        True for rows that are not null
    elements          the values of all lists (or the entries of all maps) in a column, one after the other
    element offsets   the index of each list's first element, followed by the total number of elements
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.formats.binary_arrays import (
    build_binary_scalar,
    choose_by_mask,
    repeat_value,
    view_byte_offsets,
)
from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import read_byte_column, to_binary
from spark_kafka_sink.records.fields import Field, mask_field
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder

Piece: TypeAlias = "Field | pa.Array"
"""A column of bytes, which is a part of each encoded row."""
Mask: TypeAlias = "NDArray[np.bool_] | None"
"""Mask of the selected rows, or None if all rows are selected. None saves copying pieces."""
ALL_ROWS: Mask = None
"""The mask that selects all rows."""


def join_pieces(pieces: Sequence[Piece], row_count: int, prefix: bytes = b"") -> pa.Array:
    """Join pieces into one binary array. Each row starts with `prefix`."""
    if not row_count or not (pieces or prefix):
        return repeat_value(b"", row_count)
    builder = JoinedRowsBuilder(row_count)
    builder.add_constant(prefix)
    for piece in pieces:
        if isinstance(piece, Field):
            builder.add_fields([piece])
        else:
            builder.add_payloads([read_byte_column(piece)])
    return builder.to_array()


def mask_pieces(pieces: Sequence[Piece], mask: Mask) -> list[Piece]:
    """Return the pieces with length 0 in all rows that the mask does not select."""
    if mask is None:
        return list(pieces)
    return [mask_field(piece, mask) if isinstance(piece, Field) else _mask_array(piece, mask) for piece in pieces]


def _mask_array(array: pa.Array, mask: NDArray[np.bool_]) -> pa.Array:
    return array if mask.all() else choose_by_mask(mask, array, build_binary_scalar(b""))


def split_lengths_and_bytes(column: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the length of each value of a string or binary column, and the values as a binary array without nulls.

    Nulls become empty values.
    """
    array = to_binary(column)
    lengths = compute_binary_lengths(array)
    if not array.null_count:
        return lengths, array
    if lengths[build_null_mask(array)].any():
        # The data buffer contains bytes for nulls. take() returns a copy without them, so the next call does not copy.
        all_row_indices = numbers_to_arrow(np.arange(len(array)))
        return split_lengths_and_bytes(array.take(all_row_indices))
    _, offset_buffer, data_buffer = array.buffers()
    buffers_without_validity = [None, offset_buffer, data_buffer]
    valid_array = pa.BinaryArray.from_buffers(
        pa.binary(), len(array), buffers_without_validity, null_count=0, offset=array.offset
    )
    return lengths, valid_array


def compute_binary_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Return the number of bytes that a binary array stores for each value. This can exceed 0 even for a null."""
    return np.diff(view_byte_offsets(array)).astype(np.int64)


def concatenate_elements(elements: pa.Array, element_offsets: NDArray[np.int64]) -> pa.Array:
    """Concatenate the encoded elements of each list. They are contiguous in memory, so no bytes are copied."""
    list_count = len(element_offsets) - 1
    if not len(elements):
        return repeat_value(b"", list_count)
    _, _, data_buffer = elements.buffers()
    # Byte offsets [0, 3, 4, 9] of the elements, element offsets [0, 2, 2, 3] -> byte offsets [0, 4, 4, 9] of the lists
    list_byte_offsets = view_byte_offsets(elements)[element_offsets]
    buffers = [None, pa.py_buffer(list_byte_offsets), data_buffer]
    return pa.BinaryArray.from_buffers(pa.binary(), list_count, buffers, null_count=0)


def build_element_mask(element_offsets: NDArray[np.int64], mask: Mask) -> Mask:
    """Return a mask of the elements that belong to selected rows, or None if all rows are selected."""
    # mask [True, False], offsets [0, 2, 5] -> [True, True, False, False, False]
    return None if mask is None else np.repeat(mask, np.diff(element_offsets))


def combine_masks(first_mask: Mask, second_mask: Mask) -> Mask:
    """Return the mask of the rows that both masks select."""
    return first_mask if second_mask is None else apply_mask(second_mask, first_mask)


def apply_mask(condition: NDArray[np.bool_], mask: Mask) -> NDArray[np.bool_]:
    """Return `condition`, which has a boolean per row, with False in all rows that the mask does not select."""
    return condition if mask is None else condition & mask


def build_valid_mask(column: pa.Array) -> Mask:
    """Return the mask of the rows that are not null, or None if no row is null."""
    return ~build_null_mask(column) if column.null_count else None


def reject_nulls(column: pa.Array, mask: Mask, path: str, remedy: str) -> None:
    """Raise InvalidRecordError if a selected row is null.

    `path`: the column's full name in the error, including its parents.
    `remedy`: the change to the schema that allows nulls.
    """
    valid_mask = build_valid_mask(column)
    null_count = 0 if valid_mask is None else np.count_nonzero(apply_mask(~valid_mask, mask))
    if null_count:
        raise InvalidRecordError(
            f"column {path} is null in {null_count} of {len(column)} rows, but the schema does not allow null. Filter "
            f"these rows out, or {remedy}."
        )


def bools_to_numpy(column: pa.Array) -> NDArray[np.uint8]:
    """Convert booleans to numbers: 1 for true, 0 for false and null."""
    values: NDArray[np.uint8] = integers_to_numpy(column.cast(pa.uint8()))
    return values
