"""RowOrigins: the call and the row index of each record of a batch, by which its futures are completed.

Rows of many calls are grouped together and then split into batches. With a thousand partitions, a call of ten thousand
rows has ten rows in each batch; with ten thousand partitions, it has one. So no object is created for the rows of one
call in one batch. Instead, a batch refers to the group of rows that were encoded together and to a range of them. The
ranges are split by call when batches are acknowledged or have failed: for all batches of a response at once, as one
array.

Rows are identified by three kinds of numbers:

    row index         index of a row in the call that it came with; arrays of these are named row_indices
    start, stop       range of the rows of a group, in the order in which they are encoded
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

from spark_kafka_sink.producer.calls import Call, StoredRange, StoredRanges

_MIN_ARRAY_SHARES = 4
"""Fewer shares are split one by one, because creating and splitting an array of them takes longer."""
_group_numbers = count()


class StoredRows(NamedTuple):
    """Rows of a call that brokers have stored: the call, and the arguments for its method `stored`."""

    call: Call
    row_indices: NDArray[np.int64]
    shares: StoredRanges
    row_count: int


class CallRows(NamedTuple):
    """Consecutive records of a batch that came with one call. The first one has the offset delta."""

    call: Call
    row_indices: NDArray[np.int64]
    first_offset_delta: int


class RowOrigins:
    """The call and the row index of each row of a group, in the order in which the rows are encoded.

    The rows are sorted by partition. Consecutive rows of one call form a run.
    """

    __slots__ = ("_calls", "_has_futures", "_run_calls", "_run_starts", "group_number", "row_indices")

    def __init__(
        self,
        row_indices: NDArray[np.int64],
        calls: Sequence[Call],
        call_indices: NDArray[np.int32] | None = None,
        group_number: int | None = None,
    ) -> None:
        """Set the calls that the rows come from.

        `calls`: in the order in which they were appended.
        `call_indices`: the index of each row's call in `calls`; None if there is only one call.
        `group_number`: defaults to a new number.
        """
        self.row_indices = row_indices
        self.group_number = next(_group_numbers) if group_number is None else group_number
        """Ascends with the time of grouping: of two groups in one batch, the later one has the higher number."""
        self._calls = calls
        self._has_futures = any(call.bytes_per_row for call in calls)
        if call_indices is None:
            starts, self._run_calls = np.zeros(1, np.int64), np.zeros(1, np.int32)
        else:
            starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(call_indices[1:] != call_indices[:-1]) + 1])
            self._run_calls = call_indices[starts]
        self._run_starts = np.append(starts, len(row_indices))
        """Run i consists of the rows [_run_starts[i], _run_starts[i + 1]), which came with call _run_calls[i]."""

    def overhead_bytes(self, start: int, stop: int) -> int:
        """Return the bytes that rows [start, stop) reserve in addition to their records: row indices and futures."""
        index_bytes = (stop - start) * self.row_indices.itemsize
        if not self._has_futures:
            return index_bytes
        runs = self.split_by_call(start, stop)
        return index_bytes + sum([call.bytes_per_row * (run_stop - run_start) for call, run_start, run_stop in runs])

    def charged_bytes(self, starts: Sequence[int], stops: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return the bytes of the records (`sizes`) plus the overhead of the rows, for each range."""
        ranges = zip(starts, stops, sizes, strict=True)
        if self._has_futures:
            return [size + self.overhead_bytes(start, stop) for start, stop, size in ranges]
        row_index_bytes = self.row_indices.itemsize
        return [size + row_index_bytes * (stop - start) for start, stop, size in ranges]

    def split_by_call(self, start: int, stop: int) -> list[tuple[Call, int, int]]:
        """Split rows [start, stop) into runs of one call, and return the call, start and stop of each run.

        The runs are plain tuples: this is called for each batch of single records, and creating an object for each run
        costs more than finding it.
        """
        calls, run_calls, run_starts = self._calls, self._run_calls.data, self._run_starts.data
        run = bisect_right(run_starts, start) - 1
        run_stop = run_starts[run + 1]
        runs = []
        while run_stop < stop:
            runs.append((calls[run_calls[run]], start, run_stop))
            run += 1
            start, run_stop = run_stop, run_starts[run + 1]
        runs.append((calls[run_calls[run]], start, stop))
        return runs

    def split_shares_by_call(self, shares: Sequence[StoredRange]) -> Iterator[StoredRows]:
        """Split the stored shares of this group by call.

        The calls come in the order in which they were appended, and so do the rows of each partition.
        """
        if len(shares) < _MIN_ARRAY_SHARES:
            if len(self._calls) == 1:  # the common case, without anything to split
                yield StoredRows(self._calls[0], self.row_indices, shares, _count_rows(shares))
                return
            shares_by_call: defaultdict[Call, list[StoredRange]] = defaultdict(list)
            for start, stop, partition, offset, time in shares:
                for call, run_start, run_stop in self.split_by_call(start, stop):
                    run_offset = offset + run_start - start if offset >= 0 else -1
                    shares_by_call[call].append(StoredRange(run_start, run_stop, partition, run_offset, time))
            for call in [call for call in self._calls if call in shares_by_call]:
                yield StoredRows(call, self.row_indices, shares_by_call[call], _count_rows(shares_by_call[call]))
            return
        share_array = np.fromiter(chain.from_iterable(shares), np.int64, 5 * len(shares)).reshape(-1, 5)
        call_indices, run_shares = self._split_share_array(share_array)
        row_counts = np.bincount(call_indices, run_shares[:, 1] - run_shares[:, 0]).astype(np.int64).tolist()
        run_shares = run_shares.take(call_indices.argsort(kind="stable"), axis=0)  # each call gets a view, not a copy
        first = 0
        for call_index, stop in enumerate(np.bincount(call_indices).cumsum().tolist()):
            if first < stop:
                yield StoredRows(
                    self._calls[call_index], self.row_indices, run_shares[first:stop], row_counts[call_index]
                )
            first = stop

    def _split_share_array(self, shares: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Split shares into shares of single runs. Return the call index of each resulting share, and the shares.

        The columns of both arrays are the fields of StoredRange.
        """
        starts, stops = shares.T[:2]
        first_runs = self._run_starts.searchsorted(starts, "right") - 1
        run_counts = self._run_starts.searchsorted(stops, "left") - first_runs
        run_shares = shares.repeat(run_counts, axis=0)
        runs = np.arange(len(run_shares)) + (first_runs + run_counts - run_counts.cumsum()).repeat(run_counts)
        run_starts, run_stops, _, offsets, _ = run_shares.T
        has_offset = offsets >= 0
        offsets -= run_starts * has_offset
        np.maximum(run_starts, self._run_starts[runs], out=run_starts)
        np.minimum(run_stops, self._run_starts[runs + 1], out=run_stops)
        offsets += run_starts * has_offset
        return self._run_calls[runs], run_shares


def _count_rows(shares: Sequence[StoredRange]) -> int:
    return sum([share.stop - share.start for share in shares])


class BatchRows(NamedTuple):
    """Rows [start, stop) of a group, which are encoded as records of a batch from `first_offset_delta` on."""

    origins: RowOrigins
    start: int
    stop: int
    first_offset_delta: int

    @property
    def overhead_bytes(self) -> int:
        """Bytes that these rows reserve in addition to their records."""
        return self.origins.overhead_bytes(self.start, self.stop)

    def split_by_call(self) -> list[CallRows]:
        """Split the rows into runs of one call."""
        origins = self.origins
        return [
            CallRows(call, origins.row_indices[run_start:run_stop], run_start - self.start + self.first_offset_delta)
            for call, run_start, run_stop in origins.split_by_call(self.start, self.stop)
        ]


def build_batch_rows(call: Call, row_indices: NDArray[np.int64], first_offset_delta: int = 0) -> BatchRows:
    """Build the BatchRows for rows that all came with one call."""
    return BatchRows(RowOrigins(row_indices, [call]), 0, len(row_indices), first_offset_delta)


def select_rows(parts: Iterable[BatchRows], first_delta: int, stop_delta: int) -> tuple[BatchRows, ...]:
    """Select the rows of a batch's records with the offset deltas [first_delta, stop_delta).

    In the result, offset deltas are counted from `first_delta`: it holds the rows of a batch that begins there.
    """
    selected: list[BatchRows] = []
    for origins, part_start, part_stop, first_offset_delta in parts:
        shift = part_start - first_offset_delta
        start, stop = max(part_start, first_delta + shift), min(part_stop, stop_delta + shift)
        if start < stop:
            selected.append(BatchRows(origins, start, stop, start - shift - first_delta))
    return tuple(selected)


def detach_rows(parts: Sequence[BatchRows]) -> BatchRows:
    """Copy all rows of a batch into a group of their own, so that the memory of their previous groups can be freed."""
    runs = [run for part in parts for run in part.origins.split_by_call(part.start, part.stop)]
    index_by_call = {call: index for index, call in enumerate(dict.fromkeys([call for call, _, _ in runs]))}
    call_indices = np.array([index_by_call[call] for call, _, _ in runs], np.int32)
    call_indices = call_indices.repeat([run_stop - run_start for _, run_start, run_stop in runs])
    row_indices = np.concatenate([part.origins.row_indices[part.start : part.stop] for part in parts])
    origins = RowOrigins(row_indices, list(index_by_call), call_indices, parts[-1].origins.group_number)
    return BatchRows(origins, 0, len(row_indices), parts[0].first_offset_delta)
