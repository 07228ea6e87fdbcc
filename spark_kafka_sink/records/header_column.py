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
class ShortValues:
    """Values of headers that are up to 127 bytes long: `lengths[row, place]`, from `source[at[row, place]]` on."""

    lengths: NDArray[np.int64]
    row_bytes: NDArray[np.int64]
    at: NDArray[np.int64]
    source: NDArray[np.uint8]
    item: np.dtype[Any]
    """As large as the longest value at least. The source has as many bytes to spare."""


@dataclass(frozen=True)
class RegularHeaders:
    """Headers of records that all have as many, of equal lengths but for some short values. Most headers are so.

    The headers of a record are tables[0], a short value, tables[1], a short value, ..., tables[-1]. The first row of
    the tables is of no record, so that row i has the headers of the record before record i.
    """

    tables: list[Table]
    values: ShortValues | None

    def lengths(self) -> NDArray[np.int64] | int:
        fixed: int = sum(table.shape[1] for table in self.tables)
        return fixed if self.values is None else fixed + self.values.row_bytes

    def last(self) -> bytes:
        """The headers of the last record."""
        data = bytes(self.tables[0][-1])
        if self.values is not None:
            places = zip(self.tables[1:], self.values.at[-1].tolist(), self.values.lengths[-1].tolist(), strict=True)
            for table, at, length in places:
                data += bytes(self.values.source[at : at + length]) + bytes(table[-1])
        return data


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
    lengths = values.lengths.reshape(-1, count)
    rows = len(lengths)
    even_values = _columns(values, count) if _repeats(values.lengths, count) else None
    tables: list[Table] = []
    parts: list[bytes | Table] = [encode_varint(count)]
    short = []
    for place, key in enumerate(_columns(keys, count)):
        parts += [encode_varint(key.shape[1]), key]
        if even_values is not None:
            parts += [encode_varint(int(lengths[0, place])), even_values[place]]
            continue
        of_place = np.ascontiguousarray(lengths[:, place])
        low, high = int(of_place.min()), int(of_place.max())
        if low == high:
            parts += [encode_varint(low), _gathered(values, place, count, max(0, low))]
            continue
        if high > _SHORT_BYTES_MAX or len(encode_varint(low)) != len(encode_varint(high)):
            return None
        tables.append(_table([*parts, *map(table_of, varint_fields(of_place))], rows))
        parts = []
        short.append(place)
    tables.append(_table(parts, rows))
    return RegularHeaders(tables, _short_values(values, lengths, short) if short else None)


def _repeats(lengths: NDArray[np.int64], count: int) -> bool:
    """Whether every row has the lengths of the first one, with `count` headers in each."""
    return bool((lengths[count:] == lengths[:-count]).all())


def _short_values(values: ByteColumn, lengths: NDArray[np.int64], places: list[int]) -> ShortValues:
    payload = np.maximum(lengths, 0)[:, places]
    item = item_type(next((size for size in (1, 2, 4, 8) if size >= payload.max()), int(payload.max())))
    start, stop = int(values.offsets[0]), int(values.offsets[-1])
    source = np.empty(stop - start + item.itemsize, np.uint8)
    source[: stop - start] = np.frombuffer(values.data, np.uint8, stop - start, start)
    at = (values.offsets[:-1].reshape(-1, lengths.shape[1])[:, places] - start).astype(np.int64)
    return ShortValues(payload, payload.sum(axis=1), at, source, item)


def _columns(column: ByteColumn, count: int) -> list[Table]:
    """The headers' keys (or values) of each place, where those of one place have one length."""
    widths = np.maximum(column.lengths[:count], 0)
    ends = np.cumsum(widths).tolist()
    table = column.matrix(column.rows // count, ends[-1])
    return [table[:, end - width : end] for end, width in zip(ends, widths.tolist(), strict=True)]


def _gathered(column: ByteColumn, place: int, count: int, width: int) -> Table:
    """The values of one place, of one length, from among others."""
    if not width:
        return np.empty((1, 0), np.uint8)
    data = np.frombuffer(column.data, np.uint8)
    taken = anywhere(data, item_type(width))[column.offsets[place:-1:count]]
    return taken.view(np.uint8).reshape(-1, width)


def _table(parts: list[bytes | Table], rows: int) -> Table:
    """The parts of each row side by side, below a row that is left as it is: bytes are the same in all rows."""
    tables = [np.frombuffer(part, np.uint8)[None] if isinstance(part, bytes) else part for part in parts]
    table = np.empty((rows + 1, sum(part.shape[1] for part in tables)), np.uint8)
    fill(table[1:], tables)
    return table
