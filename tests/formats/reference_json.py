"""Slow reference of Spark's to_json, which encodes value by value by the rules of Jackson and java.lang.Double."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pyarrow as pa

_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def reference_rows(batch: pa.RecordBatch) -> list[bytes]:
    columns = [(field.name, field.type, batch.column(index).to_pylist()) for index, field in enumerate(batch.schema)]
    return [
        _object([(name, data_type, values[row]) for name, data_type, values in columns]).encode()
        for row in range(len(batch))
    ]


def reference_double(value: float, is_single: bool = False) -> str:
    """Format a number like `Double.toString` or `Float.toString` of JDK 19 and later."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    data_type: Any = np.float32 if is_single else np.float64
    shortest = np.format_float_scientific(data_type(abs(value)), unique=True, trim="-")
    digits, _, exponent = shortest.partition("e")
    if len(digits) == 1:
        # If one digit is enough, Java chooses the nearest decimal with two digits.
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
    parts = [f"{_string(name)}:{_value(data_type, value)}" for name, data_type, value in fields if value is not None]
    return "{" + ",".join(parts) + "}"


def _value(data_type: pa.DataType, value: Any) -> str:
    if value is None:
        return "null"
    if pa.types.is_struct(data_type):
        return _object(
            [
                (data_type.field(i).name, data_type.field(i).type, value[data_type.field(i).name])
                for i in range(len(data_type))
            ]
        )
    if pa.types.is_map(data_type):
        return "{" + ",".join(f"{_string(str(key))}:{_value(data_type.item_type, item)}" for key, item in value) + "}"
    if pa.types.is_list(data_type):
        return "[" + ",".join(_value(data_type.value_type, item) for item in value) + "]"
    if isinstance(value, float):
        text = reference_double(value, pa.types.is_float32(data_type))
        return text if math.isfinite(value) else f'"{text}"'
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str):
        return _string(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _string(text: str) -> str:
    return '"' + "".join(_SHORT_ESCAPES.get(c) or (f"\\u{ord(c):04X}" if c < " " else c) for c in text) + '"'
