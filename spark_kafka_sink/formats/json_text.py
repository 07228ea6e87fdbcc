"""The JSON row format, one object per row. The output is identical to that of Spark's `to_json(struct(...))`.

As in Spark, null fields are omitted, but null elements of arrays and maps are written as `null`. Binary is written as
base64, decimals as numbers with all of their digits, and NaN and infinities as strings. Map keys are written in Spark's
internal representation: a date is the number of days since 1970, and a timestamp is the number of microseconds.

Each column is encoded as a whole, and the encoded columns are then joined row by row. No Python code runs per row.

This module uses these terms:

    JsonColumn        an encoded column, without enclosing quotation marks
    constant          text between two columns that is the same in every row: quotation marks, names and commas
    piece             a constant or a column; an object is the concatenation of its pieces
    elements          the values of all arrays (or the entries of all maps) in a column, one after the other
    element offsets   the index of each array's first element, followed by the total number of elements
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.arrow_errors import convert_arrow_errors
from spark_kafka_sink.formats.binary_arrays import (
    build_binary_scalar,
    choose_by_index,
    choose_by_mask,
    copy_nulls_from,
    fill_nulls,
    is_binary_type,
    is_string_type,
    join,
    join_non_null,
    read_element_offsets,
    repeat_value,
    replace_invalid_utf8,
    to_text,
    view_byte_offsets,
)
from spark_kafka_sink.formats.java_numbers import find_non_finite, format_floats
from spark_kafka_sink.formats.java_times import format_dates, format_times, format_timestamps
from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy, numbers_to_arrow
from spark_kafka_sink.records.byte_column import check_total_bytes, to_binary

# Escape sequence of each byte that cannot be written in a JSON string as it is. All other control characters are added
# below.
_ESCAPES = {
    ord('"'): b'\\"',
    ord("\\"): b"\\\\",
    ord("\b"): b"\\b",
    ord("\t"): b"\\t",
    ord("\n"): b"\\n",
    ord("\f"): b"\\f",
    ord("\r"): b"\\r",
}
_FIRST_PRINTABLE_BYTE = 0x20
_BACKSLASH = ord("\\")
_ESCAPES |= {byte: b"\\u%04X" % byte for byte in range(_FIRST_PRINTABLE_BYTE) if byte not in _ESCAPES}


class JsonColumn(NamedTuple):
    """A column encoded as JSON. Nulls of the source column stay null."""

    values: pa.Array
    """A binary array with the JSON text of each row."""
    needs_quotes: bool = False
    """Whether the values must still be enclosed in quotation marks."""


@dataclass(frozen=True)
class JsonFormat:
    """The row format of JSON objects."""

    def encode_rows(
        self, names: Sequence[str], columns: Sequence[pa.Array], row_count: int, prefix: bytes = b""
    ) -> pa.Array:
        fields = []
        for name, column in zip(names, columns, strict=True):
            with convert_arrow_errors(name):
                fields.append(_encode_column(column))
        return _encode_objects(names, fields, row_count, prefix)


def check_json_type(data_type: pa.DataType, path: str) -> None:
    """Raise SchemaError if a column of this type cannot be written as JSON.

    `path`: the column's full name in the error, including its parents.
    """
    if pa.types.is_struct(data_type):
        for index in range(data_type.num_fields):
            check_json_type(data_type.field(index).type, f"{path}.{data_type.field(index).name}")
    elif pa.types.is_map(data_type):
        if _find_scalar_encoder(data_type.key_type) in (None, _encode_binary):
            raise SchemaError(
                f"column {path}: a map with keys of type {data_type.key_type} cannot be written as JSON; "
                "cast the keys to strings"
            )
        check_json_type(data_type.item_type, f"{path}.value")
    elif pa.types.is_list(data_type):
        check_json_type(data_type.value_type, f"{path}.element")
    elif not pa.types.is_null(data_type) and _find_scalar_encoder(data_type) is None:
        raise SchemaError(f"column {path} of type {data_type} cannot be written as JSON; cast it to a string")


def _encode_column(column: pa.Array) -> JsonColumn:
    """Encode a column of any supported type. Nulls stay null, so that the caller can omit or replace them."""
    data_type = column.type
    encode = _find_scalar_encoder(data_type)
    if encode is not None:
        return encode(column)
    if pa.types.is_null(data_type):
        return JsonColumn(column.cast(pa.binary()))
    if pa.types.is_struct(data_type):
        names = [data_type.field(index).name for index in range(data_type.num_fields)]
        # Use field() rather than flatten(), which would copy the data to apply the struct's nulls.
        fields = [_encode_column(column.field(index)) for index in range(data_type.num_fields)]
        objects = _encode_objects(names, fields, len(column))
        return JsonColumn(copy_nulls_from(objects, source=column))
    # The type is a map or a list, because check_json_type has rejected unsupported types.
    return JsonColumn(_encode_maps(column) if pa.types.is_map(data_type) else _encode_lists(column))


def _find_scalar_encoder(data_type: pa.DataType) -> Callable[[pa.Array], JsonColumn] | None:
    """Return the encoder for a scalar type, or None if the type is nested, unsupported or null."""
    return next((encode for is_type, encode in _SCALAR_ENCODERS if is_type(data_type)), None)


def _encode_unquoted(column: pa.Array) -> JsonColumn:
    """Encode numbers or booleans. Arrow's text for them is valid JSON."""
    return JsonColumn(to_text(column))


def _encode_strings(column: pa.Array) -> JsonColumn:
    return JsonColumn(_escape(replace_invalid_utf8(column)), needs_quotes=True)


def _encode_binary(column: pa.Array) -> JsonColumn:
    return JsonColumn(_encode_base64(to_binary(column)), needs_quotes=True)


def _encode_floats(column: pa.Array) -> JsonColumn:
    """Encode floats as numbers, but NaN and infinities as strings, because JSON has no numbers for them."""
    text = format_floats(column)
    is_non_finite = find_non_finite(column)
    if is_non_finite.any():
        text = choose_by_mask(is_non_finite, _add_quotes(text), text)
    return JsonColumn(text)


def _encode_objects(
    names: Sequence[str], fields: Sequence[JsonColumn], row_count: int, prefix: bytes = b""
) -> pa.Array:
    """Return one JSON object per row, preceded by `prefix`. Fields that are null in all rows are skipped."""
    builder = _ObjectBuilder(prefix + b"{")
    for name, field in zip(names, fields, strict=True):
        is_null_in_all_rows = field.values.null_count == row_count  # True if there are no rows
        if not is_null_in_all_rows:
            builder.add_field(_escape_name(name), field)
    return builder.build(row_count)


class _ObjectBuilder:
    """Builds one object per row. Null fields are omitted, together with their comma.

    Call `add_field` for each field in order, and then `build` once.

    The objects are joined from pieces: columns, and constants, which are the same in every row. The time for the join
    grows with the number of pieces. Constants are therefore collected in `_pending_constant` and added before the next
    column, so that all constants between two columns become one piece.
    """

    def __init__(self, opening: bytes) -> None:
        self._pieces: list[Any] = []
        self._pending_constant = opening
        """Text that follows the last piece in every row, and has not been added to the pieces yet."""
        self._rows_with_fields: bool | NDArray[np.bool_] = False
        """Rows in which the object already has a field, so that the next field needs a comma before it.

        True means all rows, False means no rows; otherwise this is a mask.
        """

    def add_field(self, name: bytes, field: JsonColumn) -> None:
        """Add a field to all objects in which it is not null. `name` must already be escaped."""
        quote = b'"' if field.needs_quotes else b""
        label = b'"%s":%s' % (name, quote)
        if field.values.null_count:
            self._add_to_some_rows(label, field.values, quote)
        else:
            self._add_to_all_rows(label, field.values, quote)

    def _add_to_some_rows(self, label: bytes, values: pa.Array, closing_quote: bytes) -> None:
        """Add a field that is null in some rows.

        `label`: the name, a colon and the opening quotation mark, if any.
        """
        # Join the label, the value and the closing quotation mark into one piece. It is null where the value is null,
        # so join_non_null() skips the whole piece in these rows.
        self._flush_constant()
        closing_pieces = [build_binary_scalar(closing_quote)] if closing_quote else []
        self._pieces.append(join(self._build_field_prefix(label), values, *closing_pieces))
        if self._rows_with_fields is not True:
            self._rows_with_fields = self._rows_with_fields | ~build_null_mask(values)

    def _add_to_all_rows(self, label: bytes, values: pa.Array, closing_quote: bytes) -> None:
        """Add a field that is null in no row.

        `label`: the name, a colon and the opening quotation mark, if any.
        """
        # The label is a constant if all rows, or no rows, need a comma before it. Otherwise, it differs between rows.
        if isinstance(self._rows_with_fields, bool):
            self._pending_constant += b"," + label if self._rows_with_fields else label
            self._flush_constant()
        else:
            self._flush_constant()
            self._pieces.append(self._build_field_prefix(label))
        self._pieces.append(values)
        self._pending_constant = closing_quote
        self._rows_with_fields = True

    def build(self, row_count: int) -> pa.Array:
        """Return the objects as a binary array without nulls."""
        self._pending_constant += b"}"
        arrays = [piece for piece in self._pieces if isinstance(piece, pa.Array)]
        if not arrays:
            return repeat_value(self._pending_constant, row_count)
        self._flush_constant()
        # join() is faster than join_non_null(), but makes a row null if one of its pieces is null.
        has_null_pieces = any(piece.null_count for piece in arrays)
        return join_non_null(*self._pieces) if has_null_pieces else join(*self._pieces)

    def _build_field_prefix(self, label: bytes) -> Any:
        """Return a piece with the field's name, preceded by a comma in rows that already have a field."""
        if isinstance(self._rows_with_fields, bool):
            return build_binary_scalar(b"," + label if self._rows_with_fields else label)
        return choose_by_index(self._rows_with_fields, [label, b"," + label])

    def _flush_constant(self) -> None:
        if self._pending_constant:
            self._pieces.append(build_binary_scalar(self._pending_constant))
            self._pending_constant = b""


def _encode_json_values(column: pa.Array) -> pa.Array:
    """Return the complete JSON text of each value, in quotation marks if its type requires them. Nulls stay null."""
    json_column = _encode_column(column)
    return _add_quotes(json_column.values) if json_column.needs_quotes else json_column.values


def _add_quotes(values: pa.Array) -> pa.Array:
    return join(build_binary_scalar(b'"'), values, build_binary_scalar(b'"'))


def _encode_lists(column: pa.Array) -> pa.Array:
    """Encode a list column as JSON arrays. Null lists stay null."""
    element_offsets, first_element_index, element_count = read_element_offsets(column)
    elements = _encode_json_values(column.values.slice(first_element_index, element_count))
    return _join_elements(fill_nulls(elements, b"null"), element_offsets, column, b"[", b"]")


def _encode_maps(column: pa.Array) -> pa.Array:
    """Encode a map column as JSON objects. Null maps stay null."""
    element_offsets, first_element_index, element_count = read_element_offsets(column)
    keys = _encode_keys(column.keys.slice(first_element_index, element_count))
    values = _encode_json_values(column.items.slice(first_element_index, element_count))
    entries = join(build_binary_scalar(b'"'), keys, build_binary_scalar(b'":'), fill_nulls(values, b"null"))
    return _join_elements(entries, element_offsets, column, b"{", b"}")


def _join_elements(
    elements: pa.Array, element_offsets: NDArray[np.int64], column: pa.Array, opening: bytes, closing: bytes
) -> pa.Array:
    """Join the elements of each row with commas, and enclose them in brackets. Null rows of `column` stay null.

    `elements`: the encoded elements of all rows.
    `element_offsets`: the index of each row's first element, followed by the total number of elements.
    `column`: the list or map column.
    `opening`, `closing`: the brackets.
    """
    lists = pa.ListArray.from_arrays(numbers_to_arrow(element_offsets.astype(np.int32)), elements)
    joined_elements = pc.binary_join(lists, build_binary_scalar(b","))
    enclosed_elements = join(build_binary_scalar(opening), joined_elements, build_binary_scalar(closing))
    return copy_nulls_from(enclosed_elements, source=column)


def _encode_keys(keys: pa.Array) -> pa.Array:
    """Encode map keys in Spark's internal representation, in which dates and times are numbers."""
    data_type = keys.type
    if pa.types.is_date32(data_type):
        return to_text(keys.view(pa.int32()))
    if pa.types.is_timestamp(data_type) or pa.types.is_time64(data_type):
        return to_text(keys.view(pa.int64()))
    if pa.types.is_floating(data_type):
        return format_floats(keys)
    return _encode_column(keys).values


def _escape(strings: pa.Array) -> pa.Array:
    """Escape quotation marks, backslashes and control characters in JSON strings, as Jackson does.

    Raise pa.ArrowCapacityError if the result would exceed 2 GiB.
    """
    _, _, data = strings.buffers()
    if data is None or not len(strings):  # no row contains any text
        return strings
    offsets = view_byte_offsets(strings)
    data_bytes = np.frombuffer(data, np.uint8)[int(offsets[0]) : int(offsets[-1])]
    needs_escape = (data_bytes < _FIRST_PRINTABLE_BYTE) | (data_bytes == ord('"')) | (data_bytes == _BACKSLASH)
    if not needs_escape.any():
        return strings
    escaped_bytes = np.unique(data_bytes[needs_escape]).tolist()
    added_bytes = sum(np.count_nonzero(data_bytes == byte) * (len(_ESCAPES[byte]) - 1) for byte in escaped_bytes)
    check_total_bytes(len(data_bytes) + added_bytes)
    # Escape the backslash first. All other escape sequences contain a backslash, which must not be escaped again.
    if _BACKSLASH in escaped_bytes:
        escaped_bytes.remove(_BACKSLASH)
        escaped_bytes.insert(0, _BACKSLASH)
    for byte in escaped_bytes:
        strings = pc.replace_substring(strings, bytes([byte]), _ESCAPES[byte])
    return strings


def _escape_name(name: str) -> bytes:
    """Escape the name of a field, like the strings in `_escape`."""
    return b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in name.encode())


def _encode_base64(column: pa.Array) -> pa.Array:
    """Encode each row as base64. Nulls stay null. Raise pa.ArrowCapacityError if the result would exceed 2 GiB."""
    # Base64 encodes three bytes as four characters. Pad each row to a multiple of three bytes, so that a single call
    # can encode all rows, and then overwrite the encoded padding with `=`. For example, `ab` is padded to `ab\0`, which
    # is encoded as `YWIA` and becomes `YWI=`.
    filled_bytes = fill_nulls(column, b"")
    padding_bytes = -integers_to_numpy(pc.binary_length(filled_bytes)) % 3  # lengths [3, 4, 5] -> [0, 2, 1]
    padded_bytes = (
        join(filled_bytes, choose_by_index(padding_bytes, [b"", b"\0", b"\0\0"]))
        if padding_bytes.any()
        else filled_bytes
    )
    _, _, data = padded_bytes.buffers()
    offsets = view_byte_offsets(padded_bytes)
    data_bytes = memoryview(data)[int(offsets[0]) : int(offsets[-1])] if data is not None else b""
    check_total_bytes(len(data_bytes) // 3 * 4)
    # Copy to a bytearray, because a numpy array that views a bytes object is read-only.
    encoded_bytes = np.frombuffer(bytearray(base64.b64encode(data_bytes)), np.uint8)
    encoded_offsets = (offsets - offsets[0]) // 3 * 4  # [0, 3, 9] -> [0, 4, 12]
    row_ends = encoded_offsets[1:]
    for position in (1, 2):  # counted from the end of a row
        encoded_bytes[row_ends[padding_bytes >= position] - position] = ord("=")
    buffers = [None, pa.py_buffer(encoded_offsets.astype(np.int32)), pa.py_buffer(encoded_bytes)]
    encoded_column = pa.Array.from_buffers(pa.binary(), len(column), buffers)
    return copy_nulls_from(encoded_column, source=column)


_SCALAR_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], JsonColumn]], ...] = (
    (is_string_type, _encode_strings),
    (pa.types.is_integer, _encode_unquoted),
    (pa.types.is_decimal128, _encode_unquoted),
    (pa.types.is_boolean, _encode_unquoted),
    (pa.types.is_float32, _encode_floats),
    (pa.types.is_float64, _encode_floats),
    (pa.types.is_date32, lambda column: JsonColumn(format_dates(column), needs_quotes=True)),
    (pa.types.is_timestamp, lambda column: JsonColumn(format_timestamps(column), needs_quotes=True)),
    (pa.types.is_time64, lambda column: JsonColumn(format_times(column), needs_quotes=True)),
    (is_binary_type, _encode_binary),
)
"""Encoder by scalar Arrow type. The first entry that matches applies."""
