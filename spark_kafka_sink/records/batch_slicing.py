"""Split rows into batches, before they are encoded.

The width of a record's offset delta depends on its position in its batch, and the width of its timestamp delta on the
base timestamp of the batch. So rows are first split into batches by the sizes of their records, and then encoded.

record_sizes.py counts both deltas at their maximum widths. Here the number of records that a batch can hold and the
range of the timestamps are known. So both deltas are counted at the maximum width for these rows: in a batch of 16 kB
with 150 records of 100 bytes each offset delta counts as two bytes, although the first 64 have one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from operator import sub
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import integers_to_numpy
from spark_kafka_sink.records.columns import RecordColumns, combine_chunks
from spark_kafka_sink.records.fields import encode_varint
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.record_sizes import COMMON_TIMESTAMP_DELTA_BYTES, MAX_OFFSET_DELTA_BYTES


class PartitionSlices(NamedTuple):
    """Rows [start, stop) of each partition, and the open batch of the partition to which rows can be appended.

    `open_bytes` includes the header of the open batch. The slices are stored as columns: with thousands of partitions,
    one object for each would be most of the work of the garbage collector.
    """

    starts: Sequence[int]
    stops: Sequence[int]
    open_records: Sequence[int]
    open_bytes: Sequence[int]
    base_timestamps: Sequence[int | None]


def single_partition_slices(rows: int) -> PartitionSlices:
    """Return the slices for rows that all go to one partition without an open batch."""
    return PartitionSlices([0], [rows], [0], [HEADER_BYTES], [None])


class BatchSlices(NamedTuple):
    """Rows [start, stop) of each batch, as columns.

    `first_offset_deltas`: offset delta of the first row. It is above 0 for rows that are appended to an open batch.
    Their timestamp deltas refer to `base_timestamps`, which is None for a new batch.
    """

    partition_indexes: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]
    first_offset_deltas: Sequence[int]
    base_timestamps: Sequence[int | None]

    def part(self, first: int, stop: int) -> BatchSlices:
        """Return the slices with numbers [first, stop)."""
        selected = slice(first, stop)
        return BatchSlices(
            self.partition_indexes[selected],
            self.starts[selected],
            self.stops[selected],
            self.first_offset_deltas[selected],
            self.base_timestamps[selected],
        )


def consecutive_slices(stops: Sequence[int]) -> BatchSlices:
    """Return the slices of new batches for one partition: each begins where the one before it stops, the first at 0."""
    count = len(stops)
    return BatchSlices([0] * count, [0, *stops][:count], stops, [0] * count, [None] * count)


class TimestampRange(NamedTuple):
    """Lowest and highest timestamp of some rows, in milliseconds."""

    lowest: int
    highest: int


def find_timestamp_range(columns: RecordColumns, now_ms: int) -> TimestampRange:
    """Return the range of the timestamps of the rows. A null timestamp counts as `now_ms`."""
    column = columns.timestamp
    if column is None or column.null_count == len(column):
        return TimestampRange(now_ms, now_ms)
    times = integers_to_numpy(combine_chunks(column), null=now_ms)
    return TimestampRange(int(np.minimum.reduce(times)), int(np.maximum.reduce(times)))


def split_into_batches(
    sizes: NDArray[np.int64], slices: PartitionSlices, max_batch_bytes: int, times: TimestampRange
) -> BatchSlices:
    """Split the rows of each partition into batches of at most `max_batch_bytes`, including the header.

    `sizes`: the result of record_size_bounds. `times`: the range of the timestamps with which the rows are encoded.
    Rows are first appended to the open batch. A record that exceeds `max_batch_bytes` gets a batch of its own.
    """
    if not len(sizes):
        return consecutive_slices(())
    starts, stops, records, open_bytes, bases = slices
    sums = _cumulative_sizes(sizes, slices, max_batch_bytes, times)
    filled = sums.take(stops) - sums.take(starts) + open_bytes
    unsplit = BatchSlices(range(len(starts)), starts, stops, records, bases)
    oversized = ((filled > max_batch_bytes) | np.greater_equal(starts, stops)).nonzero()[0].tolist()
    if not oversized:  # one batch for each partition, which is usual with many partitions
        return unsplit
    parts: list[BatchSlices] = []
    for index, before in zip(oversized, [-1, *oversized], strict=False):
        parts.append(unsplit.part(before + 1, index))
        parts.append(_split_partition(index, sums, slices, max_batch_bytes))
    parts.append(unsplit.part(oversized[-1] + 1, len(starts)))
    return BatchSlices(*[[*chain.from_iterable(columns)] for columns in zip(*parts, strict=True)])


def _split_partition(index: int, sums: NDArray[np.int64], slices: PartitionSlices, max_batch_bytes: int) -> BatchSlices:
    """Split the rows of one partition."""
    ends, room = sums.data, max_batch_bytes - HEADER_BYTES
    start, stop, open_records = slices.starts[index], slices.stops[index], slices.open_records[index]
    edges = [start]
    if open_records:
        end = bisect_right(ends, ends[start] + max_batch_bytes - slices.open_bytes[index], start, stop + 1) - 1
        edges += [end] if end > start else []
    has_appended = len(edges) > 1
    while (row := edges[-1]) < stop:
        edges.append(max(row + 1, bisect_right(ends, ends[row] + room, row, stop + 1) - 1))
    count = len(edges) - 1
    first_offset_deltas = [0] * count
    base_timestamps: list[int | None] = [None] * count
    if has_appended:
        first_offset_deltas[0], base_timestamps[0] = open_records, slices.base_timestamps[index]
    return BatchSlices([index] * count, edges[:-1], edges[1:], first_offset_deltas, base_timestamps)


def _cumulative_sizes(
    sizes: NDArray[np.int64], slices: PartitionSlices, max_batch_bytes: int, times: TimestampRange
) -> NDArray[np.int64]:
    """Return the total bytes before each row, and of all rows, with deltas as wide as these rows need."""
    assumed_delta_bytes = MAX_OFFSET_DELTA_BYTES + COMMON_TIMESTAMP_DELTA_BYTES
    min_record_bytes = int(np.minimum.reduce(sizes)) - assumed_delta_bytes + 2
    max_rows = max(map(sub, slices.stops, slices.starts))
    last = max(slices.open_records) + min(max_rows, max_batch_bytes // min_record_bytes + 1)
    deltas = len(encode_varint(last)) + _max_timestamp_delta_bytes(slices, times)
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + (deltas - assumed_delta_bytes), out=ends[1:])
    return ends


def _max_timestamp_delta_bytes(slices: PartitionSlices, times: TimestampRange) -> int:
    """Return the maximum width of a timestamp delta.

    Deltas refer to the base timestamp of an open batch, or to the timestamp of the first row of a new batch.
    """
    bases = [base for base in slices.base_timestamps if base is not None]
    furthest = times.highest - min(bases, default=times.lowest), times.lowest - max(bases, default=times.highest)
    span = times.highest - times.lowest
    return max([len(encode_varint(delta)) for delta in (*furthest, span, -span)])
