"""Records of any length: what stands before a value is packed for all rows at once, and Arrow joins it with the value.

The bytes of an Arrow binary array are its elements one after the other. So where each element is one encoded record,
these bytes are the records of a batch, and a batch is a slice of them. `binary_join_element_wise(lead, value)` makes
such an array. What a join costs grows with its pieces, so there are as few as can be:

- numbers and key are one piece where the keys have one length;
- what ends a record, its headers or the 0 that says there are none, stands in front of the next record's numbers, in
  the same piece. The first row has nothing there (or bytes that nobody reads), after the last there is a row of it
  alone, and each segment begins behind the headers of the record before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY
from spark_kafka_sink.records.byte_column import ByteColumn
from spark_kafka_sink.records.header_column import LooseHeaders, RegularHeaders, ShortValue
from spark_kafka_sink.records.packing import (
    SEGMENT_POOL,
    SPARE_BYTES,
    Positions,
    Table,
    fill,
    new_buffer,
    pack,
    pack_before,
    packed_array,
    positions,
    rows_by_width,
    rows_of,
    store,
    table_of,
    words_of,
)
from spark_kafka_sink.records.record_fields import ZERO, Rows, record_fields
from spark_kafka_sink.records.varint import Field, merge, total_width


def join_rows(
    key: ByteColumn | None,
    even_key: int | None,
    value: ByteColumn,
    headers: RegularHeaders | LooseHeaders | None,
    rows: Rows,
) -> tuple[memoryview, NDArray[Any]]:
    """All records, and where each begins and the last ends. `even_key` is the length of all keys, if they have one."""
    key_length = key.lengths if key is not None and even_key is None else even_key or 0
    prefix, middle = record_fields(rows, key_length, value.lengths, _header_bytes(headers))
    tail: list[Table] = []
    others: list[list[Field] | ByteColumn] = []
    if key is None or even_key == -1:
        prefix, middle = prefix + middle, []
    elif even_key is None:
        others.append(key)
    else:
        tail.append(key.matrix(rows.total, even_key))
    if tail and len(middle) == 1 and isinstance(middle[0].width, int):
        tail.append(table_of(middle[0]))
    elif middle:
        others.append(middle)
    others.append(value)
    count = rows.total
    if isinstance(headers, LooseHeaders):
        lead = packed_array(*_lead(prefix, tail, count))
        ends = [packed_array(*pack(headers.counts, count)), headers.sections.array()]
        return _joined([lead, *_pieces(others, count, None), *ends], count, 0)
    if headers is None:
        lead = packed_array(*_lead([ZERO, *prefix], tail, count), b"\0")
        return _joined([lead, *_pieces(others, count, b"")], count, 1)
    data, at, skip = _lead_after_headers(headers, prefix, tail, count)
    lead = packed_array(data, at, headers.last())
    return _joined([lead, *_pieces(others, count, b"")], count, skip)


def _header_bytes(headers: RegularHeaders | LooseHeaders | None) -> Any:
    """What the headers of each record take, with their count."""
    if headers is None:
        return 1
    if isinstance(headers, RegularHeaders):
        return headers.lengths()
    return headers.sections.lengths + total_width(headers.counts)


def _pieces(columns: list[list[Field] | ByteColumn], rows: int, last: bytes | None) -> list[pa.Array]:
    """Arrays for a join, with an empty row at the end if the others have one."""
    return [
        column.array(0 if last is None else 1)
        if isinstance(column, ByteColumn)
        else packed_array(*pack(column, rows), last)
        for column in columns
    ]


def _lead(fields: list[Field], tables: list[Table], rows: int) -> tuple[NDArray[np.uint8], Positions]:
    return pack_before(fields, tables, rows) if tables else pack(fields, rows)


def _lead_after_headers(
    headers: RegularHeaders, fields: list[Field], tail: list[Table], rows: int
) -> tuple[NDArray[np.uint8], Positions, NDArray[np.int64] | int]:
    """The headers of the record before, then fields and tables; and how long these headers are."""
    merged = merge(fields)
    width = total_width(merged)
    words = words_of(merged, rows)
    skip: Any = headers.lengths()
    if headers.short:
        skip = np.concatenate([[headers.rest_bytes], skip])
        before = skip[:-1] - headers.rest_bytes
    else:
        before = 0
    fixed = headers.rest_bytes + sum(table.shape[1] for table in tail)
    at = positions(before + width + fixed, rows)
    last = headers.last()
    spare = sum(value.before_bytes + value.padded.shape[1] for value in headers.short)
    data = new_buffer(int(at[-1]) + len(last) + spare + SPARE_BYTES)
    if headers.short and rows > 1:
        _store_short(data, headers.short, at[1:-1], rows - 1)
    for which, lead in _after_the_first(rows_by_width(width, rows)):
        tables = [*(_before(table, which) for table in headers.rest), words[which, :lead]]
        tables += [rows_of(table, which) for table in tail]
        if isinstance(which, slice) and not headers.short:
            fill(data[at[which.start] : at[which.stop]].reshape(which.stop - which.start, -1), tables)
        else:
            block = np.empty((len(words[which]), lead + fixed), np.uint8)
            fill(block, tables)
            store(data, block, (at[:-1] + before)[which])
    return data, at, skip


def _after_the_first(groups: list[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """The first row by itself, as there is no record before it."""
    for which, width in groups:
        if isinstance(which, slice) and which.start == 0 and which.stop > 1:
            yield slice(0, 1), width
            yield slice(1, which.stop), width
        else:
            yield which, width


def _before(table: Table, which: Any) -> Table:
    """The rows before these rows; before the first one, any."""
    if len(table) == 1:
        return table
    if isinstance(which, slice):
        start = max(0, which.start - 1)
        return table[start : start + which.stop - which.start]
    chosen: Table = table[which - 1]
    return chosen


def _store_short(data: NDArray[np.uint8], values: list[ShortValue], at: Positions, rows: int) -> None:
    """The short values of so many records, each with what stands before it, from these places on.

    All are stored in the order of the bytes as items of one size. What is too much of an item lies where the next one
    is stored a moment later, or the numbers afterwards.
    """
    size = max(value.before_bytes + value.padded.shape[1] for value in values)
    blocks = np.empty((rows, len(values), size), np.uint8)
    places = np.empty((rows, len(values)), np.int64)
    for index, value in enumerate(values):
        used = value.before_bytes + value.padded.shape[1]
        fill(blocks[:, index, :used], [rows_of(table, slice(0, rows)) for table in (*value.before, value.padded)])
        places[:, index] = at
        at = at + (value.lengths[:rows] + value.before_bytes)
    store(data, blocks.reshape(-1, size), places.reshape(-1))


def _joined(pieces: list[pa.Array], count: int, skip: NDArray[np.int64] | int) -> tuple[memoryview, NDArray[Any]]:
    """`skip` is what stands in front of each row that is not its own."""
    joined = pc.binary_join_element_wise(*pieces, EMPTY, memory_pool=SEGMENT_POOL)
    _, offset_buffer, data = joined.buffers()
    at = np.frombuffer(offset_buffer, np.int32, count + 1)
    if isinstance(skip, int):
        return memoryview(data)[skip:], at
    return memoryview(data), at + skip
