"""Call: the rows of a call of send_columns(), or of several of send(), as the rest of the producer knows them.

The futures are such calls (futures.py). A batch remembers which rows of which call its records are
(batching/row_origins.py): each call gets a Share of what brokers have stored, or the error of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import KafkaSinkError


class Share(NamedTuple):
    """Rows [start, stop) of one group, which a broker has one after the other in one partition."""

    start: int
    stop: int
    partition: int
    base_offset: int
    """Of the first row; -1 if it is not known."""
    log_append_time: int
    """-1 where records keep their own times."""


new_share: Callable[[tuple[int, int, int, int, int]], Share] = partial(tuple.__new__, Share)
"""A Share of its fields, in a third of the time: with ten thousand partitions fifty thousand are made in a second."""
Shares: TypeAlias = "Sequence[Share] | NDArray[np.int64]"
"""Few of them as objects, many as an array with a line for each, and a column for each field of Share."""


@dataclass(frozen=True, slots=True, eq=False)
class FailedRows:
    """Rows that were not written, and why. `table.take(failure.rows)` are those of a table."""

    rows: NDArray[np.int64]
    """Row indices in the columns or the table that the caller gave."""
    error: KafkaSinkError
    topic: str | None
    """None: the topic column of a table is null there."""
    partition: int | None = None
    """None: the rows failed before they were assigned to a partition."""


class Call(Protocol):
    """The rows that were given to the producer by one call of send_columns(), or by several of send(): it gets their
    results, each row once, those of a partition in their order. Row indices count in what was given."""

    @property
    def bytes_per_row(self) -> int:
        """What buffer.memory is charged for each row besides its record: for its future, if it has one of its own."""

    def stored(self, row_indices: NDArray[np.int64], shares: Shares, count: int) -> None:
        """Brokers have these shares of a group, whose rows have these indices: `count` rows together."""

    def failed(self, failed: FailedRows, named: Mapping[int, KafkaSinkError] = ...) -> None:
        """These rows failed. `named` has an error of its own for some, by their numbers in `failed.rows` (rule 6)."""
