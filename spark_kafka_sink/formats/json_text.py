"""Columns -> one JSON object for each row, in the bytes of Spark's `to_json(struct(...))`.

What Spark does and so this does too: a field that is null is left out (an element of an array or map that is null is
`null`), binary is base64, decimals are numbers with all their digits, NaN and infinities are strings, the keys of maps
are the text of Spark's own representation (a date is its day since 1970, a timestamp its microseconds).

Each column is turned into text at once and the columns are joined row by row; no Python runs for a row. An encoder of a
type gives `Text`: the bytes between quotation marks, if there are to be any. Quotation marks, names and commas go into
the constants between the columns.
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
from spark_kafka_sink.formats.arrow_errors import name_columns
from spark_kafka_sink.formats.binary_arrays import (
    as_binary,
    chosen,
    constant,
    constant_rows,
    either,
    in_place_of_nulls,
    is_bytes,
    is_text,
    join,
    join_present,
    text_of,
    with_nulls_of,
)
from spark_kafka_sink.formats.java_numbers import float_text, not_finite
from spark_kafka_sink.formats.java_times import date_text, time_text, timestamp_text
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask, numbers_to_arrow

_ESCAPES = {ord('"'): b'\\"', ord("\\"): b"\\\\", 8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}
_ESCAPES |= {byte: b"\\u%04X" % byte for byte in range(0x20) if byte not in _ESCAPES}


class Text(NamedTuple):
    """A column as JSON, null where it is null. `is_quoted`: quotation marks belong around each row."""

    rows: pa.Array
    is_quoted: bool = False


@dataclass(frozen=True)
class JsonFormat:
    """One object for each row."""

    def encode_rows(
        self, names: Sequence[str], columns: Sequence[pa.Array], rows: int, header: bytes = b""
    ) -> pa.Array:
        fields = []
        for name, column in zip(names, columns, strict=True):
            with name_columns(name):
                fields.append(_text(column))
        return _object(names, fields, rows, header)


def check_json_type(kind: pa.DataType, where: str) -> None:
    """Raise SchemaError if a column of this type cannot be written as JSON."""
    types = pa.types
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            check_json_type(kind.field(index).type, f"{where}.{kind.field(index).name}")
    elif types.is_map(kind):
        if _writer(kind.key_type) in (None, _base64_text):
            raise SchemaError(
                f"column {where}: a map with keys of type {kind.key_type} cannot be JSON; make its keys strings"
            )
        check_json_type(kind.item_type, f"{where}.value")
    elif types.is_list(kind):
        check_json_type(kind.value_type, f"{where}.element")
    elif not types.is_null(kind) and _writer(kind) is None:
        raise SchemaError(f"column {where} of type {kind} cannot be written as JSON; cast it to a string")


def _text(column: pa.Array) -> Text:
    kind, types = column.type, pa.types
    writer = _writer(kind)
    if writer is not None:
        return writer(column)
    if types.is_null(kind):
        return Text(column.cast(pa.binary()))
    if types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        # Column by column, since flatten() would copy to bring in the struct's own nulls.
        fields = [_text(column.field(index)) for index in range(kind.num_fields)]
        return Text(with_nulls_of(_object(names, fields, len(column)), column))
    return Text(_map(column) if types.is_map(kind) else _list(column))


def _writer(kind: pa.DataType) -> Callable[[pa.Array], Text] | None:
    """How a type without parts is written; None for all others."""
    return next((write for is_kind, write in _WRITERS if is_kind(kind)), None)


def _plain(column: pa.Array) -> Text:
    return Text(text_of(column))


def _string(column: pa.Array) -> Text:
    return Text(_escaped(as_binary(column)), is_quoted=True)


def _base64_text(column: pa.Array) -> Text:
    return Text(_base64(as_binary(column)), is_quoted=True)


def _float(column: pa.Array) -> Text:
    text = float_text(column)
    is_word = not_finite(column)
    if is_word.any():
        text = either(is_word, join(constant(b'"'), text, constant(b'"')), text)
    return Text(text)


def _object(names: Sequence[str], fields: Sequence[Text], rows: int, header: bytes = b"") -> pa.Array:
    pieces = _ObjectPieces(header + b"{")
    for name, text in zip(names, fields, strict=True):
        if rows and text.rows.null_count < rows:
            pieces.add(_escaped_name(name), text)
    return pieces.joined(rows)


class _ObjectPieces:
    """What is to be joined for one object in each row. Fields that are null are left out, and with them their comma."""

    def __init__(self, begin: bytes) -> None:
        self._pieces: list[Any] = []
        self._pending = begin
        self._seen: bool | NDArray[np.bool_] = False
        """Whether a field stands before the next one: in all rows, in no row, or in these rows."""

    def add(self, name: bytes, text: Text) -> None:
        quote = b'"' if text.is_quoted else b""
        label = b'"%s":%s' % (name, quote)
        if text.rows.null_count:
            self._end_constant()
            self._pieces.append(join(self._lead(label), text.rows, *([constant(quote)] if quote else [])))
            if self._seen is not True:
                self._seen = self._seen | ~null_mask(text.rows)
            return
        if isinstance(self._seen, bool):
            self._pending += b"," + label if self._seen else label
            self._end_constant()
        else:
            self._end_constant()
            self._pieces.append(self._lead(label))
        self._pieces.append(text.rows)
        self._pending, self._seen = quote, True

    def joined(self, rows: int) -> pa.Array:
        self._pending += b"}"
        arrays = [piece for piece in self._pieces if isinstance(piece, pa.Array)]
        if not arrays:
            return constant_rows(self._pending, rows)
        self._end_constant()
        return (join_present if any(piece.null_count for piece in arrays) else join)(*self._pieces)

    def _lead(self, label: bytes) -> Any:
        """The name of a field, with a comma in front where one is needed."""
        if isinstance(self._seen, bool):
            return constant(b"," + label if self._seen else label)
        return chosen(self._seen, [label, b"," + label])

    def _end_constant(self) -> None:
        if self._pending:
            self._pieces.append(constant(self._pending))
            self._pending = b""


def _list(column: pa.Array) -> pa.Array:
    offsets = integers_to_numpy(column.offsets)
    values, is_quoted = _text(column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    if is_quoted:
        values = join(constant(b'"'), values, constant(b'"'))
    return _joined_elements(in_place_of_nulls(values, b"null"), offsets, column, b"[", b"]")


def _map(column: pa.Array) -> pa.Array:
    offsets = integers_to_numpy(column.offsets)
    start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = _key_text(column.keys.slice(start, count))
    values, is_quoted = _text(column.items.slice(start, count))
    if is_quoted:
        values = join(constant(b'"'), values, constant(b'"'))
    entries = join(constant(b'"'), keys, constant(b'":'), in_place_of_nulls(values, b"null"))
    return _joined_elements(entries, offsets, column, b"{", b"}")


def _joined_elements(values: pa.Array, offsets: NDArray[Any], column: pa.Array, begin: bytes, end: bytes) -> pa.Array:
    lists = pa.ListArray.from_arrays(numbers_to_arrow((offsets - offsets[0]).astype(np.int32)), values)
    joined = pc.binary_join(lists, constant(b","))
    return with_nulls_of(join(constant(begin), joined, constant(end)), column)


def _key_text(keys: pa.Array) -> pa.Array:
    """Keys as Spark's own representation has them: times and dates are numbers."""
    kind, types = keys.type, pa.types
    if types.is_date32(kind):
        return text_of(keys.view(pa.int32()))
    if types.is_timestamp(kind) or types.is_time64(kind):
        return text_of(keys.view(pa.int64()))
    if types.is_floating(kind):
        return float_text(keys)
    return _text(keys).rows


def _escaped(text: pa.Array) -> pa.Array:
    """With the escapes that Jackson makes: of quotation marks, backslashes and control characters."""
    _, offset_buffer, data = text.buffers()
    if data is None or not len(text):
        return text
    offsets = np.frombuffer(offset_buffer, np.int32, len(text) + 1, 4 * text.offset)
    used = np.frombuffer(data, np.uint8)[int(offsets[0]) : int(offsets[-1])]
    special = (used < 0x20) | (used == ord('"')) | (used == ord("\\"))
    if not special.any():
        return text
    # The backslash comes first, as the escapes of the others have one.
    for byte in sorted(np.unique(used[special]).tolist(), key=lambda byte: byte != ord("\\")):
        text = pc.replace_substring(text, bytes([byte]), _ESCAPES[byte])
    return text


def _escaped_name(name: str) -> bytes:
    return b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in name.encode())


def _base64(column: pa.Array) -> pa.Array:
    """Each row is filled up to a multiple of three bytes; then one call encodes all, and the ends are marked."""
    filled = in_place_of_nulls(column, b"")
    missing = -integers_to_numpy(pc.binary_length(filled)) % 3
    padded = join(filled, chosen(missing, [b"", b"\0", b"\0\0"])) if missing.any() else filled
    _, offset_buffer, data = padded.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(padded) + 1, 4 * padded.offset)
    used = memoryview(data)[int(offsets[0]) : int(offsets[-1])] if data is not None else b""
    text = np.frombuffer(bytearray(base64.b64encode(used)), np.uint8)
    ends = (offsets - offsets[0]) // 3 * 4
    for count in (1, 2):
        text[ends[1:][missing >= count] - count] = ord("=")
    at = pa.py_buffer(ends.astype(np.int32))
    encoded = pa.Array.from_buffers(pa.binary(), len(column), [None, at, pa.py_buffer(text)])
    return with_nulls_of(encoded, column)


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Text]], ...] = (
    (is_text, _string),
    (pa.types.is_integer, _plain),
    (pa.types.is_decimal128, _plain),
    (pa.types.is_boolean, _plain),
    (pa.types.is_float32, _float),
    (pa.types.is_float64, _float),
    (pa.types.is_date32, lambda column: Text(date_text(column), is_quoted=True)),
    (pa.types.is_timestamp, lambda column: Text(timestamp_text(column), is_quoted=True)),
    (pa.types.is_time64, lambda column: Text(time_text(column), is_quoted=True)),
    (is_bytes, _base64_text),
)
