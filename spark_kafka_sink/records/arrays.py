"""Between Arrow, numpy and Python, buffer by buffer.

`pa.array`, `pa.scalar`, `array.fill_null(0)` and `np.asarray(array)` would do the same. But the first such call of a
process imports pandas wherever it is installed, because Arrow then asks whether it was given a DataFrame: 48 MB
in every process that only writes. So whatever lies on a record's way goes through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

OFFSETS_MAX = (1 << 31) - 1
_Row = TypeVar("_Row", bound="tuple[Any, ...]")
_INTEGERS = {
    kind: np.dtype(str(kind))
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
"""What `to_pandas_dtype` says, which imported pandas in pyarrow 18."""


def numbers_of(array: pa.Array, null: int = 0) -> NDArray[Any]:
    """The integers of a column, with `null` in the place of nulls. Without nulls nothing is copied."""
    kind = _INTEGERS[array.type]
    data = array.buffers()[1]
    if data is None or not data.size:  # all are null, or these are the offsets of a list without rows: one 0
        return np.full(len(array), null, kind)
    numbers = np.frombuffer(data, kind, len(array), kind.itemsize * array.offset)
    return np.where(null_mask(array), kind.type(null), numbers) if array.null_count else numbers


def named_rows(kind: type[_Row], *columns: Iterable[Any]) -> Iterator[_Row]:
    """Named tuples out of columns. Their own constructor is a function of Python, and costs twice as much for each."""
    return map(partial(tuple.__new__, kind), zip(*columns, strict=False))


def number_array(numbers: NDArray[Any], nulls: NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array of these numbers, null where `nulls` says so."""
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [validity, data])


def null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Which rows are null."""
    if array.null_count in (0, len(array)):
        return np.full(len(array), array.null_count > 0)
    first, last = array.offset, array.offset + len(array)
    start = first >> 3
    bitmap = np.frombuffer(array.buffers()[0], np.uint8, ((last + 7) >> 3) - start, start)
    nulls: NDArray[np.bool_] = np.unpackbits(bitmap, bitorder="little")[first - 8 * start : last - 8 * start] == 0
    return nulls


def bytes_array(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """A binary array (or of another type with 32-bit offsets) of Python's bytes."""
    nulls = None
    if None in values:
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)  # type: ignore[arg-type]
    data = pa.py_buffer(b"".join(values))  # type: ignore[arg-type]
    wide = offsets[-1] > OFFSETS_MAX
    if wide and kind is not None:
        raise OverflowError(f"{offsets[-1]} bytes in {len(values)} values of type {kind}")
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    kind = kind or (pa.large_binary() if wide else pa.binary())
    at = pa.py_buffer(offsets if wide else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(values), [validity, at, data])


EMPTY = bytes_array([b""])[0]
"""No bytes: the separator of a join, and what stands in the place of a null."""


# One column of bytes of a chunk, as the encoder reads it: lengths, and where the bytes are.
#
# Nothing is copied: the offsets are a view of Arrow's own (only 64-bit ones are made narrow), the bytes are Arrow's.


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

    def fixed_length(self) -> int | None:
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

    def matrix(self, rows: int, width: int) -> NDArray[np.uint8]:
        """All bytes as a table, for a column that has `width` bytes for each of `rows` rows."""
        if width == 0:
            return np.empty((rows, 0), np.uint8)
        return np.frombuffer(self.data, np.uint8, rows * width, int(self.offsets[0])).reshape(rows, width)


def byte_column(array: pa.Array) -> ByteColumn:
    """Read a binary or string column (32- or 64-bit offsets). The rows must have less than 2 GiB together."""
    if array.type.id == _NULL:
        array = array.cast(_BINARY)
    offsets, data = _stored(array)
    nulls = null_mask(array) if array.null_count else None
    if nulls is not None and np.logical_or.reduce(np.logical_and(offsets[1:] - offsets[:-1], nulls)):
        # Arrow allows bytes under a null; they are none of the record's.
        kind = pa.large_binary() if offsets.itemsize == 8 else _BINARY
        offsets, data = _stored(array.cast(kind).fill_null(EMPTY.cast(kind)))
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
    if end - base > OFFSETS_MAX:
        raise OverflowError(f"{end - base} bytes in {len(offsets) - 1} rows: cut the chunk first")
    return (offsets - base).astype(np.int32), data.slice(base, end - base)
