"""RowGroup: rows that were encoded together, each with the call that it came from and its index in that call.

When a batch is acknowledged or fails, the producer must tell the callers what happened to each of their rows. For that,
it needs each row's call (SendCall) and the row's index in that call: together, they identify the future to complete.

The rows of many calls are encoded together and then split into batches, so a batch may contain rows of many calls. With
ten thousand partitions, a call with ten thousand rows has a single row in each batch. An object for each call in each
batch would be too expensive. So a batch remembers only a range of rows of a row group. A range is split by call once
its batch is acknowledged or has failed. If many batches are acknowledged together, all of their ranges of one row group
are split at once, as one array.

The terms of this module:

    row group         rows that were encoded together, sorted by partition
    range             the rows [start, stop) of a row group
    stored range      a range that a broker has stored at consecutive offsets (StoredRange)
    run               consecutive rows of one call, as many as possible; the runs of a group are numbered from 0
    run index         the number of a run in its row group
    row index         the index of a row in its call
    call index        the index of a call in the row group's list of calls
    offset delta      the index of a record in its batch, as in the record format
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.calls import SendCall, StoredRange, StoredRanges

_MIN_RANGES_TO_VECTORIZE = 4
"""Minimum number of stored ranges for which it is faster to split them as one array than in a loop."""
_STORED_RANGE_FIELD_COUNT = len(StoredRange._fields)
_group_numbers = count()  # the numbers of row groups, in the order of their creation


class StoredRows(NamedTuple):
    """Rows of one call that brokers have stored. The other fields are the arguments of `call.complete_rows()`."""

    call: SendCall
    row_indices: NDArray[np.int64]
    stored_ranges: StoredRanges
    row_count: int


class CallRows(NamedTuple):
    """Rows of one call that are encoded as consecutive records of a batch."""

    call: SendCall
    row_indices: NDArray[np.int64]
    """The index of each row in the call."""
    first_offset_delta: int
    """The index of the first of these records in the batch."""


class RowGroup:
    """Rows that are encoded together, in the order in which they are encoded. Immutable.

    For each row, the group knows the call that passed it to the producer, and the row's index in that call. The calls
    are stored by run: a run consists of as many consecutive rows of one call as possible.

    Example: a group with the rows [0, 4) and [6, 9) of call 0, and the rows [4, 6) of call 1, has three runs:

        run starts             0    4    6    (and the end, 9)
        call indices by run    0    1    0
    """

    __slots__ = ("_call_indices_by_run", "_calls", "_reserves_futures", "_run_starts", "group_number", "row_indices")

    def __init__(
        self,
        row_indices: NDArray[np.int64],
        calls: Sequence[SendCall],
        call_indices: NDArray[np.int32] | None = None,
        group_number: int | None = None,
    ) -> None:
        """Create a group from the calls of its rows.

        `row_indices`: for each row of the group, its index in its call.
        `calls`: the calls that the rows belong to, in the order in which they were appended.
        `call_indices`: for each row of the group, the index of its call in `calls`; None if there is only one call.
        `group_number`: the number of the row group; None for a new number.
        """
        self.row_indices = row_indices
        self.group_number = next(_group_numbers) if group_number is None else group_number
        """Row groups are numbered as they are created, and results are reported in the order of these numbers. A group
        that is merged from others gets the number of the newest one."""
        self._calls = calls
        self._reserves_futures = any(call.future_bytes_per_row for call in calls)
        if call_indices is None:
            starts, self._call_indices_by_run = np.zeros(1, np.int64), np.zeros(1, np.int32)  # a single run
        else:
            starts = _find_run_starts(call_indices)
            self._call_indices_by_run = call_indices[starts]
        self._run_starts = np.append(starts, len(row_indices))
        """Run i consists of the rows [_run_starts[i], _run_starts[i + 1]). They belong to the call at index
        _call_indices_by_run[i] of `calls`."""

    def compute_overhead_bytes(self, start: int, stop: int) -> int:
        """Return how many bytes the row indices and futures of rows [start, stop) occupy."""
        index_bytes = (stop - start) * self.row_indices.itemsize
        if not self._reserves_futures:
            return index_bytes
        runs = self.split_by_call(start, stop)
        return index_bytes + sum(
            [call.future_bytes_per_row * (run_stop - run_start) for call, run_start, run_stop in runs]
        )

    def compute_needed_bytes(self, starts: Sequence[int], stops: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return how many bytes of buffer.memory each range of rows [starts[i], stops[i]) needs.

        That is its encoded size, plus the size of its row indices and futures.

        `sizes`: the encoded size of each range.
        """
        ranges = zip(starts, stops, sizes, strict=True)
        if self._reserves_futures:
            return [size + self.compute_overhead_bytes(start, stop) for start, stop, size in ranges]
        row_index_bytes = self.row_indices.itemsize
        return [size + row_index_bytes * (stop - start) for start, stop, size in ranges]

    def split_by_call(self, start: int, stop: int) -> list[tuple[SendCall, int, int]]:
        """Split rows [start, stop) by call. Return (call, start, stop) for the rows of each run among them.

        The result contains plain tuples, because this is called for each batch of single records, and creating other
        objects would take longer than finding the runs.
        """
        calls = self._calls
        # Single items are read faster from a memoryview (`data`) than from a numpy array.
        call_indices_by_run, run_starts = self._call_indices_by_run.data, self._run_starts.data
        run_index = bisect_right(run_starts, start) - 1
        run_stop = run_starts[run_index + 1]
        runs = []
        while run_stop < stop:
            runs.append((calls[call_indices_by_run[run_index]], start, run_stop))
            run_index += 1
            start, run_stop = run_stop, run_starts[run_index + 1]
        runs.append((calls[call_indices_by_run[run_index]], start, stop))
        return runs

    def split_stored_ranges(self, stored_ranges: Sequence[StoredRange]) -> Iterator[StoredRows]:
        """Split ranges of this row group, which brokers have stored, by call.

        Yield the calls in the order in which they were appended. Within a partition, the rows of a call stay in order.
        """
        if len(stored_ranges) >= _MIN_RANGES_TO_VECTORIZE:
            return self._split_as_array(stored_ranges)
        if len(self._calls) == 1:  # the common case, in which there is nothing to split
            return iter([StoredRows(self._calls[0], self.row_indices, stored_ranges, _count_rows(stored_ranges))])
        return self._split_one_by_one(stored_ranges)

    def _split_one_by_one(self, stored_ranges: Sequence[StoredRange]) -> Iterator[StoredRows]:
        """Split the ranges one after the other, for `split_stored_ranges`."""
        ranges_by_call: defaultdict[SendCall, list[StoredRange]] = defaultdict(list)
        for start, stop, partition, base_offset, log_append_time in stored_ranges:
            for call, run_start, run_stop in self.split_by_call(start, stop):
                run_offset = base_offset + run_start - start if base_offset >= 0 else -1
                run_range = StoredRange(run_start, run_stop, partition, run_offset, log_append_time)
                ranges_by_call[call].append(run_range)
        for call in self._calls:
            if call in ranges_by_call:
                call_ranges = ranges_by_call[call]
                yield StoredRows(call, self.row_indices, call_ranges, _count_rows(call_ranges))

    def _split_as_array(self, stored_ranges: Sequence[StoredRange]) -> Iterator[StoredRows]:
        """Split all ranges at once, for `split_stored_ranges`. This is faster if there are many ranges.

        The ranges become one array with a line per range and a column per field of StoredRange (start, stop, ...).

        Example: in a row group with the rows [0, 4) and [6, 9) of call 0 and the rows [4, 6) of call 1, the ranges
        [2, 5) and [5, 8) become

            split at call boundaries    [2, 4)    [4, 5)    [5, 6)    [6, 8)
            call indices                0         1         1         0
            sorted by call              [2, 4)    [6, 8)    [4, 5)    [5, 6)
        """
        range_fields = np.fromiter(
            chain.from_iterable(stored_ranges), np.int64, _STORED_RANGE_FIELD_COUNT * len(stored_ranges)
        )
        call_indices, run_ranges = self._split_at_call_boundaries(range_fields.reshape(-1, _STORED_RANGE_FIELD_COUNT))
        starts, stops = run_ranges.T[:2]  # the first two fields of StoredRange
        # bincount() returns the sum of the weights, here the lengths of the ranges, for each call. The sums are floats.
        row_counts_by_call = np.bincount(call_indices, weights=stops - starts).astype(np.int64).tolist()
        # Sort the ranges by call, so that the ranges of a call are a slice of the array. The sort must be stable,
        # because the ranges of a call must stay in order.
        sorted_ranges = run_ranges.take(call_indices.argsort(kind="stable"), axis=0)
        call_start = 0
        # Calls with [2, 0, 3] ranges stop at [2, 2, 5] in the sorted array.
        for call_index, call_stop in enumerate(np.bincount(call_indices).cumsum().tolist()):
            if call_start < call_stop:
                call_ranges = sorted_ranges[call_start:call_stop]
                yield StoredRows(self._calls[call_index], self.row_indices, call_ranges, row_counts_by_call[call_index])
            call_start = call_stop

    def _split_at_call_boundaries(
        self, stored_ranges: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Split each range at the boundaries between runs, so that every resulting range lies within one run.

        `stored_ranges`: an array with one line per range and one column per field of StoredRange.

        Return the call index of each resulting range, and the resulting ranges as an array of the same form.

        Example: with the runs [0, 4), [4, 6) and [6, 9), the range of the rows [2, 8) with the base offset 100 becomes

            rows      [2, 4)    [4, 6)    [6, 8)
            offset    100       102       104
        """
        starts, stops = stored_ranges.T[:2]
        # The first search finds the run that contains a start, the second one the first run that starts at or after a
        # stop.
        first_run_indices = self._run_starts.searchsorted(starts, "right") - 1
        run_counts = self._run_starts.searchsorted(stops, "left") - first_run_indices
        # Copy each range once for each run that it overlaps, and number the copies of all ranges from 0. The first copy
        # belongs to the range's first run, the second copy to the second run, and so on. So copy i belongs to run
        # `first_run_index + (i - first_copy_index)`, where `first_copy_index` is the number of the range's first copy.
        # Two ranges that overlap the runs 0 to 1 and 1 to 3: first run indices [0, 1], run counts [2, 3] -> first copy
        # indices [0, 2], run indices [0, 1, 1, 2, 3].
        run_ranges = stored_ranges.repeat(run_counts, axis=0)
        first_copy_indices = run_counts.cumsum() - run_counts
        run_indices = np.arange(len(run_ranges)) + (first_run_indices - first_copy_indices).repeat(run_counts)
        # Shrink each copy to the rows of its run. The columns below are views, so this changes `run_ranges` in place.
        starts_view, stops_view, _partitions, base_offsets_view, _log_append_times = run_ranges.T
        new_starts = np.maximum(starts_view, self._run_starts[run_indices])
        # The base offset of a range grows with the start of the range. An unknown base offset remains -1.
        base_offsets_view += (new_starts - starts_view) * (base_offsets_view >= 0)
        starts_view[:] = new_starts
        np.minimum(stops_view, self._run_starts[run_indices + 1], out=stops_view)
        return self._call_indices_by_run[run_indices], run_ranges


def _find_run_starts(call_indices: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the row at which each run starts: row 0, and each row whose call differs from that of the previous row."""
    # Call indices [0, 0, 1, 1, 0] -> run starts [0, 2, 4].
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(call_indices[1:] != call_indices[:-1]) + 1])


def _count_rows(stored_ranges: Sequence[StoredRange]) -> int:
    return sum([stored_range.stop - stored_range.start for stored_range in stored_ranges])


class BatchRows(NamedTuple):
    """Rows [start, stop) of a row group, encoded as consecutive records of a batch.

    `first_offset_delta` is the index of the first of these records in the batch.
    """

    row_group: RowGroup
    start: int
    stop: int
    first_offset_delta: int

    @property
    def overhead_bytes(self) -> int:
        """Number of bytes that the indices and futures of these rows occupy."""
        return self.row_group.compute_overhead_bytes(self.start, self.stop)

    def split_by_call(self) -> list[CallRows]:
        """Split the rows by call. Consecutive rows of one call stay together."""
        call_rows: list[CallRows] = []
        for call, run_start, run_stop in self.row_group.split_by_call(self.start, self.stop):
            run_row_indices = self.row_group.row_indices[run_start:run_stop]
            run_first_offset_delta = self.first_offset_delta + (run_start - self.start)
            call_rows.append(CallRows(call, run_row_indices, run_first_offset_delta))
        return call_rows


def build_batch_rows(call: SendCall, row_indices: NDArray[np.int64], first_offset_delta: int = 0) -> BatchRows:
    """Return rows of one call as the BatchRows of a new row group.

    `row_indices`: the index of each row in the call.
    """
    return BatchRows(
        RowGroup(row_indices, [call]), start=0, stop=len(row_indices), first_offset_delta=first_offset_delta
    )


def select_rows(batch_rows: Iterable[BatchRows], record_start: int, record_stop: int) -> tuple[BatchRows, ...]:
    """Select the rows of a batch's records [record_start, record_stop).

    The result has the offset deltas of a new batch that contains only the selected records.

    `batch_rows`: all rows of the batch.

    Example: if the batch has the rows [10, 14) of a row group, its records [1, 3) are the rows [11, 13), and their
    first offset delta is 0.
    """
    selected_rows: list[BatchRows] = []
    for row_group, range_start, range_stop, first_offset_delta in batch_rows:
        # Add this to the index of a record in the batch to get the index of its row in the row group.
        row_minus_record = range_start - first_offset_delta
        start = max(range_start, record_start + row_minus_record)
        stop = min(range_stop, record_stop + row_minus_record)
        if start < stop:
            selected_rows.append(BatchRows(row_group, start, stop, start - row_minus_record - record_start))
    return tuple(selected_rows)


def detach_rows(batch_rows: Sequence[BatchRows]) -> BatchRows:
    """Copy a batch's rows into a new row group, so that the memory of their previous row groups can be freed.

    The new group gets the number of the newest previous group.
    """
    runs = [run for rows in batch_rows for run in rows.row_group.split_by_call(rows.start, rows.stop)]
    calls = list(dict.fromkeys([call for call, _, _ in runs]))
    index_by_call = {call: index for index, call in enumerate(calls)}
    call_indices_by_run = np.array([index_by_call[call] for call, _, _ in runs], np.int32)
    call_indices = call_indices_by_run.repeat([run_stop - run_start for _, run_start, run_stop in runs])
    row_indices = np.concatenate([rows.row_group.row_indices[rows.start : rows.stop] for rows in batch_rows])
    row_group = RowGroup(row_indices, calls, call_indices, batch_rows[-1].row_group.group_number)
    return BatchRows(row_group, 0, len(row_indices), batch_rows[0].first_offset_delta)
