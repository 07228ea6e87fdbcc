"""Where batches begin and end, decided before a byte is encoded.

A record's offset delta, and with it the width of that number, depends on the record's place in its batch; the delta of
its timestamp on the batch's base. So sizes come first, as upper bounds that hold at any place: payload and lengths are
exact, the deltas are counted at their widest. Memory is reserved by them, and too large records are refused.

When the rows of a partition are cut into batches, more is known: how far apart the times of the rows are, where an open
batch stands and when it began, and which place each row gets. Then the deltas are counted as wide as they will be, and
a batch ends where the next record would make it larger than the batch size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import named_rows, numbers_of
from spark_kafka_sink.records.byte_column import byte_lengths, payload_bytes
from spark_kafka_sink.records.columns import NO_TIMESTAMP, ArrowColumn, RecordColumns, one_array
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.header_column import header_column, rows_with_bad_headers
from spark_kafka_sink.records.varint import encode_varint, varint_widths

ROWS_AT_A_TIME = 10_000
"""Larger chunks fall out of the processor's cache and cost more per record."""
RECORD_BYTES_MAX = (1 << 31) - 1 - HEADER_BYTES

_ATTRIBUTES_BYTES = 1
_OFFSET_DELTA_BYTES = 4
"""Enough for 134 million records in one batch."""
_TIMESTAMP_DELTA_BYTES = 6
_TIMESTAMP_DELTA_BYTES_WORST = 10
_DELTA_BYTES = _OFFSET_DELTA_BYTES + _TIMESTAMP_DELTA_BYTES
"""What each size counts for both deltas at least."""
_WIDER_FROM = (0, 1 << 6, 1 << 13, 1 << 20, 1 << 27)
"""The first offset delta of 1, 2, ... bytes."""
_NARROWER = tuple(accumulate(_WIDER_FROM))
"""How many bytes fewer the offset deltas take that are narrower than 1, 2, ... bytes."""
_COMMON_TIMES = (1 << 41) - 1
"""Between two times from 1970 to 2039, or none (-1), the delta has at most 6 bytes."""


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

    slice_index: int
    start: int
    stop: int
    first_offset_delta: int = 0
    base_timestamp: int | None = None


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
            found.append(InvalidRows(np.nonzero(times < NO_TIMESTAMP)[0], "the timestamp is before 1970"))
    if columns.headers is not None:
        bad = _over_chunks(columns.headers, rows_with_bad_headers)
        if len(bad):
            found.append(InvalidRows(bad, "a header has no key"))
    if columns.memory_nbytes > RECORD_BYTES_MAX:
        too_large = np.nonzero(record_size_bounds(columns) > RECORD_BYTES_MAX)[0]
        if len(too_large):
            found.append(InvalidRows(too_large, "the record is larger than 2 GiB, more than a batch can hold"))
    return found


def record_size_bounds(columns: RecordColumns) -> NDArray[np.int64]:
    """For each row, the bytes that it takes in a batch at most, wherever it stands in it.

    Every length is counted as wide as the longest of its chunk: a byte too much here and there costs nothing, while
    exact widths would cost more than all the rest of the planning.
    """
    fixed = _ATTRIBUTES_BYTES + _OFFSET_DELTA_BYTES + _timestamp_delta_bytes(columns.timestamp)
    bounds = [_size_bounds(chunk, fixed) for chunk in columns.chunks(ROWS_AT_A_TIME)]
    return bounds[0] if len(bounds) == 1 else np.concatenate([np.empty(0, np.int64), *bounds])


def _size_bounds(chunk: RecordColumns, width: int) -> NDArray[np.int64]:
    """`width` is what is equally wide in all records. Sizes that are all alike are one number at first."""
    body, longest = payload_bytes(chunk.value)
    width += len(encode_varint(longest))
    if chunk.key is None:
        width += 1
    else:
        keys, longest = payload_bytes(chunk.key)
        body += keys
        width += len(encode_varint(longest))
    body += width + 1 if chunk.headers is None else width + _header_bytes(chunk.headers)
    if isinstance(body, int):
        return np.full(chunk.num_rows, body + len(encode_varint(body)), np.int64)
    body += len(encode_varint(int(np.maximum.reduce(body))))
    return body


class Times(NamedTuple):
    """Between which times, in milliseconds, those of some rows are."""

    lowest: int
    highest: int

    def delta_bytes(self, base: int) -> int:
        """The width of their deltas from this time, at most."""
        return max(len(encode_varint(self.lowest - base)), len(encode_varint(self.highest - base)))


def times_of(columns: RecordColumns, now_ms: int) -> Times:
    """Rows without a time get this one."""
    column = columns.timestamp
    if column is None or column.null_count == len(column):
        return Times(now_ms, now_ms)
    times = numbers_of(one_array(column), null=now_ms)
    return Times(int(np.minimum.reduce(times)), int(np.maximum.reduce(times)))


def plan_batches(
    sizes: NDArray[np.int64], slices: Sequence[PartitionSlice], batch_bytes_max: int, times: Times
) -> list[BatchSlice]:
    """Cut the rows of each slice into batches of at most `batch_bytes_max`, header included.

    `sizes` are those of record_size_bounds, `times` those that the rows are encoded with. An open batch is filled
    first. A record that is larger than a batch gets one of its own.
    """
    if not len(sizes):
        return []
    cutter = _Cutter(sizes, batch_bytes_max, times)
    indexes: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    places: list[int] = []
    bases: list[int | None] = []
    for index, (part, whole) in enumerate(zip(slices, cutter.whole(slices), strict=True)):
        if part.start == part.stop:
            continue
        open_rows = part.stop - part.start if whole else cutter.rows_for_open_batch(part)
        ends = [part.start + open_rows] if open_rows else []
        if not whole:
            ends += cutter.ends_of_new_batches(part.start + open_rows, part.stop)
        more = len(ends) - 1
        indexes += [index] * len(ends)
        starts += [part.start, *ends[:-1]]
        stops += ends
        places += [part.open_records if open_rows else 0, *[0] * more]
        bases += [part.base_timestamp if open_rows else None, *[None] * more]
    return list(named_rows(BatchSlice, indexes, starts, stops, places, bases))


class _Cutter:
    """Cuts the slices of one grouping. Where all sizes are alike, no row is looked at.

    The offset deltas of the first n records of a batch take the most of k * n - _NARROWER[k] over all widths k: as if
    all were as wide as the last one, less what those before a border are narrower. So the rows that fit are the fewest
    that fit for any k; and from the k-th border on k alone decides.
    """

    def __init__(self, sizes: NDArray[np.int64], batch_bytes_max: int, times: Times) -> None:
        self._sizes = sizes
        self._batch_bytes_max = batch_bytes_max
        self._times = times
        self._smallest = int(np.minimum.reduce(sizes))
        self._even = self._smallest == int(np.maximum.reduce(sizes))
        self._ends: dict[int, memoryview] = {}
        apart = times.highest - times.lowest
        self._time_bytes_new = max(len(encode_varint(apart)), len(encode_varint(-apart)))
        self._time_bytes_open: dict[int, int] = {}
        self._rows_max = max(1, batch_bytes_max // (self._smallest + 2 - _DELTA_BYTES))
        self._width_new = len(encode_varint(self._rows_max))
        self._each_new = self._width_new + self._time_bytes_new - _DELTA_BYTES
        self._full = self._fitting(0, self._rows_max, 0, HEADER_BYTES, self._time_bytes_new) if self._even else 0

    def whole(self, slices: Sequence[PartitionSlice]) -> list[bool]:
        """Which slices fit into one batch each; not for sure those that fill it to the last bytes."""
        starts, stops, opens, used, bases = zip(*slices, strict=True)
        rows = np.subtract(stops, starts)
        widest = len(encode_varint(max(opens) + int(np.maximum.reduce(rows))))
        time_bytes = [self._time_bytes(base) for base in bases] if any(opens) else self._time_bytes_new
        each = np.add(time_bytes, widest - _DELTA_BYTES)
        if self._even:
            taken = rows * (self._smallest + each)
        else:
            ends = np.asarray(self._ends_of(self._each_new))
            taken = ends.take(stops) - ends.take(starts) + rows * (each - self._each_new)
        fits = taken + used <= self._batch_bytes_max
        found: list[bool] = fits.tolist()
        return found

    def rows_for_open_batch(self, part: PartitionSlice) -> int:
        """How many rows of a slice fill up its open batch."""
        if not part.open_records:
            return 0
        time_bytes = self._time_bytes(part.base_timestamp)
        return self._fitting(part.start, part.stop, part.open_records, part.open_bytes, time_bytes)

    def ends_of_new_batches(self, row: int, stop: int) -> Sequence[int]:
        """The rows [row, stop) become new batches: where each of them ends."""
        if row == stop:
            return ()
        if self._even:
            each = max(1, self._full)
            return [*range(row + each, stop, each), stop]
        found = []
        ends = self._ends_of(self._each_new)
        room = self._batch_bytes_max - HEADER_BYTES + _NARROWER[self._width_new - 1]
        rows_min = max(1, _WIDER_FROM[self._width_new - 1])
        while row < stop:
            first, row = row, bisect_right(ends, ends[row] + room, row, stop + 1) - 1
            if row - first < rows_min:
                row = first + max(1, self._fitting(first, stop, 0, HEADER_BYTES, self._time_bytes_new))
            found.append(row)
        return found

    def _fitting(self, row: int, stop: int, place: int, used: int, time_bytes: int) -> int:
        """How many of the rows fit into a batch that has `used` bytes so far, and in which the first has this place."""
        count = min(stop - row, self._rows_max)
        room = self._batch_bytes_max - used
        if place:
            width = len(encode_varint(place))
            room += width * place - _NARROWER[width - 1]
        for width in range(len(encode_varint(place + count)), 0, -1):
            each = width + time_bytes - _DELTA_BYTES
            found = self._fitting_evenly(row, stop, each, room + _NARROWER[width - 1] - width * place)
            count = max(0, min(count, found))
            if place + count >= _WIDER_FROM[width - 1]:
                break
        return count

    def _fitting_evenly(self, row: int, stop: int, each: int, room: int) -> int:
        """How many fit if each row takes so many bytes more than its size."""
        if self._even:
            return room // (self._smallest + each)
        ends = self._ends_of(each)
        return bisect_right(ends, ends[row] + room, row, stop + 1) - 1 - row

    def _ends_of(self, each: int) -> memoryview:
        """For each row the sum of the sizes before it, if each row takes so many bytes more."""
        if each not in self._ends:
            ends = np.zeros(len(self._sizes) + 1, np.int64)
            np.add(self._sizes, each, out=ends[1:])
            np.cumsum(ends[1:], out=ends[1:])
            self._ends[each] = ends.data
        return self._ends[each]

    def _time_bytes(self, base: int | None) -> int:
        if base is None:
            return self._time_bytes_new
        if base not in self._time_bytes_open:
            self._time_bytes_open[base] = self._times.delta_bytes(base)
        return self._time_bytes_open[base]


def _timestamp_delta_bytes(timestamp: ArrowColumn | None) -> int:
    if timestamp is None:
        return _TIMESTAMP_DELTA_BYTES
    times = numbers_of(one_array(timestamp))  # null is "now" and counts as 0, which is as common
    lowest, highest = np.minimum.reduce(times, initial=0), np.maximum.reduce(times, initial=0)
    common = lowest >= NO_TIMESTAMP and highest < _COMMON_TIMES
    return _TIMESTAMP_DELTA_BYTES if common else _TIMESTAMP_DELTA_BYTES_WORST


def _field_bytes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return varint_widths(lengths) + np.maximum(lengths, 0)


def _header_bytes(array: Any) -> NDArray[np.int64]:
    headers = header_column(array)
    each: NDArray[np.int64] = _field_bytes(byte_lengths(headers.keys)) + _field_bytes(byte_lengths(headers.values))
    before: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
    return varint_widths(headers.counts) + before[headers.starts[1:]] - before[headers.starts[:-1]]


def _over_chunks(column: ArrowColumn, check: Any) -> NDArray[np.int64]:
    if not hasattr(column, "chunks"):
        return np.asarray(check(column))
    found, before = [], 0
    for chunk in column.chunks:
        found.append(check(chunk) + before)
        before += len(chunk)
    return np.concatenate(found) if found else np.zeros(0, np.int64)
