"""The headers of a chunk's records, encoded: for each row a count and then `klen key vlen value` for each header.

The headers of all rows lie one after the other in Arrow's child arrays. Each is encoded as an element of one binary
array, by an element-wise join as for records; since that array's bytes lie one after the other as well, the headers
of a row are a slice of it, and a row's offsets follow from the list's by one look-up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY, null_mask, number_array, numbers_of
from spark_kafka_sink.records.byte_column import ByteColumn, byte_column
from spark_kafka_sink.records.varint import Field, anywhere, encode_varint, items, pack, positions, store, varint_fields

_ONE_BYTE_MAX = 63
"""The largest number whose varint has one byte."""


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
class EncodedHeaders:
    """What follows the value in each record. The count of headers is part of the sections, unless `counts` has it."""

    sections: ByteColumn
    counts: list[Field]


def encode_headers(array: pa.Array) -> EncodedHeaders | None:
    """None when no record has a header."""
    headers = header_column(array)
    if not len(headers.keys):
        return None
    keys, values = byte_column(headers.keys), byte_column(headers.values)
    counts = headers.counts
    count = int(counts[0])
    regular = bool((counts == count).all()) and _repeats(keys.lengths, count)
    if regular and _repeats(values.lengths, count):
        fixed = _fixed_sections(count, keys, values)
        width = fixed.shape[1]
        offsets = np.arange(0, (len(counts) + 1) * width, width, dtype=np.int32)
        sections = ByteColumn(np.full(len(counts), width, np.int64), offsets, pa.py_buffer(fixed))
        return EncodedHeaders(sections, [])
    if regular and int(values.lengths.max()) <= _ONE_BYTE_MAX:
        return EncodedHeaders(_short_sections(count, keys, values), [])
    elements = _encode_elements(keys, values)
    _, offset_buffer, data = elements.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(elements) + 1)[headers.starts]
    sections = ByteColumn((offsets[1:] - offsets[:-1]).astype(np.int64), offsets, data)
    return EncodedHeaders(sections, varint_fields(counts))


def _encode_elements(keys: ByteColumn, values: ByteColumn) -> pa.Array:
    return pc.binary_join_element_wise(
        binary_array(varint_fields(keys.lengths), keys.rows),
        keys.array(),
        binary_array(varint_fields(values.lengths), keys.rows),
        values.array(),
        EMPTY,
    )


def _repeats(lengths: NDArray[np.int64], count: int) -> bool:
    """Whether every row has the lengths of the first one, with `count` headers in each."""
    return bool((lengths[count:] == lengths[:-count]).all())


def _fixed_sections(count: int, keys: ByteColumn, values: ByteColumn) -> NDArray[np.uint8]:
    """One row of bytes for each record, where those of one place have equal lengths, keys as well as values.

    That is how headers mostly are. Then all numbers are the same in every row, and the headers' keys and values are
    columns of fixed width.
    """
    rows = keys.rows // count
    key_columns, value_columns = _columns(keys, count), _columns(values, count)
    parts: list[bytes | NDArray[np.uint8]] = [encode_varint(count)]
    for index, (key, value) in enumerate(zip(key_columns, value_columns, strict=True)):
        parts += [encode_varint(key.shape[1]), key, encode_varint(int(values.lengths[index])), value]
    return _table(parts, rows)


def _short_sections(count: int, keys: ByteColumn, values: ByteColumn) -> ByteColumn:
    """As above for values of different lengths, none above 63, so that each length is one byte.

    What stands before a value has a fixed width. Values are stored first, all as items of the longest one's size:
    what is too much is overwritten by the next value, or by what stands before it, which is stored afterwards.
    """
    rows = keys.rows // count
    lengths = np.maximum(values.lengths, 0)
    coded = ((values.lengths << 1) ^ (values.lengths >> 63)).astype(np.uint8).reshape(-1, count)
    tables = []
    for index, key in enumerate(_columns(keys, count)):
        lead = encode_varint(count) if index == 0 else b""
        tables.append(_table([lead, encode_varint(key.shape[1]), key, coded[:, index : index + 1]], rows))
    before = np.tile(np.array([table.shape[1] for table in tables], np.int64), rows)
    at = positions(before + lengths, keys.rows)
    longest = int(lengths.max())
    data = np.empty(int(at[-1]) + longest, np.uint8)
    if longest:
        start, stop = int(values.offsets[0]), int(values.offsets[-1])
        source = np.zeros(stop - start + longest, np.uint8)
        source[: stop - start] = np.frombuffer(values.data, np.uint8, stop - start, start)
        taken = anywhere(source, np.dtype((np.void, longest)))[values.offsets[:-1] - values.offsets[0]]
        anywhere(data, taken.dtype)[at[:-1] + before] = taken
    for index, table in enumerate(tables):
        store(data, table, at[index:-1:count])
    offsets = at[::count]
    return ByteColumn(offsets[1:] - offsets[:-1], offsets.astype(np.int32), pa.py_buffer(data))


def _columns(column: ByteColumn, count: int) -> list[NDArray[np.uint8]]:
    """The headers' keys (or values) of each place, as a table."""
    widths = np.maximum(column.lengths[:count], 0)
    ends = np.cumsum(widths).tolist()
    table = column.matrix(column.rows // count, ends[-1])
    return [table[:, end - width : end] for end, width in zip(ends, widths.tolist(), strict=True)]


def _width(part: bytes | NDArray[np.uint8]) -> int:
    return part.shape[1] if isinstance(part, np.ndarray) else len(part)


def _table(parts: list[bytes | NDArray[np.uint8]], rows: int) -> NDArray[np.uint8]:
    """The parts of each row side by side: bytes are the same in all rows, a column has those of each row."""
    blank = b"".join(bytes(_width(part)) if isinstance(part, np.ndarray) else part for part in parts)
    table = np.empty((rows, len(blank)), np.uint8)
    items(table)[:] = np.frombuffer(blank, items(table).dtype)
    at = 0
    for part in parts:
        if isinstance(part, np.ndarray) and part.shape[1]:
            items(table[:, at : at + part.shape[1]])[:] = items(part)
        at += _width(part)
    return table


def binary_array(fields: list[Field], rows: int) -> pa.Array:
    data, at = pack(fields, rows)
    return pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(at.astype(np.int32)), pa.py_buffer(data)], null_count=0
    )
