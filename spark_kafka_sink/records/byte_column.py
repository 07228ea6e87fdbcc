"""One column of bytes of a chunk, as the encoder reads it: lengths, and where the bytes are.

Nothing is copied: the offsets are a view of Arrow's own (only 64-bit ones are made narrow), the bytes are Arrow's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY_BYTES, MAX_OFFSET, null_mask

_BINARY = pa.binary()
_NULL = pa.null().id
_SMALL, _LARGE = np.dtype(np.int32), np.dtype(np.int64)
_LARGE_TYPES = (pa.large_binary().id, pa.large_string().id)


@dataclass(frozen=True)
class ByteColumn:
    """`offsets` has one element more than there are rows; `nulls` says which rows are null, None that none is."""

    offsets: NDArray[np.int32]
    data: pa.Buffer
    nulls: NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """The bytes of all rows together."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Kafka's, with -1 for null."""
        lengths: NDArray[np.int32] = self.offsets[1:] - self.offsets[:-1]
        if self.nulls is not None:
            lengths[self.nulls] = -1
        return lengths

    def uniform_length(self) -> int | None:
        """The length that all rows have (-1: all are null), or None."""
        if self.nulls is not None:
            return -1 if self.nulls.all() else None
        offsets = self.offsets
        start = int(offsets[0])
        first = int(offsets[1]) - start
        if int(offsets[-1]) - start != first * self.rows:
            return None
        # It is the average: unless all have it, one has more.
        return first if np.maximum.reduce(offsets[1:] - offsets[:-1]) == first else None

    def array(self) -> pa.Array:
        """The payload as a binary array without nulls."""
        return pa.BinaryArray.from_buffers(
            _BINARY, self.rows, [None, pa.py_buffer(self.offsets), self.data], null_count=0
        )

    def to_matrix(self, rows: int, width: int) -> NDArray[np.uint8]:
        """All bytes as a table, for a column that has `width` bytes for each of `rows` rows."""
        if width == 0:
            return np.empty((rows, 0), np.uint8)
        return np.frombuffer(self.data, np.uint8, rows * width, int(self.offsets[0])).reshape(rows, width)


def read_byte_column(array: pa.Array) -> ByteColumn:
    """Read a binary or string column (32- or 64-bit offsets). The rows must have less than 2 GiB together."""
    if array.type.id == _NULL:
        array = array.cast(_BINARY)
    offsets, data = _stored(array)
    nulls = null_mask(array) if array.null_count else None
    if nulls is not None and np.logical_or.reduce(np.logical_and(offsets[1:] - offsets[:-1], nulls)):
        # Arrow allows bytes under a null; they are none of the record's.
        kind = pa.large_binary() if offsets.itemsize == 8 else _BINARY
        offsets, data = _stored(array.cast(kind).fill_null(EMPTY_BYTES.cast(kind)))
    if data is None:
        data = pa.py_buffer(b"")
    if offsets.itemsize == 8:
        offsets, data = _narrow(offsets, data)
    return ByteColumn(offsets, data, nulls)


def byte_sizes(array: pa.Array) -> NDArray[np.int64]:
    """The bytes of each row of a binary, string or null column, none for null. The rows may be of any size."""
    if array.type.id == _NULL:
        return np.zeros(len(array), np.int64)
    offsets, _ = _stored(array)
    sizes: NDArray[np.int64] = (offsets[1:] - offsets[:-1]).astype(np.int64)
    if array.null_count:
        sizes[null_mask(array)] = 0
    return sizes


def data_nbytes(array: pa.Array) -> int:
    """The bytes of all rows of a binary, string or null column together, without its offsets."""
    if array.type.id == _NULL:
        return 0
    offsets, _ = _stored(array)
    return int(offsets[-1]) - int(offsets[0])


def _stored(array: pa.Array) -> tuple[NDArray[Any], pa.Buffer | None]:
    """Arrow's own offsets, as int32 or int64, and the bytes that they point into."""
    kind = _LARGE if array.type.id in _LARGE_TYPES else _SMALL
    _, buffer, data = array.buffers()
    if buffer is None or buffer.size == 0:
        return np.zeros(len(array) + 1, kind), data
    return np.frombuffer(buffer, kind, len(array) + 1, kind.itemsize * array.offset), data


def _narrow(offsets: NDArray[np.int64], data: pa.Buffer) -> tuple[NDArray[np.int32], pa.Buffer]:
    """Offsets of 64 bits as ones of 32 bits that begin at 0, and the bytes that they show."""
    base, end = int(offsets[0]), int(offsets[-1])
    if end - base > MAX_OFFSET:
        raise OverflowError(f"{end - base} bytes in {len(offsets) - 1} rows: cut the chunk first")
    return (offsets - base).astype(np.int32), data.slice(base, end - base)
