"""Call: the interface through which the rows of a send get their results.

One call stands for the rows of one send_columns(), or for the records of several send(). The futures implement it
(futures.py). A batch remembers which rows of which calls its records are (batching/row_origins.py). When the batch is
done, each of these calls receives either the ranges of its rows that brokers have stored, or the error of its rows.
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
    """Rows [start, stop) of one group, which a broker has stored at consecutive offsets of one partition."""

    start: int
    stop: int
    partition: int
    base_offset: int
    """The offset of the first row; -1 if it is unknown."""
    log_append_time: int
    """The timestamp that the broker assigned to the records; -1 if the records keep their own timestamps."""


make_stored_range: Callable[[tuple[int, int, int, int, int]], StoredRange] = partial(tuple.__new__, StoredRange)
"""Create a StoredRange from a tuple of its fields, in a third of the time of the class itself.

With ten thousand partitions the producer creates fifty thousand of them per second.
"""
StoredRanges: TypeAlias = "Sequence[StoredRange] | NDArray[np.int64]"
"""A few ranges as objects, or many as an array with one row per range and one column per field of StoredRange."""


@dataclass(frozen=True, slots=True, eq=False)
class FailedRows:
    """Rows that were not written, and the error. `table.take(failure.rows)` returns those of a table."""

    rows: NDArray[np.int64]
    """Row indices in the columns or the table that the caller passed."""
    error: KafkaSinkError
    topic: str | None
    """The topic of the rows; None if the topic column of the table is null in these rows."""
    partition: int | None = None
    """The partition of the rows; None if the rows failed before they were assigned to a partition."""


class Call(Protocol):
    """The rows that one send_columns() or several send() passed to the producer.

    A call receives exactly one result per row, and those of a partition in the order of its rows. Row indices are
    positions in the call.
    """

    @property
    def bytes_per_row(self) -> int:
        """The bytes of buffer.memory that each row needs for its own future, in addition to its record."""

    def complete_rows(self, row_indices: NDArray[np.int64], stored_ranges: StoredRanges, row_count: int) -> None:
        """Record that brokers have stored these ranges, `row_count` rows in total.

        `row_indices` holds the row index of each row of the group that the ranges are parts of.
        """

    def fail_rows(self, failed: FailedRows, errors_by_position: Mapping[int, KafkaSinkError] = ...) -> None:
        """Record that these rows failed.

        `errors_by_position` holds the errors of rows that the broker rejected individually, by their positions in
        `failed.rows`. All other rows failed with `failed.error` (KIP-467).
        """
