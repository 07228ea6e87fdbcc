"""Results of send() and send_columns(), and offset ranges of written rows.

The future of send() raises the error of its record. The future of send_columns() raises no error if rows fail, because
other rows may have been written. Its result contains the failures, with the indices of the failed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.calls import FailedRows, StoredRange, StoredRanges

_NO_OFFSET = np.iinfo(np.int64).max
"""Replaces unknown offsets while the lowest offset is computed. No offset is higher, so the minimum ignores them."""


class RecordMetadata(NamedTuple):
    """The topic, partition, offset and timestamp of a stored record. Unknown numbers are -1.

    Example:

        metadata = producer.send("orders", b"12.50").result(timeout=60)
        print(metadata.topic, metadata.partition, metadata.offset)
    """

    topic: str
    partition: int
    offset: int
    """-1 if the broker did not return the offset (acks=0, or a retry of a batch that was already stored)."""
    timestamp_ms: int
    serialized_key_size: int = -1
    """The size of the key in bytes; -1 if the key is null."""
    serialized_value_size: int = -1
    """The size of the value in bytes; -1 if the value is null."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of rows that were written to one partition. Records of other producers may be in the same range.

    An offset is -1 if the broker did not return it (acks=0, or a retry of a batch that was already stored).
    """

    first_offset: int
    last_offset: int
    rows: int
    digest: int | None = None
    """The sum of the hashes of the rows modulo 2^128 (records/record_hash.py), or None if it was not computed."""
    rows_without_offset: int = 0
    """The number of rows for which the broker did not return an offset. They may be outside of the range."""

    def __add__(self, other: OffsetRange) -> OffsetRange:
        """Merge two ranges of one partition. The digest is None unless both ranges have one."""
        known_first_offsets = [offset for offset in (self.first_offset, other.first_offset) if offset >= 0]
        return OffsetRange(
            first_offset=min(known_first_offsets, default=-1),
            last_offset=max(self.last_offset, other.last_offset),
            rows=self.rows + other.rows,
            digest=_add_digests(self.digest, other.digest),
            rows_without_offset=self.rows_without_offset + other.rows_without_offset,
        )


def _add_digests(first_digest: int | None, second_digest: int | None) -> int | None:
    """Add two digests. Return None if either digest is None, because the sum would not cover all rows."""
    if first_digest is None or second_digest is None:
        return None
    from spark_kafka_sink.records.record_hash import DIGEST_MODULUS  # imported here because few writes have receipts

    return (first_digest + second_digest) % DIGEST_MODULUS


def merge_stored_ranges(stored_ranges: Sequence[StoredRanges]) -> dict[int, OffsetRange]:
    """Merge stored ranges of one topic. Return one OffsetRange per partition, keyed by partition."""
    no_ranges = np.empty((0, len(StoredRange._fields)), np.int64)  # concatenate() needs at least one array
    ranges = np.concatenate([no_ranges, *map(np.asarray, stored_ranges)])
    partition_column = ranges[:, StoredRange._fields.index("partition")]
    ranges_by_partition = ranges[partition_column.argsort(kind="stable")]
    starts, stops, partitions, base_offsets, _log_append_times = ranges_by_partition.T
    # The index of the first range of each partition, which is where the partition changes: [0, 2] for the partitions
    # [3, 3, 5]. The prepended -1 differs from every partition, so index 0 is always included.
    first_range_indices = np.flatnonzero(np.diff(partitions, prepend=-1))
    row_counts, is_offset_known = stops - starts, base_offsets >= 0
    last_offsets = base_offsets + row_counts - 1
    lowest_offsets = np.minimum.reduceat(np.where(is_offset_known, base_offsets, _NO_OFFSET), first_range_indices)
    merged_columns = (  # each has one element per partition; they are in the order in which they are unpacked below
        partitions[first_range_indices],
        np.where(lowest_offsets == _NO_OFFSET, -1, lowest_offsets),
        np.maximum.reduceat(np.where(is_offset_known, last_offsets, -1), first_range_indices),
        np.add.reduceat(row_counts, first_range_indices),
        np.add.reduceat(np.where(is_offset_known, 0, row_counts), first_range_indices),
    )
    return {
        partition: OffsetRange(first_offset, last_offset, rows, rows_without_offset=rows_without_offset)
        for partition, first_offset, last_offset, rows, rows_without_offset in np.stack(merged_columns, axis=1).tolist()
    }


_MAX_UNMERGED_RANGES = 1 << 16
"""Number of stored ranges that an OffsetRangeCollector collects before it merges them.

With thousands of partitions, a call has about one row in each, and merging the ranges of each call separately would
take as long as sending its rows.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsResult:
    """The result of one send_columns(): the written rows by partition, and the failed rows.

    Example:

        columns = RecordColumns(value=pa.array(["12.50", "8.00"]))
        result = producer.send_columns("orders", columns).result(timeout=60)
        for failure in result.failures:
            print(failure.row_indices, failure.error)
    """

    topic: str
    failures: tuple[FailedRows, ...]
    rows_written: int
    stored: Sequence[StoredRanges] = field(repr=False)
    """The stored ranges of the call, one item per response. A range contains rows of a row group (calls.py)."""
    row_indices: Sequence[NDArray[np.int64]] = field(default=(), repr=False)
    """For each item of `stored`, an array that contains the row index of each row in the item's row group.

    A row index is the position of a row in the columns that were passed to send_columns(). Empty unless send_columns()
    was called with `keep_row_indices`.
    """

    @property
    def partitions(self) -> dict[int, OffsetRange]:
        """The offsets of the written rows, by partition.

        They are computed each time they are read, because most callers never read them.
        """
        return merge_stored_ranges(self.stored)

    @property
    def rows_failed(self) -> int:
        """The number of rows that were not written."""
        return sum(len(failure.row_indices) for failure in self.failures)

    def raise_for_failures(self) -> None:
        """Raise DeliveryError if any row was not written. Its cause is the error of the first failure."""
        if self.failures:
            first_failure = self.failures[0]
            raise DeliveryError(
                f"{self.rows_failed} of {self.rows_written + self.rows_failed} rows were not written to topic "
                f"{self.topic}. The first of them is row {int(first_failure.row_indices[0])}: {first_failure.error}"
            ) from first_failure.error


class OffsetRangeCollector:
    """Merges the offset ranges of many results, by topic and partition. Not thread-safe."""

    def __init__(self) -> None:
        self._ranges: dict[str, dict[int, OffsetRange]] = {}
        self._unmerged: dict[str, list[StoredRanges]] = {}  # by topic
        self._unmerged_count = 0

    def add(self, result: ColumnsResult) -> None:
        self._unmerged.setdefault(result.topic, []).extend(result.stored)
        self._unmerged_count += sum(map(len, result.stored))
        if self._unmerged_count > _MAX_UNMERGED_RANGES:
            self._merge()

    def by_topic(self) -> dict[str, dict[int, OffsetRange]]:
        """Return the offset ranges of all results added so far. Topics without written rows are omitted."""
        self._merge()
        return self._ranges

    def _merge(self) -> None:
        """Merge the collected ranges into `_ranges`."""
        for topic, stored_ranges in self._unmerged.items():
            for partition, new_range in merge_stored_ranges(stored_ranges).items():
                ranges = self._ranges.setdefault(topic, {})
                ranges[partition] = ranges[partition] + new_range if partition in ranges else new_range
        self._unmerged.clear()
        self._unmerged_count = 0
