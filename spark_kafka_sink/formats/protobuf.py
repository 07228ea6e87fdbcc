"""Columns -> Protobuf's wire format, one message for each row, in the bytes that protobuf itself writes.

A field is a tag, its number and how it is written, and the value; fields come in the order of their numbers, and one
that is null is left out. Numbers are varints or have 4 or 8 bytes; text, bytes, messages and packed numbers have their
length in front. So a message is like a record of Avro: pieces side by side, each empty where its field is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.formats.arrow_errors import name_columns
from spark_kafka_sink.formats.binary_arrays import is_bytes, is_text, text_for_error, text_of
from spark_kafka_sink.formats.binary_pieces import (
    Mask,
    Piece,
    bool_values,
    both,
    bytes_of,
    element_mask,
    joined,
    lengths_of,
    list_ranges,
    masked,
    rows_of_elements,
    valid_mask,
)
from spark_kafka_sink.formats.java_numbers import float_values
from spark_kafka_sink.formats.java_times import date_text, time_text, timestamp_text
from spark_kafka_sink.formats.protobuf_fields import MessageField
from spark_kafka_sink.records.arrays import bytes_to_arrow, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.fields import constant_field, fixed_field, signed_varint_fields, unsigned_varint_fields

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_WIRE_TYPES = {
    **dict.fromkeys(("fixed64", "sfixed64", "double"), _EIGHT_BYTES),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), _FOUR_BYTES),
    **dict.fromkeys(("string", "bytes", "message", "map", "timestamp"), _LENGTH),
}
_UNSIGNED_BITS = {"uint32": 32, "fixed32": 32, "uint64": 63, "fixed64": 63}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class ProtobufFormat:
    """One message for each row. A field is filled by the column of its name."""

    fields: tuple[MessageField, ...]

    def encode_rows(
        self, names: Sequence[str], columns: Sequence[pa.Array], rows: int, header: bytes = b""
    ) -> pa.Array:
        return joined(_message(self.fields, names, columns, None, ""), rows, header)


def _message(
    fields: Sequence[MessageField], names: Sequence[str], columns: Sequence[pa.Array], mask: Mask, where: str
) -> list[Piece]:
    """The mask says which rows have this message at all."""
    by_name = dict(zip(names, columns, strict=True))
    pieces: list[Piece] = []
    for field in fields:
        with name_columns(f"{where}{field.name}"):
            pieces += _field(field, by_name[field.name], mask, f"{where}{field.name}")
    _check_oneofs(fields, by_name, mask, where)
    return pieces


def _check_oneofs(fields: Sequence[MessageField], columns: dict[str, pa.Array], mask: Mask, where: str) -> None:
    for oneof in {field.oneof for field in fields if field.oneof}:
        members = [columns[field.name] for field in fields if field.oneof == oneof]
        count: Any = sum(integers_to_numpy(member.is_valid().cast(pa.uint8())).astype(np.int64) for member in members)
        if (count > 1 if mask is None else (count > 1) & mask).any():
            raise InvalidRecordError(f"columns of the oneof {where}{oneof}: more than one of them is set in a row")


def _field(field: MessageField, column: pa.Array, mask: Mask, where: str) -> list[Piece]:
    if pa.types.is_null(column.type):
        return []
    present = both(mask, valid_mask(column))
    if field.kind == "map":
        return masked(_map(field, column, present, where), present)
    if field.is_repeated:
        return masked(_repeated(field, column, present, where), present)
    if not field.has_presence:
        is_named = field.kind == "enum" and not pa.types.is_integer(column.type)
        is_set = _enum_numbers(field, column, present, where) != 0 if is_named else _differs_from_default(column)
        present = both(present, None if is_set.all() else is_set)
    return masked([_tag(field), *_value(field, column, present, where)], present)


def _tag(field: MessageField) -> Piece:
    code = field.number << 3 | (_LENGTH if field.is_packed else _WIRE_TYPES.get(field.kind, _VARINT))
    return constant_field(_varint(code))


def _varint(code: int) -> bytes:
    out = bytearray()
    while code > 0x7F:
        out.append(code & 0x7F | 0x80)
        code >>= 7
    return bytes([*out, code])


def _differs_from_default(column: pa.Array) -> NDArray[np.bool_]:
    """A field without presence leaves 0, false and what is empty out; -0.0 is not 0."""
    types, kind = pa.types, column.type
    if types.is_floating(kind):
        values = float_values(column)
        found: NDArray[np.bool_] = np.ascontiguousarray(values).view(f"u{values.itemsize}") != 0
    elif types.is_boolean(kind):
        found = bool_values(column) != 0
    elif types.is_integer(kind):
        found = integers_to_numpy(column) != 0
    elif is_text(kind) or is_bytes(kind):
        found = bytes_of(column)[0] > 0
    else:
        found = np.ones(len(column), np.bool_)
    return found


def _value(field: MessageField, column: pa.Array, mask: Mask, where: str) -> list[Piece]:
    """The value without its tag."""
    if field.kind == "message":
        names = [column.type.field(index).name for index in range(column.type.num_fields)]
        columns = [column.field(index) for index in range(column.type.num_fields)]
        return _with_length(joined(_message(field.message, names, columns, mask, f"{where}."), len(column)))
    if field.kind == "timestamp":
        return _with_length(joined(_timestamp(column), len(column)))
    if field.kind == "enum" and not pa.types.is_integer(column.type):
        return list(unsigned_varint_fields(_enum_numbers(field, column, mask, where).view(np.uint64)))
    if field.kind in _UNSIGNED_BITS:
        _check_unsigned(_UNSIGNED_BITS[field.kind], integers_to_numpy(column), mask, where)
    return _SCALARS[field.kind](column)


def _with_length(messages: pa.Array) -> list[Piece]:
    return [*unsigned_varint_fields(lengths_of(messages).view(np.uint64)), messages]


def _timestamp(column: pa.Array) -> list[Piece]:
    """google.protobuf.Timestamp: seconds since 1970 in field 1, nanoseconds from there on in field 2."""
    per_second = _PER_SECOND[column.type.unit]
    seconds, fraction = np.divmod(integers_to_numpy(column.view(pa.int64())), per_second)
    parts = (
        MessageField("seconds", 1, "int64", has_presence=False),
        MessageField("nanos", 2, "int32", has_presence=False),
    )
    numbers = [numbers_to_arrow(seconds), numbers_to_arrow(fraction * (1_000_000_000 // per_second))]
    return _message(parts, ("seconds", "nanos"), numbers, None, "")


def _enum_numbers(field: MessageField, column: pa.Array, mask: Mask, where: str) -> NDArray[np.int64]:
    names = bytes_to_arrow([name.encode() for name, _ in field.symbols]).view(pa.string())
    places = integers_to_numpy(pc.index_in(column.cast(pa.string()), names), null=-1)
    is_unknown = places < 0 if mask is None else (places < 0) & mask
    if is_unknown.any():
        example = text_for_error(column, int(np.argmax(is_unknown)))
        raise InvalidRecordError(f"column {where}: {example!r} is no name in the schema's enum")
    numbers: NDArray[np.int64] = np.array([number for _, number in field.symbols], np.int64)
    chosen: NDArray[np.int64] = numbers[places]
    return chosen


def _check_unsigned(bits: int, numbers: NDArray[Any], mask: Mask, where: str) -> None:
    is_wrong = (numbers < 0) | (numbers.astype(np.int64) >> bits > 0)
    if (is_wrong if mask is None else is_wrong & mask).any():
        raise InvalidRecordError(f"column {where} has numbers that do not fit the schema's unsigned type")


def _repeated(field: MessageField, column: pa.Array, mask: Mask, where: str) -> list[Piece]:
    starts, first, count = list_ranges(column)
    values = column.values.slice(first, count)
    among = element_mask(starts, mask)
    _refuse_null_elements(values, among, where)
    if not field.is_packed:
        elements = joined([_tag(field), *_value(field, values, among, f"{where}.element")], count)
        return [rows_of_elements(elements, starts)]
    packed = rows_of_elements(joined(_value(field, values, among, f"{where}.element"), count), starts)
    return masked([_tag(field), *_with_length(packed)], np.diff(starts) > 0)


def _map(field: MessageField, column: pa.Array, mask: Mask, where: str) -> list[Piece]:
    starts, first, count = list_ranges(column)
    key, value = field.message
    among = element_mask(starts, mask)
    keys, values = column.keys.slice(first, count), column.items.slice(first, count)
    _refuse_null_elements(values, among, where)
    entry = [_tag(key), *_value(key, keys, among, f"{where}.key"), _tag(value)]
    entries = joined([*entry, *_value(value, values, among, f"{where}.value")], count)
    return [rows_of_elements(joined([_tag(field), *_with_length(entries)], count), starts)]


def _refuse_null_elements(values: pa.Array, mask: Mask, where: str) -> None:
    valid = valid_mask(values)
    if valid is not None and (~valid if mask is None else ~valid & mask).any():
        raise InvalidRecordError(
            f"column {where} has null among its elements, which Protobuf cannot write. Drop them, for example with "
            "array_compact()."
        )


def _signed_codes(column: pa.Array) -> list[Piece]:
    """A negative number is a varint of 64 bits, also where the type has 32."""
    return list(unsigned_varint_fields(integers_to_numpy(column).astype(np.int64).view(np.uint64)))


def _zigzag(column: pa.Array) -> list[Piece]:
    return list(signed_varint_fields(integers_to_numpy(column)))


def _fixed(kind: Any) -> Callable[[pa.Array], list[Piece]]:
    return lambda column: [fixed_field(integers_to_numpy(column).astype(kind))]


def _floating(kind: Any) -> Callable[[pa.Array], list[Piece]]:
    return lambda column: [fixed_field(float_values(column).astype(kind))]


def _bytes(column: pa.Array) -> list[Piece]:
    """Text and bytes; dates, times and decimals as their text in JSON."""
    types, kind = pa.types, column.type
    if types.is_decimal128(kind):
        column = text_of(column)
    elif types.is_date32(kind):
        column = date_text(column)
    elif types.is_timestamp(kind):
        column = timestamp_text(column)
    elif types.is_time64(kind):
        column = time_text(column)
    lengths, data = bytes_of(column)
    return [*unsigned_varint_fields(lengths.view(np.uint64)), data]


_SCALARS: dict[str, Callable[[pa.Array], list[Piece]]] = {
    "bool": lambda column: [fixed_field(bool_values(column))],
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "enum"), _signed_codes),
    **dict.fromkeys(("sint32", "sint64"), _zigzag),
    "fixed32": _fixed(np.uint32),
    "sfixed32": _fixed(np.int32),
    "fixed64": _fixed(np.uint64),
    "sfixed64": _fixed(np.int64),
    "float": _floating(np.float32),
    "double": _floating(np.float64),
    **dict.fromkeys(("string", "bytes"), _bytes),
}
