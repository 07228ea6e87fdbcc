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

from spark_kafka_sink.records.byte_column import EMPTY, ByteColumn, byte_column
from spark_kafka_sink.records.varint import Field, encode_varint, items, pack, varint_fields

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
    starts = np.asarray(array.offsets).astype(np.int64)
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    present = None
    if pa.types.is_map(array.type):
        keys, values = array.keys.slice(first, last - first), array.items.slice(first, last - first)
    else:
        structs = array.values.slice(first, last - first)
        present = np.asarray(structs.is_valid()) if structs.null_count else None
        keys, values = structs.field("key"), structs.field("value")
    return HeaderColumn(starts - first, keys, values, present)


def _without_bytes_under_nulls(array: pa.Array) -> pa.Array:
    """Arrow allows elements under a null list. They are none of the record's."""
    offsets = np.asarray(array.offsets)
    if not (offsets[1:] - offsets[:-1])[np.asarray(array.is_null())].any():
        return array
    return array.take(pa.array(np.arange(len(array))))


def rows_with_bad_headers(array: pa.Array) -> NDArray[np.int64]:
    """Rows with a header whose key is null, or which is null itself."""
    headers = header_column(array)
    bad = np.zeros(len(headers.keys), np.bool_)
    if headers.keys.null_count:
        bad |= np.asarray(headers.keys.is_null())
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
    fixed = _fixed_sections(int(counts[0]), keys, values) if bool((counts == counts[0]).all()) else None
    if fixed is not None:
        width = fixed.shape[1]
        offsets = np.arange(0, (len(counts) + 1) * width, width, dtype=np.int32)
        sections = ByteColumn(np.full(len(counts), width, np.int64), offsets, pa.py_buffer(fixed))
        return EncodedHeaders(sections, [])
    elements, counted = _encode_elements(counts, keys, values)
    _, offset_buffer, data = elements.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(elements) + 1)[headers.starts]
    sections = ByteColumn((offsets[1:] - offsets[:-1]).astype(np.int64), offsets, data)
    return EncodedHeaders(sections, [] if counted else varint_fields(counts))


def _encode_elements(counts: NDArray[np.int64], keys: ByteColumn, values: ByteColumn) -> tuple[pa.Array, bool]:
    """All headers, one after the other, and whether the first one of each row has the count in front."""
    names = _even_names(counts, keys, values)
    if names is not None:
        return pc.binary_join_element_wise(names, values.array(), EMPTY), True
    joined = pc.binary_join_element_wise(
        binary_array(varint_fields(keys.lengths), keys.rows),
        keys.array(),
        binary_array(varint_fields(values.lengths), keys.rows),
        values.array(),
        EMPTY,
    )
    return joined, False


def _even_names(counts: NDArray[np.int64], keys: ByteColumn, values: ByteColumn) -> pa.Array | None:
    """What stands before each value, where all rows have as many headers and those of one place keys of one length.

    Short values: their lengths are one byte each.
    """
    count = int(counts[0])
    if (counts != count).any() or int(values.lengths.max()) > _ONE_BYTE_MAX:
        return None
    lengths = keys.lengths.reshape(-1, count)
    if (lengths != lengths[0]).any():
        return None
    parts: list[bytes | NDArray[np.uint8]] = [encode_varint(count)]
    key_bytes, at = keys.matrix(len(lengths), int(lengths[0].sum())), 0
    coded = ((values.lengths << 1) ^ (values.lengths >> 63)).astype(np.uint8).reshape(-1, count)
    ends = np.zeros(count + 1, np.int64)
    for index, length in enumerate(lengths[0].tolist()):
        parts += [encode_varint(length), key_bytes[:, at : at + length], coded[:, index : index + 1]]
        at += length
        ends[index + 1] = sum(_width(part) for part in parts)
    table = _table(parts, len(lengths))
    starts = np.arange(len(lengths), dtype=np.int64)[:, None] * table.shape[1] + ends[:-1]
    offsets = np.append(starts.reshape(-1), table.size).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), keys.rows, [None, pa.py_buffer(offsets), pa.py_buffer(table)], null_count=0
    )


def _fixed_sections(count: int, keys: ByteColumn, values: ByteColumn) -> NDArray[np.uint8] | None:
    """One row of bytes for each record, where all have as many headers and those of one place equal lengths.

    That is how headers mostly are. Then all numbers are the same in every row, and the headers' keys and values are
    columns of fixed width.
    """
    key_lengths, value_lengths = keys.lengths.reshape(-1, count), values.lengths.reshape(-1, count)
    if (key_lengths != key_lengths[0]).any() or (value_lengths != value_lengths[0]).any():
        return None
    rows = len(key_lengths)
    parts: list[bytes | NDArray[np.uint8]] = [encode_varint(count)]
    key_bytes = keys.matrix(rows, int(key_lengths[0].sum()))
    value_bytes = values.matrix(rows, int(np.maximum(value_lengths[0], 0).sum()))
    key_at = value_at = 0
    for key_length, value_length in zip(key_lengths[0].tolist(), value_lengths[0].tolist(), strict=True):
        parts += [encode_varint(key_length), key_bytes[:, key_at : key_at + key_length], encode_varint(value_length)]
        key_at += key_length
        if value_length > 0:
            parts.append(value_bytes[:, value_at : value_at + value_length])
            value_at += value_length
    return _table(parts, rows)


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
