"""Float and double columns as the text that Java's `Double.toString` and `Float.toString` make since JDK 19.

Both Java and Arrow write the fewest digits that lead back to the same number, so the digits are Arrow's. What differs
is their layout. Java writes 0.001 <= |x| < 10,000,000 plainly, with a digit or more after the point (`1.0`, `0.25`),
everything else as one digit, the point, further digits and an exponent (`1.0E7`, `1.7E-12`). Where one digit would do,
Java takes the nearest number of two digits, which differs for the very smallest numbers alone (`4.9E-324`).

A JDK before 19 sometimes has one digit too many, or a last digit that is off by one (its bug 4511638); read back, both
texts are the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.formats.binary_arrays import (
    chosen,
    constant,
    either,
    join,
    merged,
    take,
    text_of,
    with_nulls_of,
)
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask

_TINY = {8: 1e-321, 4: 3e-43}
"""Below, by bytes of the number: where two digits are more than the number has."""
_DIGITS_MAX = 32


def float_text(array: pa.Array) -> pa.Array:
    """The text of a float32 or float64 column, null where it is null. NaN and infinities are as Java names them."""
    values = float_values(array)
    size = np.abs(values)
    is_plain = ((size >= 1e-3) & (size < 1e7)) | (size == 0)
    if is_plain.all():
        return with_nulls_of(_plain(_filled(array, values), values), array)
    groups = []
    for is_member, texts in (
        (is_plain, _plain),
        (~np.isfinite(values), _special),
        ((size > 0) & (size < _TINY[values.itemsize]), _tiny),
    ):
        places = np.flatnonzero(is_member)
        if len(places):
            members = values[places]
            groups.append((places, texts(_float_array(members), members)))
    places = np.flatnonzero(np.isfinite(values) & ~is_plain & (size >= _TINY[values.itemsize]))
    if len(places):
        groups.append((places, _scientific(values[places])))
    return with_nulls_of(merged(groups, len(values)), array)


def not_finite(array: pa.Array) -> NDArray[np.bool_]:
    """Which rows are NaN or infinite."""
    mask: NDArray[np.bool_] = ~np.isfinite(float_values(array))
    return mask


def float_values(array: pa.Array) -> NDArray[Any]:
    """The numbers, 0 for null."""
    kind = np.dtype(np.float32 if pa.types.is_float32(array.type) else np.float64)
    data = array.buffers()[1]
    if data is None or not data.size:
        return np.zeros(len(array), kind)
    values = np.frombuffer(data, kind, len(array), kind.itemsize * array.offset)
    return np.where(null_mask(array), kind.type(0), values) if array.null_count else values


def _float_array(values: NDArray[Any]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def _filled(array: pa.Array, values: NDArray[Any]) -> pa.Array:
    return _float_array(values) if array.null_count else array


def _plain(array: pa.Array, values: NDArray[Any]) -> pa.Array:
    """Digits with a point. Arrow leaves `.0` out."""
    text = text_of(array)
    is_integral = values == np.trunc(values)
    if not is_integral.any():
        return text
    if is_integral.all():
        return join(text, constant(b".0"))
    return join(text, chosen(is_integral, [b"", b".0"]))


def _special(_array: pa.Array, values: NDArray[Any]) -> pa.Array:
    return chosen(np.isnan(values) + 2 * (values > 0), [b"-Infinity", b"NaN", b"Infinity"])


def _tiny(_array: pa.Array, values: NDArray[Any]) -> pa.Array:
    """A few hundred numbers are that small, so each distinct one is looked at by itself."""
    distinct, which = np.unique(values, return_inverse=True)
    return chosen(which, [_nearest_of_two_digits(value) for value in distinct])


def _nearest_of_two_digits(value: Any) -> bytes:
    digits, exponent = np.format_float_scientific(value, unique=True, trim="0").split("e")
    if len(digits.lstrip("-")) == 3:
        digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}E{int(exponent)}".encode()


def _scientific(values: NDArray[Any]) -> pa.Array:
    """One digit, the point, at least one more digit, the exponent."""
    text = text_of(_float_array(np.abs(values)))
    has_exponent = _position_of(b"e", text) >= 0
    groups = []
    for is_member, rewritten in ((has_exponent, _from_scientific), (~has_exponent, _from_plain)):
        places = np.flatnonzero(is_member)
        if len(places):
            groups.append((places, rewritten(take(text, places))))
    made = merged(groups, len(values))
    is_negative = values < 0
    return join(chosen(is_negative, [b"", b"-"]), made) if is_negative.any() else made


def _from_scientific(text: pa.Array) -> pa.Array:
    """`1e+23` becomes `1.0E23`, and `1.7e-12` becomes `1.7E-12`."""
    text = pc.replace_substring(text, b"e+", b"e")
    has_point = _position_of(b".", text) >= 0
    with_point, without = pc.replace_substring(text, b"e", b"E"), pc.replace_substring(text, b"e", b".0E")
    return with_point if has_point.all() else either(has_point, with_point, without)


def _from_plain(text: pa.Array) -> pa.Array:
    """`123456789.5` becomes `1.234567895E8`, and `0.000123` becomes `1.23E-4`."""
    point = _position_of(b".", text)
    whole = np.where(point >= 0, point, _lengths(text))
    digits = pc.replace_substring(text, b".", b"").view(pa.string())
    leading = pc.ascii_ltrim(digits, "0").view(pa.binary())
    exponent = whole - 1 - (_lengths(digits) - _lengths(leading))
    rest = pc.ascii_rtrim(pc.binary_slice(leading, 1, _DIGITS_MAX).view(pa.string()), "0").view(pa.binary())
    is_empty = _lengths(rest) == 0
    low = int(exponent.min())
    exponents = chosen(exponent - low, [b"E%d" % number for number in range(low, int(exponent.max()) + 1)])
    zero = [chosen(is_empty, [b"", b"0"])] if is_empty.any() else []
    return join(pc.binary_slice(leading, 0, 1), constant(b"."), rest, *zero, exponents)


def _position_of(text: bytes, array: pa.Array) -> NDArray[Any]:
    """Where the text begins in each row, -1 where it is not in it."""
    return integers_to_numpy(pc.find_substring(array, text))


def _lengths(array: pa.Array) -> NDArray[Any]:
    return integers_to_numpy(pc.binary_length(array))
