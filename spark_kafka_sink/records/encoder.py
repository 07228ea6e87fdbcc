"""Columns to the records section of record batches (format v2). No loop over records.

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

All records of a chunk are encoded one after the other (joined_rows.py); a batch is a slice of them. So rows come in the
order of their batches, and a chunk ends where a batch ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import byte_column, encode_varint, named_rows, numbers_of
from spark_kafka_sink.records.columns import ROWS_AT_A_TIME, ArrowColumn, RecordColumns
from spark_kafka_sink.records.cutting import BatchSlice
from spark_kafka_sink.records.joined_rows import JoinedRows, header_column

BYTES_AT_A_TIME = 4 << 20
"""A chunk of large records has fewer rows: it is copied twice, and should stay in the processor's cache between."""


_ATTRIBUTES = b"\0"
_NO_HEADERS = encode_varint(0)


class EncodedSlice(NamedTuple):
    """The records of one BatchSlice. `segment` keeps the memory that it shows alive."""

    segment: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int


def encode(columns: RecordColumns, slices: Sequence[BatchSlice], now_ms: int) -> list[EncodedSlice]:
    """Encode the rows of each slice. Rows must have passed `invalid_rows`; those without a timestamp get `now_ms`."""
    encoded: list[EncodedSlice] = []
    for chunk in _chunks(columns, slices):
        first, stop = chunk[0].start, chunk[-1].stop
        encoded += _encode_chunk(columns.slice(first, stop - first).contiguous(), chunk, now_ms)
    return encoded


def _chunks(columns: RecordColumns, slices: Sequence[BatchSlice]) -> Iterator[Sequence[BatchSlice]]:
    """Neighbouring slices with about as many rows as are worked on at a time. A slice is never cut."""
    if not slices:
        return
    rows_max = min(ROWS_AT_A_TIME, BYTES_AT_A_TIME * columns.num_rows // max(1, columns.nbytes))
    _, starts, stops, _, _ = zip(*slices, strict=True)
    begin, first = 0, starts[0]
    for index, (before, start, stop) in enumerate(zip(stops, starts[1:], stops[1:], strict=False), 1):
        if start != before or stop - first > rows_max:
            yield slices[begin:index]
            begin, first = index, start
    yield slices[begin:]


def _encode_chunk(chunk: RecordColumns, slices: Sequence[BatchSlice], now_ms: int) -> list[EncodedSlice]:
    _, starts, stops, first_deltas, bases = zip(*slices, strict=True)
    firsts: NDArray[np.int64] = np.subtract(starts, starts[0])
    counts: NDArray[np.int64] = np.subtract(stops, starts)
    times = _times(chunk.timestamp, chunk.num_rows, now_ms)
    base = [first if base is None else base for first, base in zip(times[firsts].tolist(), bases, strict=True)]
    timestamp_deltas = times - np.repeat(base, counts)
    offset_deltas = np.arange(chunk.num_rows, dtype=np.int32)
    offset_deltas -= np.repeat((firsts - first_deltas).astype(np.int32), counts)
    data, edges = _encode_rows(chunk, timestamp_deltas, offset_deltas)
    view = memoryview(data)
    segments = [view[start:stop] for start, stop in pairwise([*edges[firsts].tolist(), int(edges[-1])])]
    highest = np.maximum.reduceat(times, firsts).tolist()
    return list(named_rows(EncodedSlice, segments, counts.tolist(), base, highest))


def _times(column: ArrowColumn | None, rows: int, now_ms: int) -> NDArray[np.int64]:
    return np.full(rows, now_ms) if column is None else numbers_of(column, null=now_ms)


def _encode_rows(
    chunk: RecordColumns, timestamp_deltas: NDArray[np.int64], offset_deltas: NDArray[np.int32]
) -> tuple[pa.Buffer, NDArray[np.int32]]:
    """All records of a chunk, and where each begins and the last one ends."""
    records = JoinedRows(chunk.num_rows)
    records.add_constant(_ATTRIBUTES)
    records.add_numbers(timestamp_deltas)
    records.add_numbers(offset_deltas)
    records.add_bytes(None if chunk.key is None else byte_column(chunk.key))
    records.add_bytes(byte_column(chunk.value))
    headers = None if chunk.headers is None else header_column(chunk.headers)
    if headers is None or not len(headers.keys):
        records.add_constant(_NO_HEADERS)
    else:
        records.add_numbers(headers.counts)
        records.add_payloads(headers.encoded())
    records.add_length_in_front()
    return records.join()
