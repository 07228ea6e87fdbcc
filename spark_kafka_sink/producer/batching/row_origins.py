"""RowOrigins: which row of which call each record of a batch is, so that futures resolve without a look at the rows.

Rows of many calls are grouped together, and then cut into batches. With a thousand partitions a call of ten thousand
rows has ten rows in each batch. So no object is made for a call's share of a batch: a batch names the rows that were
grouped together and a range of them, and the shares are found there when the batch is acknowledged or has failed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import KafkaSinkError


class Call(Protocol):
    """The rows that were given to the producer by one call of send_columns(), or by several of send(): it gets their
    results, batch by batch, each row once. `rows` are places in what was given."""

    @property
    def bytes_per_row(self) -> int:
        """What buffer.memory is charged for each row besides its record: for its future, if it has one of its own."""

    def stored(self, rows: NDArray[np.int64], partition: int, offset: int, log_append_time: int) -> None:
        """A broker has these rows, the first of them at this offset (-1 if it is not known), and one after the other.
        `log_append_time` is -1 where records keep their own times."""

    def failed(
        self,
        rows: NDArray[np.int64],
        partition: int | None,
        error: KafkaSinkError,
        named: Mapping[int, KafkaSinkError] = ...,
    ) -> None:
        """These rows failed. `named` has an error of its own for some, by their numbers in `rows` (rule 6)."""


class RowOrigins:
    """For each row that was grouped, in the order of the partitions, the call that it came with and its place there."""

    __slots__ = ("_calls", "_has_futures", "_starts", "rows")

    def __init__(self, rows: NDArray[np.int64], calls: Sequence[Call], starts: Sequence[int] = (0,)) -> None:
        """`rows` are places in the calls; from row starts[i] on, until the next start, the call is calls[i]."""
        self.rows = rows
        self._has_futures = any(call.bytes_per_row for call in dict.fromkeys(calls))  # many places name one call
        self._calls = calls
        self._starts = [*starts, len(rows)]

    def nbytes(self, start: int, stop: int) -> int:
        """What the rows in [start, stop) are charged for to buffer.memory besides their records."""
        futures = 0
        if self._has_futures:
            futures = sum([call.bytes_per_row * (end - first) for call, first, end in self.shares(start, stop)])
        return (stop - start) * self.rows.itemsize + futures

    def shares(self, start: int, stop: int) -> list[tuple[Call, int, int]]:
        """The calls that have rows in [start, stop), and which rows: call, first row, row after the last."""
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


class BatchRows(NamedTuple):
    """Rows [start, stop) of `origins` are the records of a batch from number `first_index` on."""

    origins: RowOrigins
    start: int
    stop: int
    first_index: int

    @property
    def nbytes(self) -> int:
        """What these rows take besides their records."""
        return self.origins.nbytes(self.start, self.stop)

    def by_call(self) -> list[tuple[Call, NDArray[np.int64], int]]:
        """For each call: the call, places of rows in it, and the number of the first of them in the batch."""
        origins = self.origins
        return [
            (call, origins.rows[first:last], first - self.start + self.first_index)
            for call, first, last in origins.shares(self.start, self.stop)
        ]

    def between(self, first_record: int, last_record: int) -> BatchRows | None:
        """The rows in [first_record, last_record) of the batch, counted from there; None if there are none."""
        shift = self.start - self.first_index
        start, stop = max(self.start, first_record + shift), min(self.stop, last_record + shift)
        return BatchRows(self.origins, start, stop, start - shift - first_record) if start < stop else None


def rows_of_call(call: Call, rows: NDArray[np.int64], first_index: int = 0) -> BatchRows:
    """Rows that all come from one call."""
    return BatchRows(RowOrigins(rows, [call]), 0, len(rows), first_index)
