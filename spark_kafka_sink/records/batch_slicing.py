"""Where batches begin and end, decided before a byte is encoded.

The width of a record's offset delta depends on its place in its batch, the width of its timestamp delta on the batch's
first timestamp. So batches are cut first, by the sizes of records, and encoded afterwards.

Those sizes count both deltas as wide as they can ever be. When rows are cut, it is known how many records a batch can
hold, and how far apart their times are. So both deltas are counted as wide as the widest of these rows can be: a batch
of 16 kB with 150 records of 100 bytes counts two bytes for each offset delta, though the first 64 take one.
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
from spark_kafka_sink.records.record_sizes import OFFSET_DELTA_BYTES, TIMESTAMP_DELTA_BYTES


class PartitionSlices(NamedTuple):
    """Column by column: rows [start, stop) go to one partition. The others describe a batch of it that is open and can
    take more; `open_bytes` is what that batch has so far, its header included.

    Slices are columns, here and below: with thousands of partitions an object for each is what the garbage collector
    would look at most.
    """

    starts: Sequence[int]
    stops: Sequence[int]
    open_records: Sequence[int]
    open_bytes: Sequence[int]
    base_timestamps: Sequence[int | None]


def single_partition_slices(rows: int) -> PartitionSlices:
    """All rows go to one partition, in which no batch is open."""
    return PartitionSlices([0], [rows], [0], [HEADER_BYTES], [None])


class BatchSlices(NamedTuple):
    """Column by column: rows [start, stop) go into one batch, the first of them as number `first_offset_delta`.

    That is above 0 where the rows are appended to the open batch, whose `base_timestamp` they count from.
    """

    partition_indexes: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]
    first_offset_deltas: Sequence[int]
    base_timestamps: Sequence[int | None]

    def part(self, first: int, stop: int) -> BatchSlices:
        """Those from number `first` on, up to `stop`."""
        ours = slice(first, stop)
        return BatchSlices(
            self.partition_indexes[ours],
            self.starts[ours],
            self.stops[ours],
            self.first_offset_deltas[ours],
            self.base_timestamps[ours],
        )


def consecutive_slices(stops: Sequence[int]) -> BatchSlices:
    """Return the slices of new batches for one partition: each begins where the one before it stops, the first at 0."""
    count = len(stops)
    return BatchSlices([0] * count, [0, *stops][:count], stops, [0] * count, [None] * count)


class TimestampRange(NamedTuple):
    """Between which times, in milliseconds, those of some rows are."""

    lowest: int
    highest: int


def find_timestamp_range(columns: RecordColumns, now_ms: int) -> TimestampRange:
    """The range of the rows' times. Rows without a time count as `now_ms`."""
    column = columns.timestamp
    if column is None or column.null_count == len(column):
        return TimestampRange(now_ms, now_ms)
    times = integers_to_numpy(combine_chunks(column), null=now_ms)
    return TimestampRange(int(np.minimum.reduce(times)), int(np.maximum.reduce(times)))


def split_into_batches(
    sizes: NDArray[np.int64], slices: PartitionSlices, batch_bytes_max: int, times: TimestampRange
) -> BatchSlices:
    """Cut the rows of each partition into batches of at most `batch_bytes_max`, header included.

    `sizes` are those of record_size_bounds, `times` those that the rows are encoded with. An open batch is filled
    first. A record that is larger than a batch gets one of its own.
    """
    if not len(sizes):
        return consecutive_slices(())
    starts, stops, records, taken, bases = slices
    sums = _ends(sizes, slices, batch_bytes_max, times)
    filled = sums.take(stops) - sums.take(starts) + taken
    uncut = BatchSlices(range(len(starts)), starts, stops, records, bases)
    to_cut = ((filled > batch_bytes_max) | np.greater_equal(starts, stops)).nonzero()[0].tolist()
    if not to_cut:  # one batch for each partition, as a rule where there are many
        return uncut
    parts: list[BatchSlices] = []
    for index, before in zip(to_cut, [-1, *to_cut], strict=False):
        parts.append(uncut.part(before + 1, index))
        parts.append(_cut_partition(index, sums, slices, batch_bytes_max))
    parts.append(uncut.part(to_cut[-1] + 1, len(starts)))
    return BatchSlices(*[[*chain.from_iterable(columns)] for columns in zip(*parts, strict=True)])


def _cut_partition(index: int, sums: NDArray[np.int64], slices: PartitionSlices, batch_bytes_max: int) -> BatchSlices:
    """Cut the rows of one partition."""
    ends, room = sums.data, batch_bytes_max - HEADER_BYTES
    start, stop, open_records = slices.starts[index], slices.stops[index], slices.open_records[index]
    edges = [start]
    if open_records:
        end = bisect_right(ends, ends[start] + batch_bytes_max - slices.open_bytes[index], start, stop + 1) - 1
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


def _ends(
    sizes: NDArray[np.int64], slices: PartitionSlices, batch_bytes_max: int, times: TimestampRange
) -> NDArray[np.int64]:
    """For each row the bytes before it, and those of all: sums of the sizes, with the deltas of these rows."""
    counted = OFFSET_DELTA_BYTES + TIMESTAMP_DELTA_BYTES
    smallest = int(np.minimum.reduce(sizes)) - counted + 2
    rows_max = max(map(sub, slices.stops, slices.starts))
    last = max(slices.open_records) + min(rows_max, batch_bytes_max // smallest + 1)
    deltas = len(encode_varint(last)) + _widest_timestamp_delta_bytes(slices, times)
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + (deltas - counted), out=ends[1:])
    return ends


def _widest_timestamp_delta_bytes(slices: PartitionSlices, times: TimestampRange) -> int:
    """The width of the widest: they count from the bases of open batches, and new batches begin at a row's time."""
    bases = [base for base in slices.base_timestamps if base is not None]
    furthest = times.highest - min(bases, default=times.lowest), times.lowest - max(bases, default=times.highest)
    apart = times.highest - times.lowest
    return max([len(encode_varint(delta)) for delta in (*furthest, apart, -apart)])
