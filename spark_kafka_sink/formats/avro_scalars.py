"""Writers for Avro's scalar types: primitive types, enum, fixed and their logical types.

Each type has a builder, which compares a column's type with the schema. If the column fits, the builder returns a
writer, which is a function that encodes the column (avro.py). Otherwise, it returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.formats.avro_schema import compute_max_digits, find_logical_type, get_avro_type
from spark_kafka_sink.formats.binary_arrays import (
    choose_by_index,
    decode_for_error,
    is_binary_type,
    is_string_type,
    replace_invalid_utf8,
)
from spark_kafka_sink.formats.binary_pieces import Mask, Piece, apply_mask, bools_to_numpy, split_lengths_and_bytes
from spark_kafka_sink.formats.java_numbers import floats_to_numpy
from spark_kafka_sink.records.arrays import bytes_to_arrow, integers_to_numpy
from spark_kafka_sink.records.fields import Field, build_fixed_field, build_signed_varint_fields

ColumnWriter = Callable[[pa.Array, Mask], list[Piece]]
"""Function that encodes a column and returns its bytes as pieces (binary_pieces.py).

It does not validate rows that the mask does not select. The caller discards their bytes.
"""

_MICROS_PER_UNIT = {"micros": 1, "millis": 1_000}
"""Microseconds per unit of a logical type, by the suffix of its name, such as `millis` in `timestamp-millis`."""
_NANOS_PER_MICRO = 1_000
_DECIMAL_BYTES = 16
"""Size of Arrow's decimal128."""


def build_scalar_writer(schema: Any, data_type: pa.DataType, path: str) -> ColumnWriter:
    """Build a writer for a column of a scalar Avro type. Raise SchemaError if the column's type does not fit."""
    avro_type = get_avro_type(schema)
    logical_type = find_logical_type(schema)
    build = _WRITER_BUILDERS.get(avro_type)
    writer = None if build is None else build(schema, logical_type, data_type, path)
    if writer is None:
        description = f"{avro_type} ({logical_type})" if logical_type else avro_type
        declared_logical_type = schema.get("logicalType") if isinstance(schema, Mapping) else None
        if declared_logical_type != logical_type:
            name = sanitize(str(declared_logical_type))
            description = f"{avro_type}, whose logical type {name} is invalid and therefore ignored"
        raise SchemaError(f"column {path} has type {data_type}, which cannot be written as Avro type {description}")
    return writer


def _build_boolean_writer(
    _schema: Any, _logical_type: str | None, data_type: pa.DataType, _path: str
) -> ColumnWriter | None:
    if not pa.types.is_boolean(data_type):
        return None
    return lambda column, mask: [build_fixed_field(bools_to_numpy(column))]


def _build_integer_writer(
    schema: Any, logical_type: str | None, data_type: pa.DataType, _path: str
) -> ColumnWriter | None:
    """Build a writer for int or long, or return None if the column cannot be written with this schema.

    Both types have the same encoding and differ only in their range. The column contains integers, dates or times.
    """
    if pa.types.is_integer(data_type):
        fits_range = get_avro_type(schema) == "long" or not pa.types.is_int64(data_type)
        return _encode_integers if fits_range else None
    if pa.types.is_date32(data_type) and logical_type in (None, "date"):
        return lambda column, mask: _encode_integers(column.view(pa.int32()), mask)
    return _build_time_writer(logical_type, data_type)


def _build_time_writer(logical_type: str | None, data_type: pa.DataType) -> ColumnWriter | None:
    """Build a writer for timestamps or times of day, or return None if the column does not fit the logical type.

    Fractions of the logical type's unit are truncated towards the past.
    """
    # The logical type of a time consists of a kind and a unit, for example local-timestamp-micros.
    kind, _, unit = (logical_type or "").rpartition("-")
    is_matching_type = _TIME_TYPE_CHECKS.get(kind)
    if is_matching_type is None or unit not in _MICROS_PER_UNIT or not is_matching_type(data_type):
        return None
    # Spark passes timestamps in microseconds and times of day in nanoseconds.
    ticks_per_unit = _MICROS_PER_UNIT[unit] * (_NANOS_PER_MICRO if pa.types.is_time64(data_type) else 1)
    return lambda column, mask: build_signed_varint_fields(integers_to_numpy(column.view(pa.int64())) // ticks_per_unit)


def _is_instant(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type)) and data_type.tz is not None


def _is_local(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type)) and data_type.tz is None


_TIME_TYPE_CHECKS: dict[str, Callable[[pa.DataType], bool]] = {
    "timestamp": _is_instant,
    "local-timestamp": _is_local,
    "time": pa.types.is_time64,
}
"""Checks of a column's type, by the logical type's name without the unit: `timestamp` for `timestamp-millis`."""


def _encode_integers(column: pa.Array, _mask: Mask) -> list[Piece]:
    return list(build_signed_varint_fields(integers_to_numpy(column)))


def _build_float_writer(
    schema: Any, _logical_type: str | None, data_type: pa.DataType, _path: str
) -> ColumnWriter | None:
    """Build a writer for float or double, or return None if the column's type does not fit."""
    is_double = get_avro_type(schema) == "double"
    # A 32-bit column fits into both types. A 64-bit column fits only into a double, because a float would round it.
    if pa.types.is_float32(data_type) or (is_double and pa.types.is_float64(data_type)):
        dtype = np.float64 if is_double else np.float32
        return lambda column, mask: [build_fixed_field(floats_to_numpy(column).astype(dtype))]
    return None


def _build_string_writer(
    _schema: Any, _logical_type: str | None, data_type: pa.DataType, _path: str
) -> ColumnWriter | None:
    return _encode_strings if is_string_type(data_type) else None


def _build_bytes_writer(
    schema: Any, logical_type: str | None, data_type: pa.DataType, _path: str
) -> ColumnWriter | None:
    if logical_type == "decimal":
        return _build_decimal_writer(schema, data_type)
    return _encode_length_prefixed if is_binary_type(data_type) else None


def _encode_strings(column: pa.Array, mask: Mask) -> list[Piece]:
    return _encode_length_prefixed(replace_invalid_utf8(column), mask)


def _encode_length_prefixed(column: pa.Array, _mask: Mask) -> list[Piece]:
    lengths, data = split_lengths_and_bytes(column)
    return [*build_signed_varint_fields(lengths), data]


def _build_fixed_writer(
    schema: Any, logical_type: str | None, data_type: pa.DataType, path: str
) -> ColumnWriter | None:
    """Build a writer for Avro's fixed type, or return None if the column's type does not fit.

    With the logical type decimal, the column must contain decimals. Otherwise, it must be binary, and the writer raises
    InvalidRecordError if a selected value does not have the schema's size.
    """
    if logical_type == "decimal":
        return _build_decimal_writer(schema, data_type)
    if pa.types.is_decimal128(data_type):
        _check_decimal_size(schema, path)
    if not is_binary_type(data_type):
        return None
    size = schema["size"]

    def write_fixed(column: pa.Array, mask: Mask) -> list[Piece]:
        lengths, data = split_lengths_and_bytes(column)
        if apply_mask(lengths != size, mask).any():
            raise InvalidRecordError(
                f"column {path}: the schema's fixed type has {size} bytes, but a value has a different length"
            )
        return [data]

    return write_fixed


def _build_enum_writer(
    schema: Any, _logical_type: str | None, data_type: pa.DataType, path: str
) -> ColumnWriter | None:
    """Build a writer for Avro's enum type, or return None if the column is not a string column.

    The writer raises InvalidRecordError if a selected string is not a symbol of the enum.
    """
    if not is_string_type(data_type):
        return None
    symbols = bytes_to_arrow([symbol.encode() for symbol in schema["symbols"]]).view(pa.string()).cast(data_type)

    def write_enum(column: pa.Array, mask: Mask) -> list[Piece]:
        symbol_indices = integers_to_numpy(pc.index_in(column, symbols), null=-1).astype(np.int64)
        is_unknown = apply_mask(symbol_indices < 0, mask)
        if is_unknown.any():
            example = decode_for_error(column, int(np.argmax(is_unknown)))
            raise InvalidRecordError(f"column {path}: {example!r} is not a symbol of the enum {schema['name']}")
        # Only rows that are not selected can have the index -1. Their bytes are discarded, so 0 will do.
        return list(build_signed_varint_fields(np.maximum(symbol_indices, 0)))

    return write_enum


def _check_decimal_size(schema: Any, path: str) -> None:
    """Raise SchemaError if the schema declares decimals that do not fit into its fixed size.

    The logical type is then invalid (`find_logical_type`). The error names the size as the cause.
    """
    size, precision = schema["size"], schema.get("precision")
    max_digits = compute_max_digits(size)
    if schema.get("logicalType") == "decimal" and type(precision) is int and precision > max_digits:
        raise SchemaError(
            f"column {path}: the schema's fixed type has {size} bytes for a decimal of precision {precision}, but "
            f"they hold at most {max_digits} digits. Increase the size."
        )


def _build_decimal_writer(schema: Any, data_type: pa.DataType) -> ColumnWriter | None:
    """Build a writer for decimals, or return None if the column's type does not fit the schema.

    The type fits if it is decimal128 with the schema's scale, and its precision is at most the schema's.

    A decimal is written as its unscaled value, a signed big-endian integer. With a `fixed` type, every number takes the
    declared size. With a `bytes` type, a number takes only as many bytes as its magnitude and sign need.
    """
    if not pa.types.is_decimal128(data_type):
        return None
    if data_type.scale != schema.get("scale", 0) or data_type.precision > schema["precision"]:
        return None
    size = schema["size"] if get_avro_type(schema) == "fixed" else None

    def write_decimal(column: pa.Array, _mask: Mask) -> list[Piece]:
        low_words, high_words = _split_decimals(column)
        if size is not None:
            widths = np.full(len(column), min(size, _DECIMAL_BYTES))
            return [*_extend_sign(high_words, size), *_encode_big_endian(low_words, high_words, widths)]
        widths = _compute_min_byte_widths(low_words, high_words)
        return [*build_signed_varint_fields(widths), *_encode_big_endian(low_words, high_words, widths)]

    return write_decimal


def _split_decimals(column: pa.Array) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Split each 128-bit number into its low and its high 64-bit word. For a null, both words are 0."""
    data_buffer, data_start = column.buffers()[1], _DECIMAL_BYTES * column.offset
    words = np.frombuffer(data_buffer, np.uint64, 2 * len(column), data_start).reshape(-1, 2)
    if column.null_count:
        valid_factors = integers_to_numpy(column.is_valid().cast(pa.uint8())).astype(np.uint64)  # 0 for null, else 1
        words = words * valid_factors[:, None]
    return words[:, 0], np.ascontiguousarray(words[:, 1]).view(np.int64)


def _compute_min_byte_widths(low_words: NDArray[np.uint64], high_words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes each number needs for its magnitude and a sign bit.

    -128 takes two bytes, as in fastavro, although it would fit into one byte in two's complement.
    """
    sign = (high_words >> 63).view(np.uint64)
    is_negative = sign & np.uint64(1)
    # Negate negative numbers: invert all bits and add 1, which carries into the high word if the low word becomes 0.
    magnitude_low = (low_words ^ sign) + is_negative
    magnitude_high = (high_words.view(np.uint64) ^ sign) + (is_negative & (magnitude_low == 0))
    widths = np.ones(len(low_words), np.int64)
    for byte_count in range(1, 9):
        # From this threshold on, a magnitude and its sign bit do not fit into `byte_count` bytes, so add a byte.
        threshold = np.uint64(1 << (8 * byte_count - 1))
        widths += (magnitude_low >= threshold) & (magnitude_high == 0)
        widths += magnitude_high >= threshold
    widths += 8 * (magnitude_high > 0)  # the low word then takes all of its 8 bytes
    return widths


def _encode_big_endian(
    low_words: NDArray[np.uint64], high_words: NDArray[np.int64], widths: NDArray[np.int64]
) -> list[Piece]:
    """Return pieces that consist of the `widths` lowest bytes of each 128-bit number, in big-endian order."""
    high_widths = np.maximum(widths - 8, 0)
    low_widths = np.minimum(widths, 8)
    low_field = Field(_swap_bytes(low_words, low_widths), low_widths.astype(np.uint8), 8)
    if not high_widths.any():
        return [low_field]
    high_field = Field(_swap_bytes(high_words.view(np.uint64), high_widths), high_widths.astype(np.uint8), 8)
    return [high_field, low_field]


def _extend_sign(high_words: NDArray[np.int64], size: int) -> list[Piece]:
    """Return the bytes that precede each 128-bit number in a fixed type of `size` bytes, all 0 or all ones."""
    byte_count = size - _DECIMAL_BYTES
    if byte_count <= 0 or not len(high_words):
        return []
    return [choose_by_index(high_words < 0, [b"\0" * byte_count, b"\xff" * byte_count])]


def _swap_bytes(words: NDArray[np.uint64], widths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return words whose first bytes in memory are the `widths` lowest bytes of each word, in big-endian order.

    For example, the word 0x0102 with width 2 becomes the bytes 01 02 00 00 00 00 00 00.
    """
    shifts = (8 * (8 - widths)).astype(np.uint64)
    # Shifting by 64 bits is undefined in C, so words of width 0 are set to 0 separately.
    shifted_words = np.where(widths > 0, words << np.minimum(shifts, np.uint64(63)), np.uint64(0))
    swapped_words: NDArray[np.uint64] = shifted_words.byteswap()
    return swapped_words


_WRITER_BUILDERS: dict[str, Callable[[Any, str | None, pa.DataType, str], ColumnWriter | None]] = {
    "boolean": _build_boolean_writer,
    "int": _build_integer_writer,
    "long": _build_integer_writer,
    "float": _build_float_writer,
    "double": _build_float_writer,
    "string": _build_string_writer,
    "bytes": _build_bytes_writer,
    "fixed": _build_fixed_writer,
    "enum": _build_enum_writer,
}
"""Builders by Avro type. A builder returns None if the column's type does not fit the schema.

All builders have the same parameters, although most of them do not use the logical type or the path.
"""
