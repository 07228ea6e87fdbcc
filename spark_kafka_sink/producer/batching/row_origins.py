"""RowOrigins: which row of which call each record of a batch is, so that futures resolve without a look at the rows.

Rows of many calls are grouped together, and then cut into batches. With a thousand partitions a call of ten thousand
rows has ten rows in each batch, with ten thousand partitions one. So no object is made for a call's share of a batch: a
batch names the rows that were grouped together and a range of them. The shares are found there when the batch is
acknowledged or has failed: those of all batches that an answer is about at once, as an array.

Three kinds of numbers say which rows:

    row index         of a row in the call that it came with; arrays of them are called row_indices
    start, stop       of a range of the rows that were grouped together, in the order in which they are encoded
    offset delta      of a record in its batch, as in the record format
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.calls import Call, Share, Shares

_FEW = 4
"""Fewer shares are cut one by one: to make an array of them, and to cut it, takes longer."""
_groups = count()


class StoredRows(NamedTuple):
    """A call, and the arguments of one `Call.stored`."""

    call: Call
    row_indices: NDArray[np.int64]
    shares: Shares
    row_count: int


class CallRows(NamedTuple):
    """Neighbouring records of a batch that came with one call, the first of them with this offset delta."""

    call: Call
    row_indices: NDArray[np.int64]
    first_offset_delta: int


class RowOrigins:
    """For each row that was grouped, in the order of the partitions, the call that it came with and its index there."""

    __slots__ = ("_calls", "_has_futures", "_numbers", "_starts", "group", "row_indices")

    def __init__(
        self,
        row_indices: NDArray[np.int64],
        calls: Sequence[Call],
        numbers: NDArray[np.int32] | None = None,
        group: int | None = None,
    ) -> None:
        """`calls` are in the order in which their rows came. `numbers` says for each row which of the calls it is.
        None: the only one. `group`: the group number of the batch's last part. None: a new one."""
        self.row_indices = row_indices
        self.group = next(_groups) if group is None else group
        """Within a batch, rows that came later have a higher one."""
        self._calls = calls
        self._has_futures = any(call.bytes_per_row for call in calls)
        if numbers is None:
            starts, self._numbers = np.zeros(1, np.int64), np.zeros(1, np.int32)
        else:
            starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
            self._numbers = numbers[starts]
        self._starts = np.append(starts, len(row_indices))
        """From row _starts[i] on, until the next start, the call is number _numbers[i]."""

    def nbytes(self, start: int, stop: int) -> int:
        """What the rows in [start, stop) are charged for to buffer.memory besides their records."""
        index_bytes = (stop - start) * self.row_indices.itemsize
        if not self._has_futures:
            return index_bytes
        return index_bytes + sum([call.bytes_per_row * (end - first) for call, first, end in self.shares(start, stop)])

    def charges(self, starts: Sequence[int], stops: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return record bytes + `nbytes` for each range."""
        if self._has_futures:
            return [size + self.nbytes(*rows) for *rows, size in zip(starts, stops, sizes, strict=True)]
        row_index_bytes = self.row_indices.itemsize
        return [size + row_index_bytes * (stop - start) for start, stop, size in zip(starts, stops, sizes, strict=True)]

    def shares(self, start: int, stop: int) -> list[tuple[Call, int, int]]:
        """The calls that have rows in [start, stop), and which rows: call, first row, row after the last.

        Plain tuples: single records are asked about batch by batch, and to make an object of each costs more than to
        find it.
        """
        calls, numbers, starts = self._calls, self._numbers.data, self._starts.data
        at = bisect_right(starts, start) - 1
        end = starts[at + 1]
        found = []
        while end < stop:
            found.append((calls[numbers[at]], start, end))
            at += 1
            start, end = end, starts[at + 1]
        found.append((calls[numbers[at]], start, stop))
        return found

    def shares_by_call(self, stored: Sequence[Share]) -> Iterator[StoredRows]:
        """Cut what is stored where calls begin. In the order of the calls, which is that of the rows of each
        partition."""
        if len(stored) < _FEW:
            if len(self._calls) == 1:  # the usual one: nothing to cut
                yield StoredRows(
                    self._calls[0], self.row_indices, stored, sum([share.stop - share.start for share in stored])
                )
                return
            by_call: defaultdict[Call, list[Share]] = defaultdict(list)
            for start, stop, partition, offset, time in stored:
                for call, first, last in self.shares(start, stop):
                    first_offset = offset + first - start if offset >= 0 else -1
                    by_call[call].append(Share(first, last, partition, first_offset, time))
            for call in [call for call in self._calls if call in by_call]:
                found = by_call[call]
                yield StoredRows(call, self.row_indices, found, sum([share.stop - share.start for share in found]))
            return
        numbers, shares = self._cut(np.fromiter(chain.from_iterable(stored), np.int64, 5 * len(stored)).reshape(-1, 5))
        rows = np.bincount(numbers, shares[:, 1] - shares[:, 0]).astype(np.int64).tolist()
        shares = shares.take(numbers.argsort(kind="stable"), axis=0)  # each call gets a part of it, not a copy
        begin = 0
        for number, end in enumerate(np.bincount(numbers).cumsum().tolist()):
            if begin < end:
                yield StoredRows(self._calls[number], self.row_indices, shares[begin:end], rows[number])
            begin = end

    def _cut(self, stored: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """`shares` for many ranges at once, as arrays: the number of the call of each share, and the shares."""
        begins, ends = stored.T[:2]
        at = self._starts.searchsorted(begins, "right") - 1
        counts = self._starts.searchsorted(ends, "left") - at
        shares = stored.repeat(counts, axis=0)
        runs = np.arange(len(shares)) + (at + counts - counts.cumsum()).repeat(counts)
        firsts, lasts, _, shifted, _ = shares.T
        known = shifted >= 0
        shifted -= firsts * known
        np.maximum(firsts, self._starts[runs], out=firsts)
        np.minimum(lasts, self._starts[runs + 1], out=lasts)
        shifted += firsts * known
        return self._numbers[runs], shares


class BatchRows(NamedTuple):
    """Rows [start, stop) of `origins` are the records of a batch from `first_offset_delta` on."""

    origins: RowOrigins
    start: int
    stop: int
    first_offset_delta: int

    @property
    def nbytes(self) -> int:
        """What these rows take besides their records."""
        return self.origins.nbytes(self.start, self.stop)

    def by_call(self) -> list[CallRows]:
        origins = self.origins
        return [
            CallRows(call, origins.row_indices[first:last], first - self.start + self.first_offset_delta)
            for call, first, last in origins.shares(self.start, self.stop)
        ]


def rows_of_call(call: Call, row_indices: NDArray[np.int64], first_offset_delta: int = 0) -> BatchRows:
    """Rows that all come from one call."""
    return BatchRows(RowOrigins(row_indices, [call]), 0, len(row_indices), first_offset_delta)


def rows_between(parts: Iterable[BatchRows], first_delta: int, stop_delta: int) -> tuple[BatchRows, ...]:
    """Return the rows of a batch's records with the offset deltas [first_delta, stop_delta), as rows of a batch that
    begins with them."""
    found: list[BatchRows] = []
    for origins, begin, end, first_offset_delta in parts:
        shift = begin - first_offset_delta
        start, stop = max(begin, first_delta + shift), min(end, stop_delta + shift)
        if start < stop:
            found.append(BatchRows(origins, start, stop, start - shift - first_delta))
    return tuple(found)


def alone(parts: Sequence[BatchRows]) -> BatchRows:
    """The rows of a batch as a group of their own: the memory of those that they were grouped with can be freed."""
    shares = [share for part in parts for share in part.origins.shares(part.start, part.stop)]
    number_of = {call: number for number, call in enumerate(dict.fromkeys([call for call, _, _ in shares]))}
    numbers = np.array([number_of[call] for call, _, _ in shares], np.int32)
    row_indices = np.concatenate([part.origins.row_indices[part.start : part.stop] for part in parts])
    numbers = numbers.repeat([last - first for _, first, last in shares])
    origins = RowOrigins(row_indices, list(number_of), numbers, parts[-1].origins.group)
    return BatchRows(origins, 0, len(row_indices), parts[0].first_offset_delta)
