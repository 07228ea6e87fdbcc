"""ByteColumn: a column of byte strings in the layout that the encoder reads.

A ByteColumn shares the offsets and the bytes of its Arrow array, with two exceptions: 64-bit offsets are converted to
32 bits, and an array that stores bytes for nulls is copied without these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY_BYTES, MAX_OFFSET, build_null_mask

_BINARY = pa.binary()
_NULL_TYPE_ID = pa.null().id
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_LARGE_TYPE_IDS = (pa.large_binary().id, pa.large_string().id)


@dataclass(frozen=True)
class ByteColumn:
    """Byte strings with the layout of an Arrow binary array: row i consists of data[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int32]
    """The start of each row in `data`, followed by the end of the last row. The first offset need not be 0."""
    data: pa.Buffer
    nulls: NDArray[np.bool_] | None = None
    """A mask that is True for the null rows, which have no bytes; None if no row is null."""

    @property
    def row_count(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """The number of bytes of all rows together."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The length of each row in bytes. Null has the length -1, as in Kafka's record format."""
        lengths: NDArray[np.int32] = self.offsets[1:] - self.offsets[:-1]
        if self.nulls is not None:
            lengths[self.nulls] = -1
        return lengths

    def find_uniform_length(self) -> int | None:
        """Return the length that all rows have (-1 if all are null), or None if the lengths differ.

        The column must not be empty.
        """
        if self.nulls is not None:
            return -1 if self.nulls.all() else None
        offsets = self.offsets
        start = int(offsets[0])
        first_length = int(offsets[1]) - start
        if int(offsets[-1]) - start != first_length * self.row_count:
            return None
        # The first length equals the average, so if any length differs, at least one is larger.
        return first_length if np.maximum.reduce(offsets[1:] - offsets[:-1]) == first_length else None

    def to_array(self) -> pa.Array:
        """Return the rows as an Arrow binary array, without copying them. Nulls become empty byte strings."""
        return pa.BinaryArray.from_buffers(
            _BINARY, self.row_count, [None, pa.py_buffer(self.offsets), self.data], null_count=0
        )

    def to_matrix(self, row_bytes: int) -> NDArray[np.uint8]:
        """Return a matrix with one row per row of the column, and one byte per element.

        All rows must have the same length, `row_bytes`.
        """
        row_count = self.row_count
        if row_bytes == 0:
            return np.empty((row_count, 0), np.uint8)
        data = np.frombuffer(self.data, np.uint8, row_count * row_bytes, int(self.offsets[0]))
        return data.reshape(row_count, row_bytes)


def read_byte_column(array: pa.Array) -> ByteColumn:
    """Read an Arrow array of bytes, strings or nulls.

    Raise pa.ArrowCapacityError if all rows together exceed 2 GiB.
    """
    if array.type.id == _NULL_TYPE_ID:
        array = array.cast(_BINARY)
    offsets, data = _read_offsets_and_data(array)
    has_64_bit_offsets = offsets.itemsize == 8
    nulls = build_null_mask(array) if array.null_count else None
    # Arrow allows an array to store bytes for a null. These bytes must not end up in a record. (Ufuncs are used here,
    # because `lengths[nulls].any()` would copy the lengths of the null rows.)
    if nulls is not None and np.logical_or.reduce(np.logical_and(offsets[1:] - offsets[:-1], nulls)):
        binary_type = pa.large_binary() if has_64_bit_offsets else _BINARY
        offsets, data = _read_offsets_and_data(array.cast(binary_type).fill_null(EMPTY_BYTES.cast(binary_type)))
    if has_64_bit_offsets:
        offsets, data = _narrow_offsets(offsets, data)
    return ByteColumn(offsets, data, nulls)


def to_binary(array: pa.Array) -> pa.Array:
    """Convert an array of bytes, strings or nulls to binary with 32-bit offsets, without copying the bytes.

    Nulls stay null. Raise pa.ArrowCapacityError if all rows together exceed 2 GiB.
    """
    if array.type == _BINARY:
        return array
    if pa.types.is_string(array.type):
        return array.view(_BINARY)
    if array.type.id not in _LARGE_TYPE_IDS:
        return array.cast(_BINARY)
    # Arrow's cast compares the last offset with the limit, and therefore rejects a slice behind the first 2 GiB of an
    # array, even if the slice itself is small.
    offsets, data = _narrow_offsets(*_read_offsets_and_data(array))
    validity = pa.py_buffer(np.packbits(~build_null_mask(array), bitorder="little")) if array.null_count else None
    return pa.Array.from_buffers(_BINARY, len(array), [validity, pa.py_buffer(offsets), data])


def check_total_bytes(total_bytes: int) -> None:
    """Raise pa.ArrowCapacityError if an array of this size would exceed the 2 GiB that 32-bit offsets can address.

    Some of Arrow's functions raise ArrowInvalid in this case, and others let the offsets overflow.
    """
    if total_bytes > MAX_OFFSET:
        raise pa.ArrowCapacityError(
            f"{total_bytes} bytes exceed the {MAX_OFFSET} bytes that 32-bit offsets can address"
        )


def compute_byte_sizes(array: pa.Array) -> NDArray[np.int64]:
    """Return the size of each row in bytes, for an array of bytes, strings or nulls. A null has size 0.

    Unlike in `read_byte_column`, the array may exceed 2 GiB.
    """
    if array.type.id == _NULL_TYPE_ID:
        return np.zeros(len(array), np.int64)
    offsets, _ = _read_offsets_and_data(array)
    sizes: NDArray[np.int64] = (offsets[1:] - offsets[:-1]).astype(np.int64)
    if array.null_count:
        sizes[build_null_mask(array)] = 0
    return sizes


def compute_data_nbytes(array: pa.Array) -> int:
    """Return the total size of all rows in bytes, for an array of bytes, strings or nulls. Offsets are not counted."""
    if array.type.id == _NULL_TYPE_ID:
        return 0
    offsets, _ = _read_offsets_and_data(array)
    return int(offsets[-1]) - int(offsets[0])


def _read_offsets_and_data(array: pa.Array) -> tuple[NDArray[Any], pa.Buffer]:
    """Return the array's offsets, as int32 or int64, and the data buffer that they refer to."""
    dtype = _INT64 if array.type.id in _LARGE_TYPE_IDS else _INT32
    _, offset_buffer, data = array.buffers()
    if data is None:
        data = pa.py_buffer(b"")
    if offset_buffer is None or offset_buffer.size == 0:
        return np.zeros(len(array) + 1, dtype), data
    return np.frombuffer(offset_buffer, dtype, len(array) + 1, dtype.itemsize * array.offset), data


def _narrow_offsets(offsets: NDArray[np.int64], data: pa.Buffer) -> tuple[NDArray[np.int32], pa.Buffer]:
    """Convert 64-bit offsets to 32-bit offsets that start at 0.

    Return the offsets and the slice of the buffer that they refer to. Raise pa.ArrowCapacityError if the slice exceeds
    2 GiB.
    """
    base, end = int(offsets[0]), int(offsets[-1])
    check_total_bytes(end - base)
    return (offsets - base).astype(np.int32), data.slice(base, end - base)
