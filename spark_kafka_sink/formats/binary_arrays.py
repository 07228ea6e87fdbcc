"""Operations on Arrow's binary arrays: build constants, join arrays, select rows, set and replace nulls.

To encode a nested type, build a binary array for each field, and join the arrays row by row in a single Arrow call. The
arrays and constants that are joined are called pieces. A join costs 10 to 15 ns per piece per row, so combine adjacent
constants into one piece.

Constants are built from bytes, because `pa.scalar` imports pandas (see records/arrays.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import (
    EMPTY_BYTES,
    build_null_mask,
    bytes_to_arrow,
    integers_to_numpy,
    numbers_to_arrow,
)
from spark_kafka_sink.records.byte_column import check_total_bytes, compute_data_nbytes, to_binary

_BINARY = pa.binary()
_ENCODED_SURROGATE_PATTERN = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Encoding of a UTF-16 surrogate, which is invalid in UTF-8. The third byte may be missing."""
_UTF8_BLOCK_ROWS = 512
"""Number of strings per block in the search for invalid UTF-8, once an array is known to contain some."""
_OFFSET_BYTES = 4
"""Size of an offset in an Arrow array of type binary or string, which is an int32."""


@lru_cache(maxsize=4096)
def build_binary_scalar(data: bytes) -> pa.Scalar:
    """Return a binary scalar, for use as a piece that is the same in every row."""
    return bytes_to_arrow([data])[0]


def decode_for_error(texts: pa.Array, row_index: int) -> str:
    """Decode one row of a string array for an error message.

    Invalid UTF-8 is escaped. It can occur because Spark casts arbitrary bytes to string.
    """
    text: bytes = to_binary(texts)[row_index].as_py()
    return text.decode("utf-8", "backslashreplace")


def replace_invalid_utf8(texts: pa.Array) -> pa.Array:
    """Convert strings to a binary array in which invalid UTF-8 is replaced by U+FFFD, as in Java's strings.

    Invalid UTF-8 can occur, because Spark casts any bytes to string. Nulls stay null. Raise pa.ArrowCapacityError if
    the result would exceed 2 GiB.
    """
    array = to_binary(texts)
    if not len(array):
        return array
    offsets = view_byte_offsets(array)
    # The highest bit of a byte is 0 in ASCII text, which is always valid. This check takes little time.
    signed_bytes = np.frombuffer(array.buffers()[2] or b"", np.int8)[int(offsets[0]) : int(offsets[-1])]
    if signed_bytes.min(initial=0) >= 0 or _is_valid_utf8(array):
        return array
    # Python replaces invalid UTF-8 100 times more slowly than Arrow validates it, so it gets only blocks that need it.
    blocks = [
        _replace_in_block(array.slice(start, _UTF8_BLOCK_ROWS)) for start in range(0, len(array), _UTF8_BLOCK_ROWS)
    ]
    check_total_bytes(sum(map(compute_data_nbytes, blocks)))
    return pa.concat_arrays(blocks)


def _is_valid_utf8(array: pa.Array) -> bool:
    try:
        array.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _replace_in_block(block: pa.Array) -> pa.Array:
    if _is_valid_utf8(block):
        return block
    return bytes_to_arrow([None if text is None else _replace_in_text(text) for text in block.to_pylist()])


def _replace_in_text(text: bytes) -> bytes:
    if text.isascii():
        return text
    # Java replaces an encoded surrogate by one U+FFFD, Python by one for each byte.
    text = _ENCODED_SURROGATE_PATTERN.sub("\ufffd".encode(), text)
    return text.decode("utf-8", "replace").encode()


def is_string_type(data_type: pa.DataType) -> bool:
    """Return whether a type is string or large_string.

    Spark uses large_string if spark.sql.execution.arrow.useLargeVarTypes is set.
    """
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def is_binary_type(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def to_text(array: pa.Array) -> pa.Array:
    """Convert numbers, booleans or decimals to text as Arrow formats it. Return a binary array; nulls stay null."""
    return array.cast(pa.string()).view(_BINARY)


def join(*pieces: Any) -> pa.Array:
    """Concatenate binary arrays and scalars row by row. A row is null if any of its pieces is null."""
    return pc.binary_join_element_wise(*pieces, EMPTY_BYTES)


def join_non_null(*pieces: Any) -> pa.Array:
    """Concatenate binary arrays and scalars row by row. Nulls are skipped."""
    return pc.binary_join_element_wise(*pieces, EMPTY_BYTES, null_handling="replace", null_replacement="")


def repeat_value(data: bytes, row_count: int) -> pa.Array:
    """Return an array with this value in every row."""
    return choose_by_index(np.zeros(row_count, np.int64), [data])


def choose_by_index(indices: NDArray[Any], values: Sequence[bytes]) -> pa.Array:
    """Return an array with `values[indices[row]]` in each row, like Arrow's `choose`.

    Raise pa.ArrowCapacityError if the array would exceed 2 GiB with the longest value in every row.
    """
    check_total_bytes(len(indices) * max(map(len, values), default=0))
    return bytes_to_arrow(values).take(numbers_to_arrow(indices.astype(np.int64, copy=False)))


def choose_by_mask(mask: NDArray[np.bool_], true_values: Any, false_values: Any) -> pa.Array:
    """Return `true_values` where the mask is True and `false_values` elsewhere, like Arrow's `if_else`.

    Each of them may be an array or a scalar.
    """
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pc.if_else(pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits]), true_values, false_values)


def from_byte_table(byte_table: NDArray[np.uint8], null_mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return the rows of a two-dimensional byte array as a binary array, with nulls where `null_mask` is True.

    Raise pa.ArrowCapacityError if the array would exceed 2 GiB.
    """
    row_count, width = byte_table.shape
    check_total_bytes(row_count * width)
    offsets = np.arange(row_count + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(byte_table))
    return pa.Array.from_buffers(_BINARY, row_count, [_build_validity_buffer(null_mask), pa.py_buffer(offsets), data])


def copy_nulls_from(array: pa.Array, source: pa.Array) -> pa.Array:
    """Return `array`, which must have no nulls, with nulls where `source` is null."""
    return set_nulls(array, build_null_mask(source)) if source.null_count else array


def set_nulls(array: pa.Array, null_mask: NDArray[np.bool_]) -> pa.Array:
    """Return `array` with nulls exactly where the mask is True. Existing nulls are discarded."""
    _, offsets, data = array.buffers()
    # The buffers begin `array.offset` rows before the array.
    padded_mask = np.zeros(array.offset + len(array), np.bool_)
    padded_mask[array.offset :] = null_mask
    validity = _build_validity_buffer(padded_mask)
    return pa.Array.from_buffers(_BINARY, len(array), [validity, offsets, data], offset=array.offset)


def fill_nulls(array: pa.Array, data: bytes) -> pa.Array:
    """Return `array` with nulls replaced by `data`."""
    return pc.fill_null(array, build_binary_scalar(data)) if array.null_count else array


def read_element_offsets(column: pa.Array) -> tuple[NDArray[np.int64], int, int]:
    """Return the element offsets, the first element's index and the number of elements of a list or map column.

    The child arrays hold the elements of all rows back to back: a list has one child array, a map has one for the keys
    and one for the values. If the column is a slice, its first element can be anywhere in the child arrays.

    - element offsets: the index of each row's first element, counted from the column's first element, followed by the
      number of elements. For lists with 2, 0 and 3 elements, they are [0, 2, 2, 5].
    - first element's index: the position of the column's first element in the child arrays
    - number of elements: the total over all rows
    """
    child_offsets = integers_to_numpy(column.offsets).astype(np.int64)
    first_element_index, element_stop = int(child_offsets[0]), int(child_offsets[-1])
    return child_offsets - first_element_index, first_element_index, element_stop - first_element_index


def scatter_groups(groups: Sequence[tuple[NDArray[np.int64], pa.Array]], row_count: int) -> pa.Array:
    """Combine groups of rows into one array. Raise pa.ArrowCapacityError if it would exceed 2 GiB.

    `groups`: for each group, the indices of its rows in the result, and the rows. Each index must occur in exactly one
    group.
    """
    # For each row of the result, its index in the concatenated groups. For example, the groups ([1, 2], [a, b]) and
    # ([0], [c]) have the concatenated rows [a, b, c], the indices [2, 0, 1] and the result [c, a, b].
    indices_in_groups = np.empty(row_count, np.int64)
    group_start = 0
    for row_indices, _ in groups:
        indices_in_groups[row_indices] = np.arange(group_start, group_start + len(row_indices))
        group_start += len(row_indices)
    check_total_bytes(sum(compute_data_nbytes(rows) for _, rows in groups))
    return pa.concat_arrays([rows for _, rows in groups]).take(numbers_to_arrow(indices_in_groups))


def take_rows(array: pa.Array, row_indices: NDArray[np.int64]) -> pa.Array:
    """Return the rows at these indices."""
    return array.take(numbers_to_arrow(row_indices))


def _build_validity_buffer(null_mask: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if null_mask is None else pa.py_buffer(np.packbits(~null_mask, bitorder="little"))


def view_byte_offsets(array: pa.Array) -> NDArray[np.int32]:
    """Return a view of the byte offsets: the start of each value in the data buffer, and the end of the last value."""
    if not len(array):
        return np.zeros(1, np.int32)  # Arrow may omit the only offset (0) of an empty array
    _, offset_buffer, _ = array.buffers()
    return np.frombuffer(offset_buffer, np.int32, len(array) + 1, _OFFSET_BYTES * array.offset)
