"""Where batches begin and end, decided before a byte is encoded.

The width of a record's offset delta depends on its place in its batch, the width of its timestamp delta on the batch's
first timestamp. So batches are cut first, by the sizes of records, and encoded afterwards.

Those sizes count both deltas as wide as they can ever be. When rows are cut, it is known how many records a batch can
hold, and how far apart their times are. So both deltas are counted as wide as the widest of these rows can be: a batch
of 16 kB with 150 records of 100 bytes counts two bytes for each offset delta, though the first 64 take one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import byte_sizes, numbers_of
from spark_kafka_sink.records.columns import (
    BEYOND_LONG,
    NO_TIMESTAMP,
    ROWS_AT_A_TIME,
    ArrowColumn,
    RecordColumns,
    one_array,
)
from spark_kafka_sink.records.fields import encode_varint
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.joined_rows import JOINED_BYTES_MAX, header_column, rows_with_bad_headers

# How large each record becomes at most, and which rows no broker would take.
#
# A record's exact size depends on its place in a batch: on the widths of its two deltas. So a size is an upper bound
# that holds at any place. Key, value and headers are counted exactly, lengths and deltas at their widest. Memory is
# reserved by these sizes, too large records are refused by them, and batches are cut by them (cutting.py, which knows
# more of the deltas).


OFFSET_DELTA_BYTES = 4
"""Enough for 134 million records in one batch."""
TIMESTAMP_DELTA_BYTES = 6
_TIMESTAMP_DELTA_BYTES_WORST = 10
_COMMON_TIMES = (1 << 41) - 1
"""Between two times from 1970 to 2039, or none (-1), the delta has at most 6 bytes."""
_LAST_YEAR = 292_278_994
"""The last one whose milliseconds since 1970 are a signed number of 64 bits, as a record has them."""
_ATTRIBUTES_BYTES = 1


class InvalidRows(NamedTuple):
    """Rows that no broker would take, and why."""

    rows: NDArray[np.int64]
    reason: str


def invalid_rows(columns: RecordColumns) -> list[InvalidRows]:
    """The rows that must not be encoded. Positions ascend within each reason; a row may have several."""
    found: list[InvalidRows] = []
    if columns.timestamp is not None:
        times = numbers_of(one_array(columns.timestamp))
        if np.minimum.reduce(times, initial=NO_TIMESTAMP) < NO_TIMESTAMP:
            late = times == BEYOND_LONG
            early = (times < NO_TIMESTAMP) & ~late
            reasons = (
                (early, "the timestamp is before 1970"),
                (late, f"the timestamp is after the year {_LAST_YEAR:,}"),
            )
            found += [InvalidRows(np.nonzero(wrong)[0], reason) for wrong, reason in reasons if wrong.any()]
    if columns.headers is not None:
        bad = _over_chunks(columns.headers, rows_with_bad_headers)
        if len(bad):
            found.append(InvalidRows(bad, "a header has no key"))
    if columns.memory_nbytes > JOINED_BYTES_MAX:
        too_large = np.nonzero(record_size_bounds(columns) > JOINED_BYTES_MAX)[0]
        if len(too_large):
            found.append(InvalidRows(too_large, "the record is larger than 2 GiB, more than a batch can hold"))
    return found


def record_size_bounds(columns: RecordColumns) -> NDArray[np.int64]:
    """For each row, the bytes that it takes in a batch at most, wherever it stands in it.

    Every length is counted as wide as the longest of its chunk: a byte too much here and there costs nothing, while
    exact widths would cost more than all the rest of the cutting.
    """
    deltas = OFFSET_DELTA_BYTES + _timestamp_delta_bytes(columns.timestamp)
    bounds = [_size_bounds(chunk, deltas) for chunk in columns.chunks(ROWS_AT_A_TIME)]
    return bounds[0] if len(bounds) == 1 else np.concatenate([np.empty(0, np.int64), *bounds])


def _size_bounds(chunk: RecordColumns, deltas: int) -> NDArray[np.int64]:
    """For each record its bytes at most, of which both its deltas (offset and timestamp) are `deltas`."""
    sizes = byte_sizes(chunk.value)
    beside = _ATTRIBUTES_BYTES + _width_of_longest(sizes)
    if chunk.key is None:
        beside += 1
    else:
        keys = byte_sizes(chunk.key)
        beside += _width_of_longest(keys)
        sizes += keys
    if chunk.headers is None:
        beside += 1
    else:
        sizes += _header_bytes(chunk.headers)
    largest = int(np.maximum.reduce(sizes, initial=0)) + beside + OFFSET_DELTA_BYTES + _TIMESTAMP_DELTA_BYTES_WORST
    sizes += beside + deltas + len(encode_varint(largest))
    return sizes


def _width_of_longest(numbers: NDArray[np.int64]) -> int:
    return len(encode_varint(int(np.maximum.reduce(numbers, initial=0))))


def _header_bytes(array: pa.Array) -> NDArray[np.int64]:
    headers = header_column(array)
    keys, values = byte_sizes(headers.keys), byte_sizes(headers.values)
    each = keys + values + (_width_of_longest(keys) + _width_of_longest(values))
    before: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    return _width_of_longest(headers.counts) + before[headers.starts[1:]] - before[headers.starts[:-1]]


def _timestamp_delta_bytes(timestamp: ArrowColumn | None) -> int:
    if timestamp is None:
        return TIMESTAMP_DELTA_BYTES
    times = numbers_of(one_array(timestamp))  # null is "now" and counts as 0, which is as common
    lowest, highest = np.minimum.reduce(times, initial=0), np.maximum.reduce(times, initial=0)
    common = lowest >= NO_TIMESTAMP and highest < _COMMON_TIMES
    return TIMESTAMP_DELTA_BYTES if common else _TIMESTAMP_DELTA_BYTES_WORST


def _over_chunks(column: ArrowColumn, check: Callable[[pa.Array], NDArray[np.int64]]) -> NDArray[np.int64]:
    if isinstance(column, pa.Array):
        return check(column)
    found, before = [np.zeros(0, np.int64)], 0
    for chunk in column.chunks:
        found.append(check(chunk) + before)
        before += len(chunk)
    return np.concatenate(found)


class PartitionSlice(NamedTuple):
    """Rows [start, stop) go to one partition. The others describe a batch of it that is open and can take more.

    `open_bytes` is what that batch has so far, its header included.
    """

    start: int
    stop: int
    open_records: int = 0
    open_bytes: int = HEADER_BYTES
    base_timestamp: int | None = None


class BatchSlice(NamedTuple):
    """Rows [start, stop) go into one batch, the first of them as number `first_offset_delta`.

    That is above 0 where the rows are appended to the open batch, whose `base_timestamp` they count from.
    """

    partition_index: int
    start: int
    stop: int
    first_offset_delta: int = 0
    base_timestamp: int | None = None


class Times(NamedTuple):
    """Between which times, in milliseconds, those of some rows are."""

    lowest: int
    highest: int


def times_of(columns: RecordColumns, now_ms: int) -> Times:
    """The range of the rows' times. Rows without a time count as `now_ms`."""
    column = columns.timestamp
    if column is None or column.null_count == len(column):
        return Times(now_ms, now_ms)
    times = numbers_of(one_array(column), null=now_ms)
    return Times(int(np.minimum.reduce(times)), int(np.maximum.reduce(times)))


def cut_batches(
    sizes: NDArray[np.int64], slices: Sequence[PartitionSlice], batch_bytes_max: int, times: Times
) -> list[BatchSlice]:
    """Cut the rows of each partition into batches of at most `batch_bytes_max`, header included.

    `sizes` are those of record_size_bounds, `times` those that the rows are encoded with. An open batch is filled
    first. A record that is larger than a batch gets one of its own.
    """
    if not len(sizes):
        return []
    ends = _ends(sizes, slices, batch_bytes_max, times)
    room = batch_bytes_max - HEADER_BYTES
    cuts: list[BatchSlice] = []
    for index, (row, stop, open_records, open_bytes, base) in enumerate(slices):
        if open_records:
            end = bisect_right(ends, ends[row] + batch_bytes_max - open_bytes, row, stop + 1) - 1
            if end > row:
                cuts.append(BatchSlice(index, row, end, open_records, base))
                row = end
        while row < stop:
            end = max(row + 1, bisect_right(ends, ends[row] + room, row, stop + 1) - 1)
            cuts.append(BatchSlice(index, row, end))
            row = end
    return cuts


def _ends(sizes: NDArray[np.int64], slices: Sequence[PartitionSlice], batch_bytes_max: int, times: Times) -> memoryview:
    """For each row the bytes before it, and those of all: sums of the sizes, with the deltas of these rows."""
    counted = OFFSET_DELTA_BYTES + TIMESTAMP_DELTA_BYTES
    smallest = int(np.minimum.reduce(sizes)) - counted + 2
    rows_max = max([stop - start for start, stop, *_ in slices])
    last = max([part.open_records for part in slices]) + min(rows_max, batch_bytes_max // smallest + 1)
    deltas = len(encode_varint(last)) + _widest_timestamp_delta_bytes(slices, times)
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + (deltas - counted), out=ends[1:])
    return ends.data


def _widest_timestamp_delta_bytes(slices: Sequence[PartitionSlice], times: Times) -> int:
    """The width of the widest: they count from the bases of open batches, and new batches begin at a row's time."""
    bases = [base for *_, base in slices if base is not None]
    furthest = times.highest - min(bases, default=times.lowest), times.lowest - max(bases, default=times.highest)
    apart = times.highest - times.lowest
    return max([len(encode_varint(delta)) for delta in (*furthest, apart, -apart)])
