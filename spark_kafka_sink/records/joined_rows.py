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

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY
from spark_kafka_sink.records.byte_column import ByteColumn
from spark_kafka_sink.records.header_column import LooseHeaders, RegularHeaders
from spark_kafka_sink.records.packing import (
    SPARE_BYTES,
    Positions,
    Table,
    anywhere,
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
    """The headers of the record before, then fields and tables; and how long these headers are.

    A row is a fixed part of its headers, a short value, a fixed part, a short value, ... and at last the rest of the
    headers with everything else. Short values are stored first, as items of the longest one's size: what is too much
    lies where something else is stored afterwards. All others are stored to the byte.
    """
    merged = merge(fields)
    width = total_width(merged)
    words = words_of(merged, rows)
    *parts, rest = headers.tables
    before: Any = sum(part.shape[1] for part in parts)
    skip: Any = before + rest.shape[1]
    values = headers.values
    if values is not None:
        lengths = np.zeros((rows + 1, len(parts)), np.int64)
        lengths[1:] = values.lengths
        total = lengths.sum(axis=1)
        skip = total + skip
        before = total[:-1] + before
    tail_bytes = rest.shape[1] + sum(table.shape[1] for table in tail)
    at = positions(before + width + tail_bytes, rows)
    spare = len(headers.last()) + (0 if values is None else values.item.itemsize)
    data = new_buffer(int(at[-1]) + spare + SPARE_BYTES)
    if values is not None:
        place = _places(parts, lengths[:-1], at[:-1])
        anywhere(data, values.item)[place[1:]] = anywhere(values.source, values.item)[values.at[:-1]]
        for index, part in enumerate(parts):
            store(data, part[:-1], place[:, index] - part.shape[1])
    place = at[:-1] + before
    for which, lead in rows_by_width(width, rows):
        tables = [rest[:-1][which], words[which, :lead], *(rows_of(table, which) for table in tail)]
        if values is None and isinstance(which, slice):
            fill(data[at[which.start] : at[which.stop]].reshape(which.stop - which.start, -1), tables)
        else:
            block = np.empty((len(tables[0]), lead + tail_bytes), np.uint8)
            fill(block, tables)
            store(data, block, place[which])
    return data, at, skip


def _places(parts: list[Table], lengths: NDArray[np.int64], at: Positions) -> Positions:
    """Where the short values of each row go."""
    place = np.empty(lengths.shape, np.int64)
    for index, part in enumerate(parts):
        before = at if index == 0 else place[:, index - 1] + lengths[:, index - 1]
        np.add(before, part.shape[1], out=place[:, index])
    return place


def _joined(pieces: list[pa.Array], count: int, skip: NDArray[np.int64] | int) -> tuple[memoryview, NDArray[Any]]:
    """`skip` is what stands in front of each row that is not its own."""
    joined = pc.binary_join_element_wise(*pieces, EMPTY)
    _, offset_buffer, data = joined.buffers()
    at = np.frombuffer(offset_buffer, np.int32, count + 1)
    if isinstance(skip, int):
        return memoryview(data)[skip:], at
    return memoryview(data), at + skip
