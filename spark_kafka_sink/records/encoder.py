"""Encoder of columns to the records of record batches (format v2), without a loop over records.

    length          varint   bytes after this field
    attributes      1 byte   always 0
    timestampDelta  varlong  from the batch's baseTimestamp
    offsetDelta     varint   position in the batch
    keyLength       varint   -1 for null
    key
    valueLength     varint   -1 for null
    value
    headerCount     varint
    headers         for each: keyLength, key, valueLength, value

All records are encoded one after the other (joined_rows.py), in the order of their batches. A batch is a slice of a
buffer with some thousand records, which ends at the end of a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy
from spark_kafka_sink.records.batch_slicing import BatchSlices
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.columns import MAX_CHUNK_ROWS, ArrowColumn, RecordColumns, combine_chunks, list_chunks
from spark_kafka_sink.records.fields import encode_varint
from spark_kafka_sink.records.header_column import read_header_column
from spark_kafka_sink.records.joined_rows import JoinedRowsBuilder

TARGET_BUFFER_BYTES = 4 << 20
"""Target size of a buffer, with at most MAX_CHUNK_ROWS records.

A buffer is released only after all its batches were delivered, so buffers with large records have fewer of them. With
three times as many small records in a buffer, a record costs 3 % less, but memory exceeded its bound.
"""
_ATTRIBUTES = b"\0"
_NO_HEADERS = encode_varint(0)


class EncodedSlices(NamedTuple):
    """Encoded records of consecutive batch slices in one buffer, as columns.

    Slice i has `sizes[i]` bytes from `begins[i]` on.
    """

    data: memoryview
    begins: Sequence[int]
    sizes: Sequence[int]
    record_counts: Sequence[int]
    base_timestamps: Sequence[int]
    max_timestamps: Sequence[int]

    def segment(self, number: int) -> memoryview:
        """Return the bytes of one slice as a view, which keeps the buffer alive."""
        return self.data[self.begins[number] : self.begins[number] + self.sizes[number]]


def encode_records(
    columns: RecordColumns, slices: BatchSlices, now_ms: int, order: NDArray[np.int32] | None = None
) -> list[EncodedSlices]:
    """Encode all rows, one result for each buffer.

    `order`: the row indices in the order of the slices, which must include all rows; None for the given order. Rows
    that `find_invalid_rows` returns must not be passed. Rows without a timestamp get `now_ms`.
    """
    _, starts, stops, first_deltas, bases = slices
    if not starts:
        return []
    counts: NDArray[np.int64] = np.subtract(stops, starts)
    if columns.timestamp is None:
        base, highest = [now_ms if base is None else base for base in bases], [now_ms] * len(bases)
        timestamp_deltas = np.subtract(now_ms, base).repeat(counts)
    else:
        times = _read_timestamps(columns.timestamp, now_ms, order)
        base = [first if base is None else base for first, base in zip(times[[*starts]].tolist(), bases, strict=True)]
        timestamp_deltas, highest = times - np.repeat(base, counts), np.maximum.reduceat(times, starts).tolist()
    offset_deltas = np.arange(columns.num_rows, dtype=np.int32)
    offset_deltas -= np.repeat(np.subtract(starts, first_deltas).astype(np.int32), counts)
    records = _build_records(columns, timestamp_deltas, offset_deltas, order)
    encoded: list[EncodedSlices] = []
    ends, numbers = _find_buffer_ends(columns, stops), counts.tolist()
    for (begin, end), (data, edges) in zip(
        pairwise([0, *ends]), records.join([stops[end - 1] for end in ends]), strict=True
    ):
        bounds = np.zeros(1 + end - begin, np.int64)
        bounds[1:] = edges.take(np.subtract(stops[begin:end], starts[begin]))
        begins, sizes = bounds[:-1].tolist(), np.diff(bounds).tolist()
        selected = slice(begin, end)
        encoded.append(
            EncodedSlices(memoryview(data), begins, sizes, numbers[selected], base[selected], highest[selected])
        )
    return encoded


def _find_buffer_ends(columns: RecordColumns, stops: Sequence[int]) -> list[int]:
    """Group consecutive slices into buffers. Return, for each buffer, the number of the slice after its last one."""
    max_rows = min(MAX_CHUNK_ROWS, TARGET_BUFFER_BYTES * columns.num_rows // max(1, columns.nbytes))
    ends = [0]
    while ends[-1] < len(stops):
        begin = ends[-1]
        first = stops[begin - 1] if begin else 0
        ends.append(max(begin + 1, bisect_right(stops, first + max_rows, begin)))
    return ends[1:]


def _read_timestamps(column: ArrowColumn, now_ms: int, order: NDArray[np.int32] | None) -> NDArray[np.int64]:
    times = integers_to_numpy(combine_chunks(column), null=now_ms)
    return times if order is None else times.take(order)


def _build_records(
    columns: RecordColumns,
    timestamp_deltas: NDArray[np.int64],
    offset_deltas: NDArray[np.int32],
    order: NDArray[np.int32] | None,
) -> JoinedRowsBuilder:
    records = JoinedRowsBuilder(columns.num_rows, order)
    records.add_constant(_ATTRIBUTES)
    records.add_varints(timestamp_deltas)
    records.add_varints(offset_deltas)
    records.add_length_prefixed(None if columns.key is None else _read_byte_columns(columns.key))
    records.add_length_prefixed(_read_byte_columns(columns.value))
    headers = None if columns.headers is None else read_header_column(combine_chunks(columns.headers))
    if headers is None or not len(headers.keys):
        records.add_constant(_NO_HEADERS)
    else:
        records.add_varints(headers.counts if order is None else headers.counts.take(order))
        records.add_payloads([headers.encode()])
    records.prepend_lengths()
    return records


def _read_byte_columns(column: ArrowColumn) -> list[ByteColumn]:
    return [read_byte_column(piece) for piece in list_chunks(column)]
