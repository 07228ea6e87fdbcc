"""One column of bytes of a chunk, as the encoder reads it: lengths, and where the bytes are.

Nothing is copied: the offsets are a view of Arrow's own (only 64-bit ones are made narrow), the bytes are Arrow's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

OFFSETS_MAX = (1 << 31) - 1
EMPTY = pa.scalar(b"", pa.binary())
"""The separator of a join."""


@dataclass(frozen=True)
class ByteColumn:
    """`lengths` are Kafka's, with -1 for null; `offsets` has one element more than there are rows."""

    lengths: NDArray[np.int64]
    offsets: NDArray[np.int32]
    data: pa.Buffer

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def fixed_length(self) -> int | None:
        """The length that all rows have (-1: all are null), or None."""
        first = int(self.lengths[0])
        return first if bool((self.lengths == first).all()) else None

    def array(self, extra_rows: int = 0) -> pa.Array:
        """The payload as a binary array without nulls, with empty rows added at the end."""
        offsets = self.offsets
        if extra_rows:
            offsets = np.concatenate([offsets, np.full(extra_rows, offsets[-1], np.int32)])
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), self.data], null_count=0
        )

    def matrix(self, rows: int, width: int) -> NDArray[np.uint8]:
        """All bytes as a table, for a column that has `width` bytes for each of `rows` rows."""
        if width == 0:
            return np.empty((rows, 0), np.uint8)
        return np.frombuffer(self.data, np.uint8, rows * width, int(self.offsets[0])).reshape(rows, width)


def byte_column(array: pa.Array) -> ByteColumn:
    """Read a binary or string column (32- or 64-bit offsets). The rows must have less than 2 GiB together."""
    if pa.types.is_null(array.type):
        array = array.cast(pa.binary())
    offsets, data = _offsets(array)
    lengths = (offsets[1:] - offsets[:-1]).astype(np.int64)
    if not array.null_count:
        return ByteColumn(lengths, offsets, data)
    valid = np.asarray(array.is_valid())
    if lengths[~valid].any():
        # Arrow allows bytes under a null; they are none of the record's.
        kept = pa.array(array.cast(pa.large_binary() if offsets.dtype == np.int64 else pa.binary()).fill_null(b""))
        offsets, data = _offsets(kept)
        lengths = (offsets[1:] - offsets[:-1]).astype(np.int64)
    lengths[~valid] = -1
    return ByteColumn(lengths, offsets, data)


def _offsets(array: pa.Array) -> tuple[NDArray[np.int32], pa.Buffer]:
    _, offset_buffer, data = array.buffers()
    rows, first = len(array), array.offset
    if data is None:
        data = pa.py_buffer(b"")
    if offset_buffer is None or offset_buffer.size == 0:
        return np.zeros(rows + 1, np.int32), data
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return np.frombuffer(offset_buffer, np.int32, rows + 1, 4 * first), data
    wide = np.frombuffer(offset_buffer, np.int64, rows + 1, 8 * first)
    base, end = int(wide[0]), int(wide[-1])
    if end - base > OFFSETS_MAX:
        raise OverflowError(f"{end - base} bytes in {rows} rows: cut the chunk first")
    return (wide - base).astype(np.int32), data.slice(base, end - base)
