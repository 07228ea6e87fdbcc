"""Avro's types without parts: which columns fit them, and the pieces of such a column."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.formats.avro_schema import BYTES_FOR_DIGITS
from spark_kafka_sink.formats.binary_arrays import is_bytes, is_text, text_for_error
from spark_kafka_sink.formats.binary_pieces import Mask, Piece, bool_values, bytes_of
from spark_kafka_sink.formats.java_numbers import float_values
from spark_kafka_sink.records.arrays import bytes_to_arrow, integers_to_numpy
from spark_kafka_sink.records.fields import Field, fixed_field, signed_varint_fields

Writer = Callable[[pa.Array, Mask], list[Piece]]

_MICROS = {"micros": 1, "millis": 1_000}
_FIXED_DECIMAL_MAX = 16


def leaf_writer(schema: Any, kind: pa.DataType, where: str) -> Writer:
    """The writer of a column of this type. SchemaError if Avro's type cannot take it."""
    name = schema["type"] if isinstance(schema, Mapping) else schema
    logical = schema.get("logicalType") if isinstance(schema, Mapping) else None
    choose = _CHOICES.get(name)
    writer = None if choose is None else choose(schema, logical, kind, where)
    if writer is None:
        shown = f"{name} ({logical})" if logical else name
        raise SchemaError(f"column {where} of type {kind} does not fit the schema's type {shown}")
    return writer


def _boolean(_schema: Any, _logical: str | None, kind: pa.DataType, _where: str) -> Writer | None:
    if not pa.types.is_boolean(kind):
        return None
    return lambda column, mask: [fixed_field(bool_values(column))]


def _integer(schema: Any, logical: str | None, kind: pa.DataType, _where: str) -> Writer | None:
    """The writer of an int or a long. Both have one encoding; they differ in which numbers fit."""
    types = pa.types
    if types.is_integer(kind):
        is_long = (schema["type"] if isinstance(schema, Mapping) else schema) == "long"
        return _numbers if is_long or not types.is_int64(kind) else None
    if types.is_date32(kind) and logical in (None, "date"):
        return lambda column, mask: _numbers(column.view(pa.int32()), mask)
    prefix, _, unit = (logical or "").rpartition("-")
    wanted = {"timestamp": _is_instant, "local-timestamp": _is_local, "time": types.is_time64}.get(prefix)
    if wanted is None or unit not in _MICROS or not wanted(kind):
        return None
    per_unit = _MICROS[unit] * (1_000 if types.is_time64(kind) else 1)
    return lambda column, mask: signed_varint_fields(integers_to_numpy(column.view(pa.int64())) // per_unit)


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def _is_local(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _numbers(column: pa.Array, _mask: Mask) -> list[Piece]:
    return list(signed_varint_fields(integers_to_numpy(column)))


def _float(schema: Any, _logical: str | None, kind: pa.DataType, _where: str) -> Writer | None:
    is_double = (schema["type"] if isinstance(schema, Mapping) else schema) == "double"
    if pa.types.is_float32(kind) or (is_double and pa.types.is_float64(kind)):
        number = np.float64 if is_double else np.float32
        return lambda column, mask: [fixed_field(float_values(column).astype(number))]
    return None


def _string(_schema: Any, _logical: str | None, kind: pa.DataType, _where: str) -> Writer | None:
    return _prefixed if is_text(kind) else None


def _bytes(schema: Any, logical: str | None, kind: pa.DataType, _where: str) -> Writer | None:
    if logical == "decimal":
        return _decimal(schema, kind)
    return _prefixed if is_bytes(kind) else None


def _prefixed(column: pa.Array, _mask: Mask) -> list[Piece]:
    lengths, data = bytes_of(column)
    return [*signed_varint_fields(lengths), data]


def _fixed(schema: Any, logical: str | None, kind: pa.DataType, where: str) -> Writer | None:
    size = schema["size"]
    if logical == "decimal":
        return _fixed_decimal(schema, kind, where) if size <= _FIXED_DECIMAL_MAX else None
    if not is_bytes(kind):
        return None

    def write(column: pa.Array, mask: Mask) -> list[Piece]:
        lengths, data = bytes_of(column)
        if (lengths != size if mask is None else (lengths != size) & mask).any():
            raise InvalidRecordError(f"column {where}: the schema wants {size} bytes, and there are others")
        return [data]

    return write


def _enum(schema: Any, _logical: str | None, kind: pa.DataType, where: str) -> Writer | None:
    if not is_text(kind):
        return None
    symbols = bytes_to_arrow([symbol.encode() for symbol in schema["symbols"]]).view(pa.string()).cast(kind)

    def write(column: pa.Array, mask: Mask) -> list[Piece]:
        places = integers_to_numpy(pc.index_in(column, symbols), null=-1).astype(np.int64)
        is_unknown = places < 0 if mask is None else (places < 0) & mask
        if is_unknown.any():
            example = text_for_error(column, int(np.argmax(is_unknown)))
            raise InvalidRecordError(f"column {where}: {example!r} is no symbol of the schema's enum {schema['name']}")
        return list(signed_varint_fields(np.maximum(places, 0)))

    return write


def _fixed_decimal(schema: Any, kind: pa.DataType, where: str) -> Writer | None:
    """SchemaError if the fixed type is too small for the schema's own precision: numbers would be cut."""
    writer, size, precision = _decimal(schema, kind), schema["size"], schema["precision"]
    digits_max = max(bisect_right(BYTES_FOR_DIGITS, size) - 1, 0)
    if writer is not None and precision > digits_max:
        raise SchemaError(
            f"column {where}: the schema's fixed type has {size} bytes for a decimal of precision {precision}. They "
            f"have room for {digits_max} digits. Make its size larger."
        )
    return writer


def _decimal(schema: Any, kind: pa.DataType) -> Writer | None:
    """The unscaled number, big-endian and signed: with as few bytes as it needs, or with the size of the fixed type."""
    if not pa.types.is_decimal128(kind):
        return None
    if kind.scale != schema.get("scale", 0) or kind.precision > schema["precision"]:
        return None
    size = schema.get("size")

    def write(column: pa.Array, _mask: Mask) -> list[Piece]:
        low, high = _halves(column)
        if size is not None:
            return _big_endian(low, high, np.full(len(column), size))
        widths = _fewest_bytes(low, high)
        return [*signed_varint_fields(widths), *_big_endian(low, high, widths)]

    return write


def _halves(column: pa.Array) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The lower and the upper 8 bytes of each number; 0 for null."""
    words = np.frombuffer(column.buffers()[1], np.uint64, 2 * len(column), 16 * column.offset).reshape(-1, 2)
    if column.null_count:
        words = words * (integers_to_numpy(column.is_valid().cast(pa.uint8())).astype(np.uint64))[:, None]
    return words[:, 0], np.ascontiguousarray(words[:, 1]).view(np.int64)


def _fewest_bytes(low: NDArray[np.uint64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bytes of the number without its sign, and a bit for the sign. As fastavro counts, -128 takes two bytes."""
    sign = (high >> 63).view(np.uint64)
    is_negative = sign & np.uint64(1)
    size_low = (low ^ sign) + is_negative
    size_high = (high.view(np.uint64) ^ sign) + (is_negative & (size_low == 0))
    widths = np.ones(len(low), np.int64)
    for count in range(1, 9):
        edge = np.uint64(1 << (8 * count - 1))
        widths += (size_low >= edge) & (size_high == 0)
        widths += size_high >= edge
    widths += 8 * (size_high > 0)
    return widths


def _big_endian(low: NDArray[np.uint64], high: NDArray[np.int64], widths: NDArray[np.int64]) -> list[Piece]:
    upper = np.maximum(widths - 8, 0)
    lower = np.minimum(widths, 8)
    field = Field(_first_bytes(low, lower), lower.astype(np.uint8), 8)
    if not upper.any():
        return [field]
    return [Field(_first_bytes(high.view(np.uint64), upper), upper.astype(np.uint8), 8), field]


def _first_bytes(words: NDArray[np.uint64], widths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The last `widths` bytes of each number, the highest first, in the low bytes of a word."""
    shift = ((8 - widths) << 3).astype(np.uint64)
    # A shift by 64 bits is undefined, and means nothing is left.
    shifted = np.where(widths > 0, words << np.minimum(shift, np.uint64(63)), np.uint64(0))
    first: NDArray[np.uint64] = shifted.byteswap()
    return first


_CHOICES: dict[str, Callable[[Any, str | None, pa.DataType, str], Writer | None]] = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "string": _string,
    "bytes": _bytes,
    "fixed": _fixed,
    "enum": _enum,
}
