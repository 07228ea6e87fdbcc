"""RowGroup: rows that are encoded together. For each row, it knows the row's call and the row's index in that call.

The call (SendCall) and the index identify the future to complete once the row is acknowledged or has failed.

Rows of many calls are grouped together and then split into batches. A batch refers to a row group and to a range of the
group's rows. A range is split by call only once its batch is acknowledged or has failed. If many batches are
acknowledged together, all their ranges of one row group are split as one array.

With a thousand partitions, a call with ten thousand rows has ten rows in each batch. With ten thousand partitions, it
has one row in each. Creating an object for each call's rows in each batch would therefore be too expensive.

Vocabulary of this module:

    row group         rows that were encoded together, sorted by partition
    range             rows [start, stop) of a row group
    run               longest range of consecutive rows of one call; each row group numbers its runs from 0
    run index         number of a run in its row group; arrays are named run_indices
    stored range      range that a broker has stored at consecutive offsets (StoredRange)
    row index         index of a row in its call; arrays are named row_indices
    call index        index of a call in the calls of a row group; arrays are named call_indices
    offset delta      index of a record in its batch, as in the record format
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
"""Minimum number of stored ranges that are split as one array. Fewer ranges are split faster one by one."""
_STORED_RANGE_FIELD_COUNT = len(StoredRange._fields)
_group_numbers = count()  # the numbers of row groups, in the order of their creation


class StoredRows(NamedTuple):
    """Rows of one call that brokers have stored. The fields after `call` are arguments of SendCall.complete_rows."""

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
    """The index in the batch of the first of these records."""


class RowGroup:
    """Rows that are encoded together, in the order in which they are encoded. Immutable.

    For each row, the group knows the call that passed it to the producer, and the row's index in that call. A run is
    a range of consecutive rows of one call that is as long as possible.
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
        """Row groups are numbered in the order of their creation, and their results are reported in this order. A group
        merged from several others gets the number of the newest one."""
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

        `sizes`: the encoded size of each range. The size of its row indices and futures is added.
        """
        ranges = zip(starts, stops, sizes, strict=True)
        if self._reserves_futures:
            return [size + self.compute_overhead_bytes(start, stop) for start, stop, size in ranges]
        row_index_bytes = self.row_indices.itemsize
        return [size + row_index_bytes * (stop - start) for start, stop, size in ranges]

    def split_by_call(self, start: int, stop: int) -> list[tuple[SendCall, int, int]]:
        """Split rows [start, stop) by call. Return (call, start, stop) for the rows of each run among them.

        The result contains plain tuples because this is called for each batch of single records. Creating other objects
        would cost more than finding the runs.
        """
        calls = self._calls
        # Reading single items is faster from a memoryview (`data`) than from a numpy array.
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

        Yield the calls in the order in which they were appended, each with its rows in order within a partition.
        """
        if len(stored_ranges) >= _MIN_RANGES_TO_VECTORIZE:
            return self._split_as_array(stored_ranges)
        if len(self._calls) == 1:  # the common case, without anything to split
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
        """Split all ranges at once, for `split_stored_ranges`. This is faster when there are many ranges.

        The ranges are one array, with a row per range and a column per field of StoredRange (start, stop, ...).

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
        # bincount() adds up the weights, here the lengths of the ranges, of each call. It returns floats.
        row_counts_by_call = np.bincount(call_indices, weights=stops - starts).astype(np.int64).tolist()
        # Sort the ranges by call. The sort must be stable, to keep the order of the ranges within a call. The ranges of
        # each call are then consecutive, and a view of the array.
        sorted_ranges = run_ranges.take(call_indices.argsort(kind="stable"), axis=0)
        call_start = 0
        for call_index, call_stop in enumerate(np.bincount(call_indices).cumsum().tolist()):
            if call_start < call_stop:
                call_ranges = sorted_ranges[call_start:call_stop]
                yield StoredRows(self._calls[call_index], self.row_indices, call_ranges, row_counts_by_call[call_index])
            call_start = call_stop

    def _split_at_call_boundaries(
        self, stored_ranges: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Split each range at the boundaries between runs, so that every resulting range lies within one run.

        `stored_ranges`: one row per range, and one column per field of StoredRange.

        Return the index in `calls` of each resulting range's call, and the resulting ranges in the same form.

        Example: with the runs [0, 4), [4, 6) and [6, 9), the range of the rows [2, 8) with the base offset 100 becomes

            rows      [2, 4)    [4, 6)    [6, 8)
            offset    100       102       104
        """
        starts, stops = stored_ranges.T[:2]
        first_run_indices = self._run_starts.searchsorted(starts, "right") - 1
        run_counts = self._run_starts.searchsorted(stops, "left") - first_run_indices
        # Repeat each range once for each run that it overlaps. Copy i belongs to run `first_run_index + (i -
        # first_copy_index)`, where `first_copy_index` is the index of the range's first copy.
        run_ranges = stored_ranges.repeat(run_counts, axis=0)
        first_copy_indices = run_counts.cumsum() - run_counts
        run_indices = np.arange(len(run_ranges)) + (first_run_indices - first_copy_indices).repeat(run_counts)
        # Shrink each copy to the rows of its run, in place: the columns below are views of `run_ranges`.
        starts_view, stops_view, _partitions, base_offsets_view, _log_append_times = run_ranges.T
        new_starts = np.maximum(starts_view, self._run_starts[run_indices])
        # A base offset grows by as much as the start of its range. An unknown base offset remains -1.
        base_offsets_view += (new_starts - starts_view) * (base_offsets_view >= 0)
        starts_view[:] = new_starts
        np.minimum(stops_view, self._run_starts[run_indices + 1], out=stops_view)
        return self._call_indices_by_run[run_indices], run_ranges


def _find_run_starts(call_indices: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the index of the first row of each run: row 0, and each row whose call is not that of the row before."""
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(call_indices[1:] != call_indices[:-1]) + 1])


def _count_rows(stored_ranges: Sequence[StoredRange]) -> int:
    return sum([stored_range.stop - stored_range.start for stored_range in stored_ranges])


class BatchRows(NamedTuple):
    """Rows [start, stop) of a row group, encoded as consecutive records of a batch.

    `first_offset_delta` is the index in the batch of the first of these records.
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
    """Create a row group with rows of one call, and return all of its rows.

    `row_indices`: the index of each row in the call.
    """
    return BatchRows(
        RowGroup(row_indices, [call]), start=0, stop=len(row_indices), first_offset_delta=first_offset_delta
    )


def select_rows(batch_rows: Iterable[BatchRows], record_start: int, record_stop: int) -> tuple[BatchRows, ...]:
    """Select the rows of a batch's records [record_start, record_stop).

    `batch_rows`: all rows of the batch.

    The offset deltas in the result are those in a new batch that contains only the selected records.
    """
    selected_rows: list[BatchRows] = []
    for row_group, range_start, range_stop, first_offset_delta in batch_rows:
        # For all rows of the range, this is the index in the row group minus the index of the record in the batch.
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
