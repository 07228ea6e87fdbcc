"""The Protobuf row format: Protobuf's wire format, one message per row. The output equals the protobuf package's.

A field consists of a tag (field number and wire type) and a value. Fields are written in the order of their numbers,
and null fields are omitted. Numbers are varints or take 4 or 8 bytes. Strings, bytes, messages and packed numbers are
preceded by their length.

Messages are encoded column by column. Each field becomes one or more pieces: columns of bytes, which are later joined
row by row (binary_pieces.py). A mask selects the rows that are written. In rows that lack a field, the field's pieces
are empty.
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
from spark_kafka_sink.formats.arrow_errors import convert_arrow_errors
from spark_kafka_sink.formats.binary_arrays import (
    decode_for_error,
    is_binary_type,
    is_string_type,
    read_element_offsets,
    replace_invalid_utf8,
    to_text,
)
from spark_kafka_sink.formats.binary_pieces import (
    ALL_ROWS,
    Mask,
    Piece,
    apply_mask,
    bools_to_numpy,
    build_element_mask,
    build_valid_mask,
    combine_masks,
    compute_binary_lengths,
    concatenate_elements,
    join_pieces,
    mask_pieces,
    reject_nulls,
    split_lengths_and_bytes,
)
from spark_kafka_sink.formats.java_numbers import floats_to_numpy
from spark_kafka_sink.formats.java_times import format_dates, format_times, format_timestamps
from spark_kafka_sink.formats.protobuf_fields import MessageField
from spark_kafka_sink.records.arrays import bytes_to_arrow, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import to_binary
from spark_kafka_sink.records.fields import (
    build_constant_field,
    build_fixed_field,
    build_signed_varint_fields,
    build_unsigned_varint_fields,
)

# Wire types, named as in Protobuf's documentation.
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_WIRE_TYPE_BITS = 3
"""Number of bits of a tag that contain the wire type. The other bits contain the field number."""
_WIRE_TYPES = {
    **dict.fromkeys(("fixed64", "sfixed64", "double"), _I64),
    **dict.fromkeys(("fixed32", "sfixed32", "float"), _I32),
    **dict.fromkeys(("string", "bytes", "message", "map", "timestamp"), _LEN),
}
"""Wire type by type name. All other types are varints."""
_UNSIGNED_BITS = {"uint32": 32, "fixed32": 32, "uint64": 63, "fixed64": 63}
"""Maximum number of bits in a value of each unsigned type. It is 63 for 64-bit types, because columns are signed."""
_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second by the unit of an Arrow timestamp. The number in a timestamp column counts ticks since 1970."""


@dataclass(frozen=True)
class ProtobufFormat:
    """The Protobuf row format. Fields and columns are matched by name."""

    fields: tuple[MessageField, ...]

    def encode_rows(
        self, names: Sequence[str], columns: Sequence[pa.Array], row_count: int, prefix: bytes = b""
    ) -> pa.Array:
        return join_pieces(_encode_message(self.fields, names, columns, ALL_ROWS, path_prefix=""), row_count, prefix)


def _encode_message(
    fields: Sequence[MessageField], names: Sequence[str], columns: Sequence[pa.Array], mask: Mask, path_prefix: str
) -> list[Piece]:
    """Return the pieces of a message.

    Raise InvalidRecordError if a selected value does not fit its field, if a required field is null, or if two fields
    of a oneof are set.

    `mask`: the rows in which the message is present.
    `path_prefix`: text before each field's name in error messages, such as `address.`; empty for the outermost message.
    """
    columns_by_name = dict(zip(names, columns, strict=True))
    pieces: list[Piece] = []
    for field in fields:
        path = f"{path_prefix}{field.name}"
        with convert_arrow_errors(path):
            pieces += _encode_field(field, columns_by_name[field.name], mask, path)
    _check_oneofs(fields, columns_by_name, mask, path_prefix)
    return pieces


def _check_oneofs(
    fields: Sequence[MessageField], columns_by_name: dict[str, pa.Array], mask: Mask, path_prefix: str
) -> None:
    """Raise InvalidRecordError if more than one field of a oneof is set in a selected row."""
    for oneof in {field.oneof for field in fields if field.oneof}:
        members = [columns_by_name[field.name] for field in fields if field.oneof == oneof]
        valid_counts: Any = sum(
            integers_to_numpy(member.is_valid().cast(pa.uint8())).astype(np.int64) for member in members
        )
        if apply_mask(valid_counts > 1, mask).any():
            raise InvalidRecordError(f"more than one column of the oneof {path_prefix}{oneof} is set in a row")


def _encode_field(field: MessageField, column: pa.Array, mask: Mask, path: str) -> list[Piece]:
    """Return the pieces of a field, including its tag. They are empty in rows in which the field is absent.

    A field is absent if it is null or, for a field without presence, if its value is the default. Raise
    InvalidRecordError if a required field is null in a selected row.
    """
    if pa.types.is_null(column.type):
        return []
    if field.is_required:
        reject_nulls(column, mask, path, remedy="make the field optional")
    present_mask = combine_masks(mask, build_valid_mask(column))
    if field.type_name == "map":
        return mask_pieces(_encode_map(field, column, present_mask, path), present_mask)
    if field.is_repeated:
        return mask_pieces(_encode_repeated(field, column, present_mask, path), present_mask)
    if not field.has_presence:
        present_mask = combine_masks(present_mask, _build_non_default_mask(field, column, present_mask, path))
    return mask_pieces([_encode_tag(field), *_encode_value(field, column, present_mask, path)], present_mask)


def _encode_tag(field: MessageField) -> Piece:
    """Return the piece with the field's number and wire type, which are the same in every row."""
    wire_type = _LEN if field.is_packed else _WIRE_TYPES.get(field.type_name, _VARINT)
    return build_constant_field(_encode_unsigned_varint((field.number << _WIRE_TYPE_BITS) | wire_type))


def _encode_unsigned_varint(number: int) -> bytes:
    encoded_number = bytearray()
    while number > 0x7F:
        encoded_number.append((number & 0x7F) | 0x80)
        number >>= 7
    encoded_number.append(number)
    return bytes(encoded_number)


def _build_non_default_mask(field: MessageField, column: pa.Array, mask: Mask, path: str) -> Mask:
    """Return the mask of the values that differ from the field's default, or None if all of them differ.

    Dates, times and decimals always differ from the default, because they become strings that are never empty.
    """
    data_type = column.type
    is_non_default: NDArray[np.bool_]
    if field.type_name == "enum" and not pa.types.is_integer(data_type):
        is_non_default = _find_enum_numbers(field, column, mask, path) != 0
    elif pa.types.is_floating(data_type):
        values = floats_to_numpy(column)
        # Compare the bits, because -0.0 equals the default 0.0 as a number, but is written.
        is_non_default = np.ascontiguousarray(values).view(f"u{values.itemsize}") != 0
    elif pa.types.is_boolean(data_type):
        is_non_default = bools_to_numpy(column) != 0
    elif pa.types.is_integer(data_type):
        is_non_default = integers_to_numpy(column) != 0
    elif is_string_type(data_type) or is_binary_type(data_type):
        lengths, _ = split_lengths_and_bytes(column)
        is_non_default = lengths > 0
    else:
        return None
    # Return None instead of a mask that is True everywhere, so that the caller need not copy pieces to apply it.
    return None if is_non_default.all() else is_non_default


def _encode_value(field: MessageField, column: pa.Array, mask: Mask, path: str) -> list[Piece]:
    """Return the pieces of a value, without the tag. Raise InvalidRecordError if a selected value does not fit."""
    if field.type_name == "message":
        names = [column.type.field(index).name for index in range(column.type.num_fields)]
        columns = [column.field(index) for index in range(column.type.num_fields)]
        message_pieces = _encode_message(field.inner_fields, names, columns, mask, f"{path}.")
        return _prefix_lengths(join_pieces(message_pieces, len(column)))
    if field.type_name == "timestamp":
        return _prefix_lengths(join_pieces(_encode_timestamps(column), len(column)))
    if field.type_name == "enum" and not pa.types.is_integer(column.type):
        return list(build_unsigned_varint_fields(_find_enum_numbers(field, column, mask, path).view(np.uint64)))
    if field.type_name in _UNSIGNED_BITS:
        _check_unsigned(integers_to_numpy(column), _UNSIGNED_BITS[field.type_name], mask, path)
    return _SCALAR_ENCODERS[field.type_name](column)


def _prefix_lengths(messages: pa.Array) -> list[Piece]:
    """Return the pieces of length-delimited values: the length of each message, and the message."""
    lengths = compute_binary_lengths(messages).view(np.uint64)
    return [*build_unsigned_varint_fields(lengths), messages]


def _encode_timestamps(column: pa.Array) -> list[Piece]:
    """Return the pieces of google.protobuf.Timestamp messages.

    Field 1 contains the seconds since 1970, and field 2 the nanoseconds within the second.
    """
    ticks_per_second = _TICKS_PER_SECOND[column.type.unit]
    seconds, fraction = np.divmod(integers_to_numpy(column.view(pa.int64())), ticks_per_second)
    timestamp_fields = (
        MessageField("seconds", number=1, type_name="int64", has_presence=False),
        MessageField("nanos", number=2, type_name="int32", has_presence=False),
    )
    numbers = [numbers_to_arrow(seconds), numbers_to_arrow(fraction * (1_000_000_000 // ticks_per_second))]
    return _encode_message(timestamp_fields, ("seconds", "nanos"), numbers, ALL_ROWS, path_prefix="")


def _find_enum_numbers(field: MessageField, column: pa.Array, mask: Mask, path: str) -> NDArray[np.int64]:
    """Return the enum number of each row's name. Raise InvalidRecordError if a selected row has an unknown name."""
    enum_names = bytes_to_arrow([name.encode() for name, _ in field.enum_values])
    indices = integers_to_numpy(pc.index_in(to_binary(column), enum_names), null=-1)
    is_unknown = apply_mask(indices < 0, mask)
    if is_unknown.any():
        example = decode_for_error(column, int(np.argmax(is_unknown)))
        raise InvalidRecordError(f"column {path}: {example!r} is not a value of the enum in the schema")
    enum_numbers: NDArray[np.int64] = np.array([number for _, number in field.enum_values], np.int64)
    # A name that is null or not in the enum has the index -1, which selects the last number. It is not written, because
    # the mask does not select rows with such a name.
    row_numbers: NDArray[np.int64] = enum_numbers[indices]
    return row_numbers


def _check_unsigned(numbers: NDArray[Any], max_bits: int, mask: Mask, path: str) -> None:
    """Raise InvalidRecordError if a selected number is negative or has more than `max_bits` bits."""
    is_invalid = (numbers < 0) | ((numbers.astype(np.int64) >> max_bits) > 0)
    if apply_mask(is_invalid, mask).any():
        raise InvalidRecordError(f"column {path} has a number that is out of range for the schema's unsigned type")


def _encode_repeated(field: MessageField, column: pa.Array, mask: Mask, path: str) -> list[Piece]:
    """Return the pieces of a list column. The field occurs once per element or, if it is packed, once per list.

    Raise InvalidRecordError if an element of a selected row is null or does not fit the field.
    """
    element_offsets, first_element_index, element_count = read_element_offsets(column)
    elements = column.values.slice(first_element_index, element_count)
    element_mask = build_element_mask(element_offsets, mask)
    _reject_null_elements(elements, element_mask, path)
    pieces = _encode_value(field, elements, element_mask, f"{path}.element")
    if not field.is_packed:
        tagged_elements = join_pieces([_encode_tag(field), *pieces], element_count)
        return [concatenate_elements(tagged_elements, element_offsets)]
    packed_values = concatenate_elements(join_pieces(pieces, element_count), element_offsets)
    return mask_pieces([_encode_tag(field), *_prefix_lengths(packed_values)], np.diff(element_offsets) > 0)


def _encode_map(field: MessageField, column: pa.Array, mask: Mask, path: str) -> list[Piece]:
    """Return the pieces of a map column. The field occurs once per entry, and contains its key and value.

    Raise InvalidRecordError if a value of a selected row is null, or if a key or value does not fit its field.
    """
    element_offsets, first_element_index, element_count = read_element_offsets(column)
    key_field, value_field = field.inner_fields
    element_mask = build_element_mask(element_offsets, mask)
    keys = column.keys.slice(first_element_index, element_count)
    values = column.items.slice(first_element_index, element_count)
    _reject_null_elements(values, element_mask, path)
    key_pieces = _encode_value(key_field, keys, element_mask, f"{path}.key")
    value_pieces = _encode_value(value_field, values, element_mask, f"{path}.value")
    entries = join_pieces([_encode_tag(key_field), *key_pieces, _encode_tag(value_field), *value_pieces], element_count)
    tagged_entries = join_pieces([_encode_tag(field), *_prefix_lengths(entries)], element_count)
    return [concatenate_elements(tagged_entries, element_offsets)]


def _reject_null_elements(elements: pa.Array, mask: Mask, path: str) -> None:
    """Raise InvalidRecordError if an element that the mask selects is null."""
    valid_mask = build_valid_mask(elements)
    if valid_mask is not None and apply_mask(~valid_mask, mask).any():
        raise InvalidRecordError(
            f"column {path} has null elements, which Protobuf does not support. Remove them, for example with "
            "array_compact()."
        )


def _encode_varints(column: pa.Array) -> list[Piece]:
    """Encode signed integers without zigzag. Negative numbers are encoded with 64 bits, even if the type has 32."""
    return list(build_unsigned_varint_fields(integers_to_numpy(column).astype(np.int64).view(np.uint64)))


def _encode_zigzag(column: pa.Array) -> list[Piece]:
    return list(build_signed_varint_fields(integers_to_numpy(column)))


def _build_fixed_encoder(dtype: Any) -> Callable[[pa.Array], list[Piece]]:
    return lambda column: [build_fixed_field(integers_to_numpy(column).astype(dtype))]


def _build_float_encoder(dtype: Any) -> Callable[[pa.Array], list[Piece]]:
    return lambda column: [build_fixed_field(floats_to_numpy(column).astype(dtype))]


def _encode_length_delimited(column: pa.Array) -> list[Piece]:
    """Encode strings and bytes. Dates, times and decimals become strings, formatted as in JSON (java_times.py).

    Invalid UTF-8 in strings is replaced by U+FFFD, because Protobuf's readers reject it.
    """
    data_type = column.type
    if is_string_type(data_type):
        column = replace_invalid_utf8(column)
    elif pa.types.is_decimal128(data_type):
        column = to_text(column)
    elif pa.types.is_date32(data_type):
        column = format_dates(column)
    elif pa.types.is_timestamp(data_type):
        column = format_timestamps(column)
    elif pa.types.is_time64(data_type):
        column = format_times(column)
    lengths, data = split_lengths_and_bytes(column)
    return [*build_unsigned_varint_fields(lengths.view(np.uint64)), data]


_SCALAR_ENCODERS: dict[str, Callable[[pa.Array], list[Piece]]] = {
    "bool": lambda column: [build_fixed_field(bools_to_numpy(column))],
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "enum"), _encode_varints),
    **dict.fromkeys(("sint32", "sint64"), _encode_zigzag),
    "fixed32": _build_fixed_encoder(np.uint32),
    "sfixed32": _build_fixed_encoder(np.int32),
    "fixed64": _build_fixed_encoder(np.uint64),
    "sfixed64": _build_fixed_encoder(np.int64),
    "float": _build_float_encoder(np.float32),
    "double": _build_float_encoder(np.float64),
    **dict.fromkeys(("string", "bytes"), _encode_length_delimited),
}
