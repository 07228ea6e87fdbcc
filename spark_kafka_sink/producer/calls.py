"""SendCall: the interface through which sent rows receive their results.

A SendCall stands for the rows of one send_columns() call, or for the records of several send() calls. futures.py has
the implementations. A batch knows the call and the row that each of its records came from (batching/row_groups.py).
When a batch is done, every call with rows in the batch is told which of them a broker has stored, or why they failed.

A *row group* consists of rows that were encoded together, sorted by partition. They may belong to several calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import KafkaSinkError


class StoredRange(NamedTuple):
    """Rows [start, stop) of a row group, which a broker has stored at consecutive offsets of one partition."""

    start: int
    stop: int
    partition: int
    base_offset: int
    """The offset of the first row; -1 if it is unknown."""
    log_append_time: int
    """The timestamp that the broker assigned to the records; -1 if the records keep their own timestamps."""


make_stored_range: Callable[[tuple[int, int, int, int, int]], StoredRange] = partial(tuple.__new__, StoredRange)
"""Create a StoredRange from a tuple of its fields. This takes a third of the constructor's time.

The time matters, because a producer that writes to ten thousand partitions creates fifty thousand ranges per second.
"""
StoredRanges: TypeAlias = "Sequence[StoredRange] | NDArray[np.int64]"
"""Ranges as StoredRange objects or, if there are many, as an array with a line per range and a column per field."""


@dataclass(frozen=True, slots=True, eq=False)
class FailedRows:
    """Rows that were not written, and their error. For a table, `table.take(failure.row_indices)` returns the rows."""

    row_indices: NDArray[np.int64]
    """The indices of the failed rows in the columns or the table that the caller passed."""
    error: KafkaSinkError
    topic: str | None
    """The topic of the rows; None if the topic column is null in these rows."""
    partition: int | None = None
    """The partition of the rows; None if the rows failed before they were assigned to a partition."""


class SendCall(Protocol):
    """The rows that one send_columns() call, or several send() calls, passed to the producer.

    Each row receives exactly one result, and the results of a partition arrive in the order of its rows. Row indices
    are positions in the call.
    """

    @property
    def future_bytes_per_row(self) -> int:
        """Number of bytes of buffer.memory that are reserved for each row's future; 0 if all rows share a future."""

    def complete_rows(self, row_indices: NDArray[np.int64], stored_ranges: StoredRanges, row_count: int) -> None:
        """Record that brokers have stored rows of this call.

        `row_indices`: the index in the call of each row of a row group.
        `stored_ranges`: the stored rows, as ranges of this row group.
        `row_count`: the number of rows in all ranges together.
        """

    def fail_rows(self, failure: FailedRows, errors_by_position: Mapping[int, KafkaSinkError] = ...) -> None:
        """Record that the rows in `failure` have failed.

        `errors_by_position`: the errors of the rows that the broker rejected individually (KIP-467), keyed by position
        in `failure.row_indices`. All other rows have failed with `failure.error`.
        """
