"""JSON as Spark's to_json writes it, value by value, from the rules of Jackson and java.lang.Double: the slow twin."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pyarrow as pa

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def slow_rows(batch: pa.RecordBatch) -> list[bytes]:
    columns = [(field.name, field.type, batch.column(index).to_pylist()) for index, field in enumerate(batch.schema)]
    return [
        _object([(name, kind, values[row]) for name, kind, values in columns]).encode() for row in range(len(batch))
    ]


def slow_double(value: float, is_single: bool = False) -> str:
    """`Double.toString` (or `Float.toString`) as JDK 19 and later define it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    kind: Any = np.float32 if is_single else np.float64
    shortest = np.format_float_scientific(kind(abs(value)), unique=True, trim="-")
    digits, _, exponent = shortest.partition("e")
    if len(digits) == 1:
        # The nearest of the decimals with two digits, all of which count when one digit is enough.
        digits, _, exponent = f"{abs(value):.1e}".partition("e")
    digits, power = digits.replace(".", "").rstrip("0") or "0", int(exponent)
    if 1e-3 <= abs(value) < 1e7:
        whole = digits[: power + 1].ljust(power + 1, "0") if power >= 0 else "0"
        rest = digits[power + 1 :] if power >= 0 else "0" * (-power - 1) + digits
        text = f"{whole}.{rest or '0'}"
    else:
        text = f"{digits[0]}.{digits[1:] or '0'}E{power}"
    return "-" + text if value < 0 else text


def _object(fields: list[tuple[str, pa.DataType, Any]]) -> str:
    parts = [f"{_string(name)}:{_value(kind, value)}" for name, kind, value in fields if value is not None]
    return "{" + ",".join(parts) + "}"


def _value(kind: pa.DataType, value: Any) -> str:
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        return _object([(kind.field(i).name, kind.field(i).type, value[kind.field(i).name]) for i in range(len(kind))])
    if pa.types.is_map(kind):
        return "{" + ",".join(f"{_string(str(key))}:{_value(kind.item_type, item)}" for key, item in value) + "}"
    if pa.types.is_list(kind):
        return "[" + ",".join(_value(kind.value_type, item) for item in value) + "]"
    if isinstance(value, float):
        text = slow_double(value, pa.types.is_float32(kind))
        return text if math.isfinite(value) else f'"{text}"'
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str):
        return _string(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _string(text: str) -> str:
    return '"' + "".join(_SHORT.get(c) or (f"\\u{ord(c):04X}" if c < " " else c) for c in text) + '"'
