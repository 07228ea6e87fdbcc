"""Conversions between Arrow, numpy and Python that do not import pandas.

`pa.array`, `pa.scalar`, `array.fill_null(0)` and `np.asarray(array)` give the same results. But the first such call of
a process imports pandas, if it is installed, because Arrow checks whether its argument is a DataFrame. This takes 48 MB
in every process that only writes. So all code that handles records uses this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_OFFSET = (1 << 31) - 1
_NUMPY_TYPES = {
    kind: np.dtype(str(kind))
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
"""Equals `to_pandas_dtype`, which imports pandas in pyarrow 18."""


def integers_to_numpy(array: pa.Array, null: int = 0) -> NDArray[Any]:
    """Convert an array of integers to numpy, with `null` for nulls. An array without nulls is not copied."""
    kind = _NUMPY_TYPES[array.type]
    data = array.buffers()[1]
    if data is None or not data.size:  # all are null, or the array is the only offset, 0, of a list array without rows
        return np.full(len(array), null, kind)
    numbers = np.frombuffer(data, kind, len(array), kind.itemsize * array.offset)
    return np.where(null_mask(array), kind.type(null), numbers) if array.null_count else numbers


def numbers_to_arrow(numbers: NDArray[Any], nulls: NDArray[np.bool_] | None = None) -> pa.Array:
    """Convert numbers to an Arrow array without a copy. Elements for which `nulls` is True are null."""
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [validity, data])


def null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask that is True for nulls."""
    if array.null_count in (0, len(array)):
        return np.full(len(array), array.null_count > 0)
    first, last = array.offset, array.offset + len(array)
    start = first >> 3
    bitmap = np.frombuffer(array.buffers()[0], np.uint8, ((last + 7) >> 3) - start, start)
    nulls: NDArray[np.bool_] = np.unpackbits(bitmap, bitorder="little")[first - 8 * start : last - 8 * start] == 0
    return nulls


def bytes_to_arrow(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Convert bytes to an Arrow array of type `kind`, which must have 32-bit offsets.

    By default the type is binary, or large_binary if 32-bit offsets overflow. With a given type, OverflowError is
    raised then.
    """
    nulls = None
    if None in values:
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)  # type: ignore[arg-type]
    data = pa.py_buffer(b"".join(values))  # type: ignore[arg-type]
    wide = offsets[-1] > MAX_OFFSET
    if wide and kind is not None:
        raise OverflowError(f"{offsets[-1]} bytes in {len(values)} values of type {kind}")
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    kind = kind or (pa.large_binary() if wide else pa.binary())
    at = pa.py_buffer(offsets if wide else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(values), [validity, at, data])


EMPTY_BYTES = bytes_to_arrow([b""])[0]
"""Scalar of zero bytes: the separator of a join, and the replacement of a null."""
