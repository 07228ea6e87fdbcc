"""Conversions between Arrow, numpy and Python that do not import pandas.

They give the same results as `pa.array`, `pa.scalar`, `array.fill_null(0)`, `array.to_numpy()` and `np.asarray(array)`.
The first of those calls in a process, however, imports pandas if it is installed, because Arrow checks whether the
argument is a DataFrame. The import takes 48 MB of memory in every process, even if the process only writes. All code
that handles records therefore uses this module, except the code for rejected records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_OFFSET = (1 << 31) - 1
"""The highest offset that Arrow arrays with 32-bit offsets can contain."""
_NUMPY_TYPES = {
    data_type: np.dtype(str(data_type))
    for data_type in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
"""Numpy type by Arrow type. Arrow's own `to_pandas_dtype` imports pandas in pyarrow 18."""


def integers_to_numpy(array: pa.Array, null: int = 0) -> NDArray[Any]:
    """Convert an array of integers to numpy. Nulls become the number `null`. An array without nulls is not copied."""
    dtype = _NUMPY_TYPES[array.type]
    number_buffer = array.buffers()[1]
    # Arrow may omit the buffer if all numbers are null. It may also omit the only offset (0) of an empty list array.
    if number_buffer is None or not number_buffer.size:
        return np.full(len(array), null, dtype)
    numbers = np.frombuffer(number_buffer, dtype, len(array), dtype.itemsize * array.offset)
    return np.where(build_null_mask(array), dtype.type(null), numbers) if array.null_count else numbers


def numbers_to_arrow(numbers: NDArray[Any], null_mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Convert numbers to an Arrow array without copying them.

    `null_mask`: True for the elements that become null; None if there are none.
    """
    validity_buffer = None if null_mask is None else pa.py_buffer(np.packbits(~null_mask, bitorder="little"))
    number_buffer = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [validity_buffer, number_buffer])


def build_null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask that is True for the nulls of an array."""
    if array.null_count in (0, len(array)):
        return np.full(len(array), array.null_count > 0)
    # The validity bitmap has one bit per element, which is 0 for a null. A sliced array begins at bit `array.offset`,
    # usually in the middle of a byte, so whole bytes are unpacked and the surplus bits are cut off. For example, bits 5
    # to 10 are in the bytes 0 and 1.
    first_bit, stop_bit = array.offset, array.offset + len(array)
    first_byte, stop_byte = first_bit // 8, (stop_bit + 7) // 8
    bitmap = np.frombuffer(array.buffers()[0], np.uint8, stop_byte - first_byte, first_byte)
    skipped_bits = 8 * first_byte
    bits = np.unpackbits(bitmap, bitorder="little")[first_bit - skipped_bits : stop_bit - skipped_bits]
    null_mask: NDArray[np.bool_] = bits == 0
    return null_mask


def bytes_to_arrow(values: Sequence[bytes | None], data_type: pa.DataType | None = None) -> pa.Array:
    """Convert byte strings to an Arrow array. None becomes null.

    `data_type`: a type with 32-bit offsets. The default is binary, or large_binary if 32 bits are not enough.

    Raise OverflowError if the byte strings are too large for an explicit `data_type`.
    """
    null_mask = None
    if None in values:
        null_mask = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)  # type: ignore[arg-type]
    data_buffer = pa.py_buffer(b"".join(values))  # type: ignore[arg-type]
    needs_64_bit_offsets = offsets[-1] > MAX_OFFSET
    if needs_64_bit_offsets and data_type is not None:
        raise OverflowError(
            f"{offsets[-1]} bytes in {len(values)} values exceed the {MAX_OFFSET} bytes that {data_type} can address"
        )
    validity_buffer = None if null_mask is None else pa.py_buffer(np.packbits(~null_mask, bitorder="little"))
    data_type = data_type or (pa.large_binary() if needs_64_bit_offsets else pa.binary())
    offset_buffer = pa.py_buffer(offsets if needs_64_bit_offsets else offsets.astype(np.int32))
    return pa.Array.from_buffers(data_type, len(values), [validity_buffer, offset_buffer, data_buffer])


EMPTY_BYTES = bytes_to_arrow([b""])[0]
"""An empty binary scalar, for joining strings without a separator and for replacing nulls."""


def to_narrowest_dtype(numbers: NDArray[np.int32], max_number: int) -> NDArray[Any]:
    """Convert numbers from 0 to `max_number` to the narrowest dtype, so that they can be sorted faster.

    For integers of 8 or 16 bits, numpy's stable sort is a radix sort.
    """
    if max_number < 1 << 8:
        return numbers.astype(np.uint8)
    if max_number < 1 << 16:
        return numbers.astype(np.uint16)
    return numbers
