"""The headers of a chunk's records, encoded: for each row a count and then `klen key vlen value` for each header.

The headers of all rows lie one after the other in Arrow's child arrays. Each is encoded as an element of one binary
array, by an element-wise join as for records; since that array's bytes lie one after the other as well, the headers
of a row are a slice of it, and a row's offsets follow from the list's by one look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY, null_mask, number_array, numbers_of
from spark_kafka_sink.records.byte_column import ByteColumn, byte_column
from spark_kafka_sink.records.packing import Table, anywhere, fill, item_type, pack, packed_array, table_of
from spark_kafka_sink.records.varint import Field, encode_varint, varint_fields

_SHORT_BYTES_MAX = 127
"""Longer values are not stored as items of the longest one's size."""


@dataclass(frozen=True)
class HeaderColumn:
    """The flat headers of a chunk: row i has those from `starts[i]` up to `starts[i + 1]`."""

    starts: NDArray[np.int64]
    keys: pa.Array
    values: pa.Array
    present: NDArray[np.bool_] | None
    """Which headers exist at all: a list may hold a null in a header's place. None: all."""

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.starts[1:] - self.starts[:-1]


def header_column(array: pa.Array) -> HeaderColumn:
    """Read a list<struct<key, value>>, large_list or map column; null lists are empty ones."""
    if array.null_count:
        array = _without_bytes_under_nulls(array)
    starts = numbers_of(array.offsets).astype(np.int64)
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    present = None
    if pa.types.is_map(array.type):
        keys, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    else:
        structs = array.values.slice(first, last - first)
        present = ~null_mask(structs) if structs.null_count else None
        keys, values = structs.field("key"), structs.field("value")
    return HeaderColumn(starts - first, keys, values, present)


def _without_bytes_under_nulls(array: pa.Array) -> pa.Array:
    """Arrow allows elements under a null list. They are none of the record's."""
    offsets = numbers_of(array.offsets)
    if not (offsets[1:] - offsets[:-1])[null_mask(array)].any():
        return array
    return array.take(number_array(np.arange(len(array))))


def rows_with_bad_headers(array: pa.Array) -> NDArray[np.int64]:
    """Rows with a header whose key is null, or which is null itself."""
    headers = header_column(array)
    bad = np.zeros(len(headers.keys), np.bool_)
    if headers.keys.null_count:
        bad |= null_mask(headers.keys)
    if headers.present is not None:
        bad |= ~headers.present
    if not bad.any():
        return np.zeros(0, np.int64)
    rows = np.searchsorted(headers.starts, np.nonzero(bad)[0], side="right") - 1
    return np.unique(rows)


@dataclass(frozen=True)
class ShortValue:
    """The headers' values of one place, up to 127 bytes long and of several lengths, and what stands before them."""

    before: list[Table]
    lengths: NDArray[np.int64]
    padded: Table
    """Each as long as the longest: its bytes, and then whatever follows it in memory."""

    @property
    def before_bytes(self) -> int:
        return sum(table.shape[1] for table in self.before)


@dataclass(frozen=True)
class RegularHeaders:
    """Headers of records that all have as many, of equal lengths but for some short values. Most headers are so.

    The headers of a record are the short values, each with what stands before it, and then `rest`. A table of a single
    row is the same in all of them.
    """

    short: list[ShortValue]
    rest: list[Table]

    @property
    def rest_bytes(self) -> int:
        return sum(table.shape[1] for table in self.rest)

    def lengths(self) -> NDArray[np.int64] | int:
        """The bytes of each record's headers."""
        total: Any = self.rest_bytes
        for value in self.short:
            total = total + value.before_bytes + value.lengths
        return total  # type: ignore[no-any-return]

    def table(self, rows: int) -> Table:
        """The headers as one table, where no value is short."""
        table = np.empty((rows, self.rest_bytes), np.uint8)
        fill(table, self.rest)
        return table

    def last(self) -> bytes:
        """The headers of the last record."""
        data = b""
        for value in self.short:
            data += b"".join(bytes(table[-1]) for table in value.before)
            data += bytes(value.padded[-1, : value.lengths[-1]])
        return data + b"".join(bytes(table[-1]) for table in self.rest)


@dataclass(frozen=True)
class LooseHeaders:
    """Headers of any number and lengths: `counts`, and the headers themselves as a row of bytes for each record."""

    counts: list[Field]
    sections: ByteColumn


def encode_headers(array: pa.Array) -> RegularHeaders | LooseHeaders | None:
    """None when no record has a header."""
    headers = header_column(array)
    if not len(headers.keys):
        return None
    keys, values = byte_column(headers.keys), byte_column(headers.values)
    counts = headers.counts
    count = int(counts[0])
    if bool((counts == count).all()) and _repeats(keys.lengths, count):
        regular = _regular(count, keys, values)
        if regular is not None:
            return regular
    elements = _encode_elements(keys, values)
    _, offset_buffer, data = elements.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(elements) + 1)[headers.starts]
    return LooseHeaders(varint_fields(counts), ByteColumn(offsets, data))


def _encode_elements(keys: ByteColumn, values: ByteColumn) -> pa.Array:
    return pc.binary_join_element_wise(
        packed_array(*pack(varint_fields(keys.lengths), keys.rows)),
        keys.array(),
        packed_array(*pack(varint_fields(values.lengths), keys.rows)),
        values.array(),
        EMPTY,
    )


def _regular(count: int, keys: ByteColumn, values: ByteColumn) -> RegularHeaders | None:
    """None where the values of some place are too long, or their lengths are not of one width."""
    even_values = _columns(values, count) if _repeats(values.lengths, count) else None
    short: list[ShortValue] = []
    parts: list[bytes | Table] = [encode_varint(count)]
    for place, key in enumerate(_columns(keys, count)):
        parts += [encode_varint(key.shape[1]), key]
        if even_values is not None:
            parts += [encode_varint(int(values.lengths[place])), even_values[place]]
            continue
        lengths = np.ascontiguousarray(values.lengths[place::count])
        low, high = int(lengths.min()), int(lengths.max())
        if low == high:
            parts += [encode_varint(low), _gathered(values, place, count, max(0, low))]
            continue
        if high > _SHORT_BYTES_MAX or len(encode_varint(low)) != len(encode_varint(high)):
            return None
        before = _tables([*parts, *map(table_of, varint_fields(lengths))])
        payload = np.maximum(lengths, 0) if low < 0 else lengths
        short.append(ShortValue(before, payload, _gathered(values, place, count, high)))
        parts = []
    return RegularHeaders(short, _tables(parts))


def _repeats(lengths: NDArray[np.int64], count: int) -> bool:
    """Whether every row has the lengths of the first one, with `count` headers in each."""
    return bool((lengths[count:] == lengths[:-count]).all())


def _columns(column: ByteColumn, count: int) -> list[Table]:
    """The headers' keys (or values) of each place, where those of one place have one length.

    Where all are the same in every record, as keys mostly are, the tables have a single row.
    """
    widths = np.maximum(column.lengths[:count], 0)
    ends = np.cumsum(widths).tolist()
    table = column.matrix(column.rows // count, ends[-1])
    few = table[:8].tobytes()
    if few == few[: ends[-1]] * (len(few) // max(1, ends[-1])) and table[1:].tobytes() == table[:-1].tobytes():
        table = table[:1]
    return [table[:, end - width : end] for end, width in zip(ends, widths.tolist(), strict=True)]


def _gathered(column: ByteColumn, place: int, count: int, width: int) -> Table:
    """So many bytes from where the value of one place begins, for each record."""
    if not width:
        return np.empty((1, 0), np.uint8)
    at = column.offsets[place:-1:count]
    data = np.frombuffer(column.data, np.uint8)
    if int(at[-1]) + width > len(data):
        data = np.concatenate([data[at[0] :], np.zeros(width, np.uint8)])
        at = at - at[0]
    return anywhere(data, item_type(width))[at].view(np.uint8).reshape(-1, width)


def _tables(parts: list[bytes | Table]) -> list[Table]:
    """As tables; bytes are the same in all rows, and so are neighbours of one row together."""
    tables: list[Table] = []
    for part in parts:
        table = np.frombuffer(part, np.uint8)[None] if isinstance(part, bytes) else part
        if tables and len(table) == 1 and len(tables[-1]) == 1:
            tables[-1] = np.concatenate([tables[-1], table], axis=1)
        else:
            tables.append(table)
    return tables
