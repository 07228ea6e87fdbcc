"""Splitting of rows into batches before they are encoded.

A row can be encoded only when its batch is known, because a record contains two deltas: its offset relative to the
first record of the batch, and its timestamp relative to the base timestamp of the batch. The deltas are varints, so the
exact size of a record also depends on the batch. Rows are therefore split by upper bounds of their sizes.

record_sizes.py computes bounds that hold in any batch, with both deltas at their maximum width. This module knows how
many records fit into a batch, and the range of their timestamps. It tightens the bounds to the maximum width that the
deltas of these rows need. For example, in a batch of 16 kB with 150 records of 100 bytes, each offset delta counts as
two bytes, although the first 64 need only one.

The *open batch* of a partition is its batch that is not full yet. More rows can be appended to it.
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

_MIN_DELTA_BYTES = 2
"""The minimum size of both deltas together, one byte each."""


class PartitionSlices(NamedTuple):
    """The rows [start, stop) of each partition, and the state of the partition's open batch.

    Each field has one element per partition. There is no object per partition, because with thousands of partitions,
    the garbage collector would spend most of its time on these objects.
    """

    starts: Sequence[int]
    stops: Sequence[int]
    open_record_counts: Sequence[int]
    """The number of records in the open batch; 0 if there is none."""
    open_batch_bytes: Sequence[int]
    """The size of the open batch, header included; HEADER_BYTES if there is none."""
    base_timestamps: Sequence[int | None]
    """The base timestamp of the open batch; None if there is none."""


def build_single_partition_slices(row_count: int) -> PartitionSlices:
    """Return the slices of rows that all go to one partition, which has no open batch."""
    return PartitionSlices(
        starts=[0], stops=[row_count], open_record_counts=[0], open_batch_bytes=[HEADER_BYTES], base_timestamps=[None]
    )


class BatchSlices(NamedTuple):
    """The rows [start, stop) that go to each batch. Each field has one element per batch."""

    partition_indices: Sequence[int]
    """The index in PartitionSlices of the batch's partition."""
    starts: Sequence[int]
    stops: Sequence[int]
    first_offset_deltas: Sequence[int]
    """The offset delta of the slice's first row. It is above 0 if the slice is appended to an open batch."""
    base_timestamps: Sequence[int | None]
    """The base timestamp of the open batch, from which timestamp deltas are computed; None for a new batch."""

    def select(self, start: int, stop: int) -> BatchSlices:
        """Return the slices at the positions [start, stop)."""
        slice_range = slice(start, stop)
        return BatchSlices(
            self.partition_indices[slice_range],
            self.starts[slice_range],
            self.stops[slice_range],
            self.first_offset_deltas[slice_range],
            self.base_timestamps[slice_range],
        )


def build_consecutive_slices(stops: Sequence[int]) -> BatchSlices:
    """Return slices of one partition for new batches. Each slice starts where the previous one stops.

    `stops`: where each slice stops, in ascending order. The first slice starts at row 0.
    """
    batch_count = len(stops)
    return BatchSlices([0] * batch_count, [0, *stops][:batch_count], stops, [0] * batch_count, [None] * batch_count)


class TimestampRange(NamedTuple):
    """The lowest and the highest timestamp of some rows, in milliseconds since 1970."""

    lowest: int
    highest: int


def find_timestamp_range(columns: RecordColumns, now_ms: int) -> TimestampRange:
    """Return the range of the rows' timestamps. A row without a timestamp counts as having the timestamp `now_ms`."""
    column = columns.timestamp
    if column is None or column.null_count == len(column):
        return TimestampRange(now_ms, now_ms)
    times = integers_to_numpy(combine_chunks(column), null=now_ms)
    return TimestampRange(int(np.minimum.reduce(times)), int(np.maximum.reduce(times)))


def split_into_batches(
    sizes: NDArray[np.int64], slices: PartitionSlices, max_batch_bytes: int, timestamp_range: TimestampRange
) -> BatchSlices:
    """Split the rows of each partition into batches of at most `max_batch_bytes`, including the batch header.

    The first rows of a partition are appended to its open batch until the batch is full. A row that exceeds
    `max_batch_bytes` gets a batch of its own.

    `sizes`: the maximum size of each row (compute_record_size_bounds).
    `timestamp_range`: the range of the rows' timestamps.
    """
    if not len(sizes):
        return build_consecutive_slices(())
    starts, stops = slices.starts, slices.stops
    cumulative_bytes = _compute_cumulative_sizes(sizes, slices, max_batch_bytes, timestamp_range)
    batch_bytes = cumulative_bytes.take(stops) - cumulative_bytes.take(starts) + slices.open_batch_bytes
    # One slice per partition. For a partition whose rows fit into one batch, this is the result.
    unsplit = BatchSlices(range(len(starts)), starts, stops, slices.open_record_counts, slices.base_timestamps)
    # Partitions without rows must have no slices. _split_partition returns none for them, so they count as split, too.
    exceeds_batch = batch_bytes > max_batch_bytes
    has_no_rows = np.greater_equal(starts, stops)
    split_indices = (exceeds_batch | has_no_rows).nonzero()[0].tolist()
    if not split_indices:  # one batch per partition, the usual case with many partitions
        return unsplit
    # Replace the slice of each split partition by its slices. The runs of slices in between are copied as they are. For
    # example, if only the third of five partitions is split: unsplit[0:2], the slices of the third, unsplit[3:5].
    runs: list[BatchSlices] = []
    run_start = 0
    for split_index in split_indices:
        runs.append(unsplit.select(run_start, split_index))
        runs.append(_split_partition(split_index, cumulative_bytes, slices, max_batch_bytes))
        run_start = split_index + 1
    runs.append(unsplit.select(run_start, len(starts)))
    return _concatenate_slices(runs)


def _concatenate_slices(runs: Sequence[BatchSlices]) -> BatchSlices:
    """Return the slices of all runs, in their order."""
    columns = [list(chain.from_iterable(parts)) for parts in zip(*runs, strict=True)]
    return BatchSlices(*columns)


def _split_partition(
    partition_index: int, cumulative_bytes: NDArray[np.int64], slices: PartitionSlices, max_batch_bytes: int
) -> BatchSlices:
    """Split the rows of one partition into batches.

    If the partition has an open batch, the first slice fills the space that is left there, provided that a row fits.
    The slice's first offset delta is then the number of records that are already in the batch.

    `cumulative_bytes`: the total size of the rows before each row of all partitions (_compute_cumulative_sizes).
    """
    # The rows [i, j) have cumulative_view[j] - cumulative_view[i] bytes. To fill a batch, `bisect_right(...) - 1` finds
    # the last row index whose cumulative size is at most the limit: the batch stops there. For example, it stops at row
    # 2 if the cumulative sizes are [0, 40, 80, 120] and the limit is 100. `stop` itself is a possible result, so the
    # search ends before `stop + 1`.
    cumulative_view = cumulative_bytes.data  # indexing a memoryview is faster than indexing an array
    max_body_bytes = max_batch_bytes - HEADER_BYTES
    start, stop = slices.starts[partition_index], slices.stops[partition_index]
    open_record_count = slices.open_record_counts[partition_index]
    boundaries = [start]
    if open_record_count:
        # `open_batch_bytes` includes the batch's header, so subtract it from the limit that includes the header, too.
        open_batch_limit = cumulative_view[start] + max_batch_bytes - slices.open_batch_bytes[partition_index]
        open_batch_stop = bisect_right(cumulative_view, open_batch_limit, start, stop + 1) - 1
        if open_batch_stop > start:
            boundaries.append(open_batch_stop)
    appends_to_open_batch = len(boundaries) > 1
    while (row := boundaries[-1]) < stop:
        batch_stop = bisect_right(cumulative_view, cumulative_view[row] + max_body_bytes, row, stop + 1) - 1
        boundaries.append(max(row + 1, batch_stop))  # a record that exceeds the limit gets a batch of its own
    batch_count = len(boundaries) - 1
    first_offset_deltas = [0] * batch_count
    base_timestamps: list[int | None] = [None] * batch_count
    if appends_to_open_batch:
        first_offset_deltas[0] = open_record_count
        base_timestamps[0] = slices.base_timestamps[partition_index]
    return BatchSlices(
        [partition_index] * batch_count, boundaries[:-1], boundaries[1:], first_offset_deltas, base_timestamps
    )


def _compute_cumulative_sizes(
    sizes: NDArray[np.int64], slices: PartitionSlices, max_batch_bytes: int, timestamp_range: TimestampRange
) -> NDArray[np.int64]:
    """Return the total size of the rows before each row, followed by the total size of all rows.

    Deltas are counted at the maximum width that these rows need.

    `sizes`: the maximum size of each row (compute_record_size_bounds).
    """
    # If compute_record_size_bounds has assumed more than COMMON_TIMESTAMP_DELTA_BYTES, the results are still upper
    # bounds, but less tight.
    assumed_delta_bytes = MAX_OFFSET_DELTA_BYTES + COMMON_TIMESTAMP_DELTA_BYTES
    min_record_bytes = int(np.minimum.reduce(sizes)) - assumed_delta_bytes + _MIN_DELTA_BYTES
    max_rows = max(map(sub, slices.stops, slices.starts))
    # A batch gets at most all rows of a partition, and at most as many as fit if each row has the minimum size.
    max_offset_delta = max(slices.open_record_counts) + min(max_rows, max_batch_bytes // min_record_bytes + 1)
    delta_bytes = len(encode_varint(max_offset_delta)) + _compute_max_timestamp_delta_bytes(slices, timestamp_range)
    cumulative_bytes = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + (delta_bytes - assumed_delta_bytes), out=cumulative_bytes[1:])
    return cumulative_bytes


def _compute_max_timestamp_delta_bytes(slices: PartitionSlices, timestamp_range: TimestampRange) -> int:
    """Return the maximum width of a timestamp delta in bytes.

    A delta is relative to the base timestamp of the open batch or, in a new batch, to the timestamp of its first row.
    """
    lowest, highest = timestamp_range
    # In a new batch, a delta is between -span and span. In an open batch, the base may be outside of the range.
    open_bases = [base for base in slices.base_timestamps if base is not None]
    max_delta = highest - min(open_bases, default=lowest)
    min_delta = lowest - max(open_bases, default=highest)
    span = highest - lowest
    return max([len(encode_varint(delta)) for delta in (max_delta, min_delta, span, -span)])
