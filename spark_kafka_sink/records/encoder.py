"""Record batch bodies (format v2) from columns: no record is ever touched in Python.

A record in a batch:

    length          varint   of everything after it
    attributes      1 byte   always 0
    timestampDelta  varlong  from the batch's baseTimestamp
    offsetDelta     varint   place in the batch
    keyLength       varint   -1 for null
    key
    valueLength     varint   -1 for null
    value
    headerCount     varint
    headers         for each: keyLength, key, valueLength, value

There are two ways to all records of a chunk, one after the other, of which the batches are slices (the same bytes):

- rows of any length are joined from their pieces (joined_rows.py);
- rows whose keys have one length and whose values have one length are copied column by column (even_rows.py).

Rows are taken in chunks of about 10,000, cut where batches end. They come in the order of the plan: the rows of a
partition lie one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import sub
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import named_rows, numbers_of
from spark_kafka_sink.records.byte_column import ByteColumn, byte_column
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns
from spark_kafka_sink.records.cutting import (
    ROWS_AT_A_TIME,
    BatchSlice,
    PartitionSlice,
    Times,
    invalid_rows,
    plan_batches,
    record_size_bounds,
    times_of,
)
from spark_kafka_sink.records.even_rows import (
    Batches,
    BatchShape,
    EvenColumns,
    Lengths,
    look_up_rows,
    store_batches,
    store_rows,
)
from spark_kafka_sink.records.header_column import LooseHeaders, RegularHeaders, encode_headers
from spark_kafka_sink.records.joined_rows import join_rows
from spark_kafka_sink.records.record_fields import Rows
from spark_kafka_sink.records.varint import counting_fields, varint_fields

__all__ = [
    "BatchSlice",
    "EncodedPiece",
    "PartitionSlice",
    "Times",
    "encode",
    "invalid_rows",
    "plan_batches",
    "record_size_bounds",
    "times_of",
]

_BYTES_AT_A_TIME = 64 << 20
"""A chunk of large records is cut earlier than one of small ones."""

np.empty(4 << 20, np.uint8)
"""Allocated and freed once: from then on glibc keeps up to twice as much for the next allocations. By default it gives
everything above 128 kB back to the system, and the columns of each chunk would be mapped page by page again: half as
much again for each record."""


class EncodedPiece(NamedTuple):
    """The records of one BatchSlice. `segment` keeps the memory that it shows alive."""

    segment: memoryview
    record_count: int
    first_offset_delta: int
    base_timestamp: int
    max_timestamp: int


def encode(columns: RecordColumns, plan: Sequence[BatchSlice], now_ms: int) -> list[EncodedPiece]:
    """One piece for each element of the plan, in its order. Rows must have passed `invalid_rows`."""
    pieces: list[EncodedPiece] = []
    for part in _chunks_of(plan):
        pieces += _encode_part(columns, part, now_ms)
    return pieces


def _chunks_of(plan: Sequence[BatchSlice]) -> Iterator[Sequence[BatchSlice]]:
    """Runs of the plan whose rows lie one after the other, of about the right size. A batch is never cut."""
    if not plan:
        return
    _, starts, stops, _, _ = zip(*plan, strict=True)
    if starts[1:] == stops[:-1] and stops[-1] - starts[0] <= ROWS_AT_A_TIME:
        yield plan
        return
    begin = 0
    for index in range(1, len(plan)):
        if plan[index].start != plan[index - 1].stop or plan[index].stop - plan[begin].start > ROWS_AT_A_TIME:
            yield plan[begin:index]
            begin = index
    yield plan[begin:]


def _encode_part(columns: RecordColumns, part: Sequence[BatchSlice], now_ms: int) -> list[EncodedPiece]:
    first, stop = part[0].start, part[-1].stop
    chunk = columns.slice(first, stop - first)
    if len(part) > 1 and chunk.memory_nbytes > _BYTES_AT_A_TIME and chunk.nbytes > _BYTES_AT_A_TIME:
        middle = len(part) // 2
        return _encode_part(columns, part[:middle], now_ms) + _encode_part(columns, part[middle:], now_ms)
    return _encode_chunk(chunk.contiguous(), part, now_ms)


def _encode_chunk(chunk: RecordColumns, part: Sequence[BatchSlice], now_ms: int) -> list[EncodedPiece]:
    _, firsts, stops, offsets, given = zip(*part, strict=True)
    batches = Batches(np.subtract(firsts, firsts[0], dtype=np.int64), list(map(sub, stops, firsts)), offsets)
    base, top, deltas = _timestamps(chunk.timestamp, given, batches, now_ms)
    data, edges = _encode_rows(chunk, batches, deltas)
    segments = [data[start:stop] for start, stop in pairwise(edges)]
    return list(named_rows(EncodedPiece, segments, batches.counts, offsets, base, top))


def _timestamps(
    column: ArrowColumn | None, given: Sequence[int | None], batches: Batches, now_ms: int
) -> tuple[list[int], list[int], list[int] | NDArray[np.int64]]:
    """For each piece its base and its highest timestamp; the deltas for each row, or for each piece as a list."""
    if column is None or column.null_count == len(column):
        base = [now_ms if b is None else b for b in given]
        return base, [now_ms] * len(base), [now_ms - b for b in base]
    times: NDArray[np.int64] = numbers_of(column, null=now_ms)
    firsts = times[batches.starts].tolist()
    base = [first if b is None else b for b, first in zip(given, firsts, strict=True)]
    top: list[int] = np.maximum.reduceat(times, batches.starts).tolist()
    return base, top, times - np.repeat(np.array(base, np.int64), batches.counts)


def _encode_rows(
    chunk: RecordColumns, batches: Batches, timestamp_deltas: list[int] | NDArray[np.int64]
) -> tuple[memoryview, list[int]]:
    """All records of a chunk, and where each batch begins and the last one ends."""
    key = None if chunk.key is None else byte_column(chunk.key)
    value = byte_column(chunk.value)
    headers = None if chunk.headers is None else encode_headers(chunk.headers)
    even_key = -1 if key is None else key.fixed_length()
    even = _even_columns(key, even_key, value, headers)
    found = None
    if even is not None and isinstance(timestamp_deltas, list):
        stored = store_batches(_groups(batches, timestamp_deltas), even)
        if stored is not None:
            return stored
        found = look_up_rows(batches, timestamp_deltas, even)
    if found is None:
        rows = _rows(batches, timestamp_deltas, chunk.num_rows)
        found = store_rows(rows, even) if even is not None else join_rows(key, even_key, value, headers, rows)
    data, at = found
    return data, [*at[batches.starts].tolist(), int(at[chunk.num_rows])]


def _groups(batches: Batches, timestamp_deltas: list[int]) -> list[tuple[BatchShape, int]]:
    """Neighbours of one shape, and how many they are."""
    shapes = zip(batches.counts, batches.first_offset_deltas, timestamp_deltas, strict=True)
    return [(BatchShape(*shape), len(list(same))) for shape, same in groupby(shapes)]


def _even_columns(
    key: ByteColumn | None, even_key: int | None, value: ByteColumn, headers: RegularHeaders | LooseHeaders | None
) -> EvenColumns | None:
    """The columns as tables, if each has one length."""
    even_value = None if even_key is None else value.fixed_length()
    if even_key is None or even_value is None or isinstance(headers, LooseHeaders) or (headers and headers.short):
        return None
    table = None if headers is None else headers.table(value.rows)
    return EvenColumns(
        np.empty((value.rows, 0), np.uint8) if key is None else key.matrix(value.rows, max(0, even_key)),
        value.matrix(value.rows, max(0, even_value)),
        table,
        Lengths(even_key, even_value, 0 if table is None else table.shape[1]),
    )


def _rows(batches: Batches, deltas: list[int] | NDArray[np.int64], total: int) -> Rows:
    """The deltas of each row, of timestamps and offsets."""
    firsts = batches.first_offset_deltas
    if not isinstance(deltas, list):
        timestamp = varint_fields(deltas)
    elif min(deltas) == max(deltas):
        timestamp = varint_fields(deltas[0])
    else:
        timestamp = varint_fields(np.repeat(np.array(deltas, np.int64), batches.counts))
    if len(firsts) == 1:
        return Rows(total, timestamp, counting_fields(firsts[0], total))
    before = np.repeat(batches.starts - np.array(firsts, np.int64), batches.counts)
    return Rows(total, timestamp, varint_fields(np.arange(total) - before))
