"""Owners: whose rows a batch carries, so that offsets and failures can be told row by row without a look at the rows.

Rows of many calls are grouped together, and a grouping is cut into pieces, each for one batch. With a thousand
partitions a call of ten thousand rows has ten in each piece. So nothing is made for a call's share of a piece: a piece
names its grouping and its rows' places in it, and the shares are found there when the outcome is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class BatchPart(NamedTuple):
    """Rows of one send call in one batch: row `rows[i]` of the call is record `first_index + i` of the batch.

    `call` is what the accumulator was given with the rows and is never looked into here. For single records it is the
    list of what came with each record, and `rows` are positions in that list.
    """

    call: object
    rows: NDArray[np.int64]
    first_index: int


FUTURE_BYTES = 256
"""What a record of send() takes, besides its own bytes, until it is acknowledged: its future, mostly."""


_FIRST_POSITIONS = np.arange(16_384, dtype=np.int64)
_FIRST_POSITIONS.setflags(write=False)


def positions(count: int) -> NDArray[np.int64]:
    """0, 1, 2 and so on: the rows of a call from which none was left out. Most calls share them, so: read only."""
    return _FIRST_POSITIONS[:count] if count <= len(_FIRST_POSITIONS) else np.arange(count, dtype=np.int64)


class RowOwners:
    """For each row of a grouping, in its order, which row of which call it is."""

    __slots__ = ("_calls", "_starts", "only_call", "row_bytes", "rows")

    def __init__(self, rows: NDArray[np.int64], calls: Sequence[object], starts: Sequence[int] = (0,)) -> None:
        """`rows` are positions in the calls; from row starts[i] on, until the next start, the call is calls[i]."""
        self.rows = rows
        singles = list in map(type, calls)
        self.row_bytes = rows.itemsize + (FUTURE_BYTES if singles else 0)  # charged to buffer.memory for each row
        self._calls = calls
        self.only_call = calls[0] if len(calls) == 1 else None
        self._starts = [*starts, len(rows)]

    def shares(self, start: int, stop: int) -> list[tuple[object, int, int]]:
        """The calls that have rows in [start, stop), and which: call, first row, row after the last."""
        if self.only_call is not None:
            return [(self.only_call, start, stop)]
        calls, starts = self._calls, self._starts
        at = bisect_right(starts, start) - 1
        end = starts[at + 1]
        if stop <= end:
            return [(calls[at], start, stop)]
        found = []
        while end < stop:
            found.append((calls[at], start, end))
            at += 1
            start, end = end, starts[at + 1]
        found.append((calls[at], start, stop))
        return found


class PieceRows(NamedTuple):
    """Rows [start, stop) of a grouping; in the batch they are the records from number `first_index` on."""

    owners: RowOwners
    start: int
    stop: int
    first_index: int

    @property
    def nbytes(self) -> int:
        """What these rows take besides the records."""
        return (self.stop - self.start) * self.owners.row_bytes

    @property
    def parts(self) -> list[BatchPart]:
        """The share of each call."""
        return [
            BatchPart(call, self.owners.rows[first:last], first - self.start + self.first_index)
            for call, first, last in self.owners.shares(self.start, self.stop)
        ]

    def between(self, first_record: int, last_record: int) -> PieceRows | None:
        """What of it is among these records of the batch (the last one is not), counted from the first of them."""
        shift = self.start - self.first_index
        start, stop = max(self.start, first_record + shift), min(self.stop, last_record + shift)
        return PieceRows(self.owners, start, stop, start - shift - first_record) if start < stop else None


def rows_of_call(call: object, rows: NDArray[np.int64], first_index: int = 0) -> PieceRows:
    """A piece with rows of one call."""
    return PieceRows(RowOwners(rows, [call]), 0, len(rows), first_index)
