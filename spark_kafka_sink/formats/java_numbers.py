"""Floats and doubles as text, formatted like Java's `Float.toString` and `Double.toString` since JDK 19.

Both Java and Arrow write the shortest decimal that parses to the same number, so the digits can be taken from Arrow.
Only the layout differs. Java writes 0 and numbers with 0.001 <= |x| < 10,000,000 without an exponent and with at least
one fraction digit (`1.0`, `0.25`). It writes all other finite numbers in scientific notation (`1.0E7`, `1.7E-12`).

If one digit is enough to identify a number, Java writes the nearest decimal with two digits instead. This makes a
difference only for the smallest subnormals: `4.9E-324`, not `5.0E-324`.

JDKs before 19 sometimes write one digit too many, or a last digit that is off by one (JDK-4511638). Their text still
parses to the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.formats.binary_arrays import (
    build_binary_scalar,
    choose_by_index,
    choose_by_mask,
    copy_nulls_from,
    join,
    scatter_groups,
    take_rows,
    to_text,
)
from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy

_MIN_PLAIN, _PLAIN_LIMIT = 1e-3, 1e7
"""0 and numbers with `_MIN_PLAIN <= |x| < _PLAIN_LIMIT` are plain decimals; others are in scientific notation."""
_TINY_LIMITS = {8: 1e-321, 4: 3e-43}
"""Magnitude below which a number may have fewer than two digits of precision, by the size of the type in bytes."""
_MAX_DIGITS = 32
"""Upper bound on the number of digits in Arrow's text."""


def format_floats(array: pa.Array) -> pa.Array:
    """Format a float32 or float64 column like Java since JDK 19. Nulls stay null."""
    values = floats_to_numpy(array)
    magnitudes = np.abs(values)
    is_plain = ((magnitudes >= _MIN_PLAIN) & (magnitudes < _PLAIN_LIMIT)) | (magnitudes == 0)
    if is_plain.all():
        return copy_nulls_from(_format_plain(values), source=array)
    is_finite = np.isfinite(values)
    is_tiny = (magnitudes > 0) & (magnitudes < _TINY_LIMITS[values.itemsize])
    groups = []
    for mask, format_group in (
        (is_plain, _format_plain),
        (~is_finite, _format_non_finite),
        (is_tiny, _format_tiny),
        (is_finite & ~is_plain & ~is_tiny, _format_scientific),
    ):
        row_indices = np.flatnonzero(mask)
        if len(row_indices):
            groups.append((row_indices, format_group(values[row_indices])))
    return copy_nulls_from(scatter_groups(groups, len(values)), source=array)


def find_non_finite(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the rows that are NaN or infinite. Nulls count as finite."""
    mask: NDArray[np.bool_] = ~np.isfinite(floats_to_numpy(array))
    return mask


def floats_to_numpy(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of a float32 or float64 array. Nulls become 0."""
    dtype = np.dtype(np.float32 if pa.types.is_float32(array.type) else np.float64)
    data = array.buffers()[1]
    if data is None or not data.size:
        return np.zeros(len(array), dtype)
    values = np.frombuffer(data, dtype, len(array), dtype.itemsize * array.offset)
    return np.where(build_null_mask(array), dtype.type(0), values) if array.null_count else values


def _to_float_array(values: NDArray[Any]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def _format_plain(values: NDArray[Any]) -> pa.Array:
    """Format numbers without an exponent. Integers end with `.0`, which Arrow omits."""
    text = to_text(_to_float_array(values))
    is_integral = values == np.trunc(values)
    if not is_integral.any():
        return text
    if is_integral.all():
        return join(text, build_binary_scalar(b".0"))
    return join(text, choose_by_index(is_integral, [b"", b".0"]))


def _format_non_finite(values: NDArray[Any]) -> pa.Array:
    # The indices are 0 for -inf, 1 for NaN (for which `> 0` is false) and 2 for inf.
    return choose_by_index(np.isnan(values) + 2 * (values > 0), [b"-Infinity", b"NaN", b"Infinity"])


def _format_tiny(values: NDArray[Any]) -> pa.Array:
    """Format numbers below the type's limit in _TINY_LIMITS.

    Each distinct number is formatted in Python. This is fast, because a type has only a few hundred such numbers.
    """
    distinct_values, value_indices = np.unique(values, return_inverse=True)
    return choose_by_index(value_indices, [_format_two_digits(value) for value in distinct_values])


def _format_two_digits(value: Any) -> bytes:
    """Format a number in scientific notation, with at least two digits.

    If one or two digits identify the number, return the nearest two-digit decimal, as Java does.
    """
    digits, exponent = np.format_float_scientific(value, unique=True, trim="0").split("e")
    if len(digits.lstrip("-")) == len("5.0"):
        digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}E{int(exponent)}".encode()


def _format_scientific(values: NDArray[Any]) -> pa.Array:
    """Format numbers with one digit, the decimal point, at least one more digit, and the exponent."""
    # Arrow writes some of these numbers in its own scientific notation, and the others as plain decimals.
    arrow_text = to_text(_to_float_array(np.abs(values)))
    has_exponent = _find_substring(arrow_text, b"e") >= 0
    groups = []
    for mask, rewrite in ((has_exponent, _normalize_scientific), (~has_exponent, _to_scientific)):
        row_indices = np.flatnonzero(mask)
        if len(row_indices):
            groups.append((row_indices, rewrite(take_rows(arrow_text, row_indices))))
    unsigned_text = scatter_groups(groups, len(values))
    is_negative = values < 0
    return join(choose_by_index(is_negative, [b"", b"-"]), unsigned_text) if is_negative.any() else unsigned_text


def _normalize_scientific(arrow_text: pa.Array) -> pa.Array:
    """Convert Arrow's scientific notation to Java's: `1e+23` to `1.0E23`, `1.7e-12` to `1.7E-12`."""
    text = pc.replace_substring(arrow_text, b"e+", b"e")
    has_point = _find_substring(text, b".") >= 0
    text_with_point = pc.replace_substring(text, b"e", b"E")
    if has_point.all():
        return text_with_point
    return choose_by_mask(has_point, text_with_point, pc.replace_substring(text, b"e", b".0E"))


def _to_scientific(plain_text: pa.Array) -> pa.Array:
    """Convert plain decimals to scientific notation: `123456789.5` to `1.234567895E8`, `0.000123` to `1.23E-4`.

    The comments show the value of each array for `0.000123`.
    """
    digits = pc.replace_substring(plain_text, b".", b"").view(pa.string())  # 0000123
    significant_digits = pc.ascii_ltrim(digits, "0").view(pa.binary())  # 123
    leading_zero_counts = _compute_lengths(digits) - _compute_lengths(significant_digits)  # 4
    exponents = _build_exponents(plain_text, leading_zero_counts)  # E-4
    first_digit = pc.binary_slice(significant_digits, 0, 1)  # 1
    other_digits = pc.binary_slice(significant_digits, 1, _MAX_DIGITS).view(pa.string())  # 23
    fraction_digits = pc.ascii_rtrim(other_digits, "0").view(pa.binary())  # 23
    fraction_pieces = [fraction_digits]
    is_fraction_empty = _compute_lengths(fraction_digits) == 0
    if is_fraction_empty.any():  # Java writes at least one digit after the point
        fraction_pieces.append(choose_by_index(is_fraction_empty, [b"", b"0"]))
    return join(first_digit, build_binary_scalar(b"."), *fraction_pieces, exponents)


def _build_exponents(plain_text: pa.Array, leading_zero_counts: NDArray[Any]) -> pa.Array:
    """Return the exponents of plain decimals in scientific notation: `E8` for `123456789.5`, `E-4` for `0.000123`.

    `leading_zero_counts`: the number of zeros before each number's first nonzero digit, ignoring the decimal point.
    """
    point_positions = _find_substring(plain_text, b".")
    integer_digit_counts = np.where(point_positions >= 0, point_positions, _compute_lengths(plain_text))
    exponents = integer_digit_counts - 1 - leading_zero_counts
    min_exponent, max_exponent = int(exponents.min()), int(exponents.max())
    exponent_texts = [b"E%d" % exponent for exponent in range(min_exponent, max_exponent + 1)]
    return choose_by_index(exponents - min_exponent, exponent_texts)


def _find_substring(array: pa.Array, substring: bytes) -> NDArray[Any]:
    """Return the position of the substring in each row, or -1 if the row does not contain it."""
    return integers_to_numpy(pc.find_substring(array, substring))


def _compute_lengths(array: pa.Array) -> NDArray[Any]:
    return integers_to_numpy(pc.binary_length(array))
