"""What futures resolve to: where a record is, or what became of the rows of a send_columns().

Columns resolve even when rows fail: the failures are part of the result, with the rows' positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.calls import FailedRows, Shares

_NO_OFFSET = np.iinfo(np.int64).max


class RecordMetadata(NamedTuple):
    """The place of a stored record. `offset` is -1 if the broker did not send it (acks=0, a retry of a stored batch).

    Example:

        metadata = producer.send("orders", b"12.50").result(timeout=60)
        print(metadata.topic, metadata.partition, metadata.offset)
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    serialized_key_size: int = -1
    serialized_value_size: int = -1


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Rows written to one partition. Other writers' records may lie between the first and the last offset.

    An offset of -1 is one that the broker did not send (acks=0, or a retry whose first attempt was stored).
    """

    first_offset: int
    last_offset: int
    rows: int

    def __add__(self, other: OffsetRange) -> OffsetRange:
        known = [offset for offset in (self.first_offset, other.first_offset) if offset >= 0]
        return OffsetRange(min(known, default=-1), max(self.last_offset, other.last_offset), self.rows + other.rows)


def written_ranges(stored: Sequence[Shares]) -> dict[int, OffsetRange]:
    """What was written of one call or several, by partition."""
    shares = np.concatenate([np.empty((0, 5), np.int64), *map(np.asarray, stored)])
    firsts, lasts, partitions, offsets, _ = shares[shares[:, 2].argsort(kind="stable")].T
    begins = np.flatnonzero(np.diff(partitions, prepend=-1))
    counts, known = lasts - firsts, offsets >= 0
    lowest = np.minimum.reduceat(np.where(known, offsets, _NO_OFFSET), begins)
    highest = np.maximum.reduceat(np.where(known, offsets + counts - 1, -1), begins)
    columns = partitions[begins], np.where(lowest == _NO_OFFSET, -1, lowest), highest, np.add.reduceat(counts, begins)
    return {row[0]: OffsetRange(*row[1:]) for row in np.stack(columns, axis=1).tolist()}


_MAX_SHARES = 1 << 16
"""That many shares are summed up at a time. With thousands of partitions a call has about one row in each: to sum up
the ranges of each call by itself costs as much as to send its rows."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsResult:
    """The rows of one send_columns() that were written, by partition, and those that failed.

    Example:

        columns = RecordColumns(value=pa.array(["12.50", "8.00"]))
        result = producer.send_columns("orders", columns).result(timeout=60)
        for failure in result.failures:
            print(failure.rows, failure.error)
    """

    topic: str
    failures: tuple[FailedRows, ...]
    rows_written: int
    stored: Sequence[Shares] = field(repr=False)
    """What brokers have of the call, answer by answer."""

    @property
    def partitions(self) -> dict[int, OffsetRange]:
        """What was written, by partition; summed up here, since many never look."""
        return written_ranges(self.stored)

    @property
    def rows_failed(self) -> int:
        return sum(len(failure.rows) for failure in self.failures)

    def raise_for_failures(self) -> None:
        """Raise DeliveryError, with the first failure as its cause, if any row was not written."""
        if self.failures:
            first = self.failures[0]
            raise DeliveryError(
                f"{self.rows_failed} of {self.rows_written + self.rows_failed} rows were not written to topic "
                f"{self.topic}. The first of them is row {int(first.rows[0])}: {first.error}"
            ) from first.error


class WrittenRanges:
    """The offset ranges of the results of many calls, by topic and partition."""

    def __init__(self) -> None:
        self._ranges: dict[str, dict[int, OffsetRange]] = {}
        self._shares: dict[str, list[Shares]] = {}  # by topic, not in _ranges yet
        self._share_count = 0

    def add(self, result: ColumnsResult) -> None:
        self._shares.setdefault(result.topic, []).extend(result.stored)
        self._share_count += sum(map(len, result.stored))
        if self._share_count > _MAX_SHARES:
            self._sum_up()

    def by_topic(self) -> dict[str, dict[int, OffsetRange]]:
        """Return the ranges of all results so far. Topics without a written row are left out."""
        self._sum_up()
        return self._ranges

    def _sum_up(self) -> None:
        for topic, shares in self._shares.items():
            for partition, written in written_ranges(shares).items():
                ranges = self._ranges.setdefault(topic, {})
                ranges[partition] = ranges[partition] + written if partition in ranges else written
        self._shares.clear()
        self._share_count = 0
