"""Encoder of columns as the records of record batches (format v2), without a loop over records.

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

The rows come in *slices* (batch_slicing.py). A slice consists of the rows that go to one batch. The records of all
slices are written one after the other to buffers of a few thousand records (joined_rows.py). A slice is never split
between buffers, so its records are contiguous, and can be compressed or sent without a copy.
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
"""Target size of a buffer. A buffer also has at most MAX_CHUNK_ROWS records.

A buffer is released only after all its batches have been delivered, so large records must not make it much larger.
Buffers with three times as many small records reduced the CPU time per record by 3%, but exceeded the memory limit.
"""
_ATTRIBUTES = b"\0"
"""The attributes of a record, which Kafka does not use."""
_NO_HEADERS = encode_varint(0)


class EncodedSlices(NamedTuple):
    """The encoded records of consecutive slices, in one buffer. All fields but `data` have one element per slice."""

    data: memoryview
    """The buffer."""
    byte_starts: Sequence[int]
    """The position in the buffer at which the slice's records start."""
    sizes: Sequence[int]
    """The size of the slice's records in bytes."""
    record_counts: Sequence[int]
    base_timestamps: Sequence[int]
    max_timestamps: Sequence[int]

    def get_segment(self, slice_index: int) -> memoryview:
        """Return the encoded records of one slice, as a view that keeps the whole buffer alive."""
        start = self.byte_starts[slice_index]
        return self.data[start : start + self.sizes[slice_index]]


def encode_records(
    columns: RecordColumns, slices: BatchSlices, now_ms: int, order: NDArray[np.int32] | None = None
) -> list[EncodedSlices]:
    """Encode all rows, and return one EncodedSlices per buffer.

    `columns`: the rows, without any that `find_invalid_rows` reports.
    `slices`: the rows of each batch.
    `now_ms`: the time on the wall clock, which is the timestamp of rows that have none.
    `order`: the indices of all rows in the order of the slices; None if the columns already have this order.
    """
    starts, stops = slices.starts, slices.stops
    if not starts:
        return []
    row_counts: NDArray[np.int64] = np.subtract(stops, starts)
    # If a slice is appended to an open batch, it uses the batch's base timestamp. Any other slice starts a batch, and
    # the timestamp of its first row becomes the base timestamp.
    if columns.timestamp is None:
        base_timestamps = [now_ms if base is None else base for base in slices.base_timestamps]
        max_timestamps = [now_ms] * len(base_timestamps)
        timestamp_deltas = np.subtract(now_ms, base_timestamps).repeat(row_counts)
    else:
        times = _read_timestamps(columns.timestamp, now_ms, order)
        base_timestamps = [
            first_timestamp if base is None else base
            for first_timestamp, base in zip(times[[*starts]].tolist(), slices.base_timestamps, strict=True)
        ]
        max_timestamps = np.maximum.reduceat(times, starts).tolist()
        timestamp_deltas = times - np.repeat(base_timestamps, row_counts)
    # Number all rows, then shift the numbers of each slice, so that they begin at the slice's first offset delta
    # instead of at the index of its first row. For example, if the slice of the rows [2, 5) is appended to an open
    # batch of 7 records, its numbers 2, 3, 4 become 7, 8, 9.
    offset_deltas = np.arange(columns.num_rows, dtype=np.int32)
    offset_deltas -= np.repeat(np.subtract(starts, slices.first_offset_deltas).astype(np.int32), row_counts)
    records = _build_records(columns, timestamp_deltas, offset_deltas, order)
    buffers: list[EncodedSlices] = []
    slice_stops, record_counts = _find_buffer_stops(columns, stops), row_counts.tolist()
    row_stops = [stops[slice_stop - 1] for slice_stop in slice_stops]
    # Each buffer holds the slices [start, stop). `row_offsets` are the positions in the buffer at which its records
    # start, followed by the end of the last record.
    for (start, stop), (data, row_offsets) in zip(pairwise([0, *slice_stops]), records.join(row_stops), strict=True):
        slice_range = slice(start, stop)
        stops_in_buffer = np.subtract(stops[slice_range], starts[start])
        slice_offsets = np.zeros(1 + stop - start, np.int64)
        slice_offsets[1:] = row_offsets.take(stops_in_buffer)
        buffers.append(
            EncodedSlices(
                data=memoryview(data),
                byte_starts=slice_offsets[:-1].tolist(),
                sizes=np.diff(slice_offsets).tolist(),
                record_counts=record_counts[slice_range],
                base_timestamps=base_timestamps[slice_range],
                max_timestamps=max_timestamps[slice_range],
            )
        )
    return buffers


def _find_buffer_stops(columns: RecordColumns, row_stops: Sequence[int]) -> list[int]:
    """Group consecutive slices into buffers. Return, for each buffer, the index after its last slice.

    `row_stops`: the index after the last row of each slice.
    """
    rows_per_target = TARGET_BUFFER_BYTES * columns.num_rows // max(1, columns.nbytes)  # for rows of the average size
    max_rows = min(MAX_CHUNK_ROWS, rows_per_target)
    slice_stops = [0]
    while slice_stops[-1] < len(row_stops):
        start = slice_stops[-1]
        first_row = row_stops[start - 1] if start else 0
        buffer_stop = bisect_right(row_stops, first_row + max_rows, start)
        slice_stops.append(max(start + 1, buffer_stop))  # a slice that exceeds the limit gets a buffer of its own
    return slice_stops[1:]


def _read_timestamps(column: ArrowColumn, now_ms: int, order: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Return the timestamps in milliseconds, in the order of the slices. A null timestamp becomes `now_ms`."""
    times = integers_to_numpy(combine_chunks(column), null=now_ms)
    return times if order is None else times.take(order)


def _build_records(
    columns: RecordColumns,
    timestamp_deltas: NDArray[np.int64],
    offset_deltas: NDArray[np.int32],
    order: NDArray[np.int32] | None,
) -> JoinedRowsBuilder:
    """Return a builder with the fields of all records.

    The deltas must be in the order of the slices. The columns need not be, if `order` is passed.
    """
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
    records.prepend_lengths()  # the length comes first in a record, but depends on all other fields
    return records


def _read_byte_columns(column: ArrowColumn) -> list[ByteColumn]:
    return [read_byte_column(chunk) for chunk in list_chunks(column)]
