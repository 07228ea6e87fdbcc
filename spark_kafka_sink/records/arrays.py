"""Convert between Arrow, numpy and Python without importing pandas.

`pa.array`, `pa.scalar`, `array.fill_null(0)`, `array.to_numpy()` and `np.asarray(array)` give the same results, but the
first of these calls in a process imports pandas if it is installed, because Arrow checks whether the argument is a
DataFrame. That would cost 48 MB in every process that only writes. All code that handles records therefore uses this
module, except the code for rejected records.
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
    data_type: np.dtype(str(data_type))
    for data_type in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
"""Numpy type by Arrow type. Arrow's own `to_pandas_dtype` imports pandas in pyarrow 18."""


def integers_to_numpy(array: pa.Array, null: int = 0) -> NDArray[Any]:
    """Convert an integer array to numpy, replacing nulls by `null`. An array without nulls is not copied."""
    dtype = _NUMPY_TYPES[array.type]
    data = array.buffers()[1]
    if data is None or not data.size:  # all values are null, or this is the single offset (0) of an empty list array
        return np.full(len(array), null, dtype)
    numbers = np.frombuffer(data, dtype, len(array), dtype.itemsize * array.offset)
    return np.where(build_null_mask(array), dtype.type(null), numbers) if array.null_count else numbers


def numbers_to_arrow(numbers: NDArray[Any], nulls: NDArray[np.bool_] | None = None) -> pa.Array:
    """Convert numbers to an Arrow array without copying them. Elements for which `nulls` is True become null."""
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [validity, data])


def build_null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask that is True for nulls."""
    if array.null_count in (0, len(array)):
        return np.full(len(array), array.null_count > 0)
    first_bit, stop_bit = array.offset, array.offset + len(array)
    first_byte, stop_byte = first_bit // 8, (stop_bit + 7) // 8
    bitmap = np.frombuffer(array.buffers()[0], np.uint8, stop_byte - first_byte, first_byte)
    skipped_bits = 8 * first_byte
    bits = np.unpackbits(bitmap, bitorder="little")[first_bit - skipped_bits : stop_bit - skipped_bits]
    nulls: NDArray[np.bool_] = bits == 0
    return nulls


def bytes_to_arrow(values: Sequence[bytes | None], data_type: pa.DataType | None = None) -> pa.Array:
    """Convert bytes to an Arrow array. `data_type` must have 32-bit offsets; it defaults to binary.

    If the bytes need 64-bit offsets, the default becomes large_binary, and an explicit `data_type` raises
    OverflowError.
    """
    nulls = None
    if None in values:
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)  # type: ignore[arg-type]
    data = pa.py_buffer(b"".join(values))  # type: ignore[arg-type]
    needs_64_bit_offsets = offsets[-1] > MAX_OFFSET
    if needs_64_bit_offsets and data_type is not None:
        raise OverflowError(
            f"{offsets[-1]} bytes in {len(values)} values exceed the {MAX_OFFSET} bytes that {data_type} can address"
        )
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data_type = data_type or (pa.large_binary() if needs_64_bit_offsets else pa.binary())
    offset_buffer = pa.py_buffer(offsets if needs_64_bit_offsets else offsets.astype(np.int32))
    return pa.Array.from_buffers(data_type, len(values), [validity, offset_buffer, data])


EMPTY_BYTES = bytes_to_arrow([b""])[0]
"""Empty binary scalar, used to join without a separator and to replace nulls."""


def to_narrowest_dtype(values: NDArray[np.int32], max_value: int) -> NDArray[Any]:
    """Convert values of 0 to `max_value` to the narrowest dtype, for sorting.

    numpy's stable sort is a radix sort for integers of 8 or 16 bits.
    """
    if max_value < 1 << 8:
        return values.astype(np.uint8)
    if max_value < 1 << 16:
        return values.astype(np.uint16)
    return values
