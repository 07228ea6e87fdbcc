"""DigestCollector: digests of the written rows, by topic and partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.results import ColumnsResult, OffsetRange
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import (
    DIGEST_COLUMNS,
    RecordHashes,
    UInt64Array,
    carry_digests,
    digest_to_int,
    hash_records,
)


class DigestCollector:
    """Adds up the hashes of the rows that brokers have stored. The results must have row indices."""

    def __init__(self) -> None:
        self._digests: dict[str, UInt64Array] = {}
        """Arrays with one row per partition, in the layout of RecordHashes.sum_groups, by topic."""

    def add(self, result: ColumnsResult, columns: RecordColumns) -> None:
        """Add the written rows of a call. `columns`: all rows of the call."""
        if not result.rows_written:
            return
        hashes = hash_records(columns)
        for stored, row_indices in zip(result.stored, result.row_indices, strict=True):
            self._add_ranges(result.topic, np.asarray(stored), hashes, row_indices)

    def attach_to(self, ranges: dict[str, dict[int, OffsetRange]]) -> dict[str, dict[int, OffsetRange]]:
        """Return the offset ranges of the same rows with their digests."""
        return {
            topic: {
                partition: replace(written, digest=digest_to_int(self._digests[topic][partition]))
                for partition, written in topic_ranges.items()
            }
            for topic, topic_ranges in ranges.items()
        }

    def _add_ranges(
        self, topic: str, stored: NDArray[np.int64], hashes: RecordHashes, row_indices: NDArray[np.int64]
    ) -> None:
        starts, stops, partitions, _, _ = stored[stored[:, 2].argsort(kind="stable")].T
        counts = stops - starts
        ends = counts.cumsum()
        positions = np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
        first_ranges = np.flatnonzero(np.diff(partitions, prepend=-1))  # the first range of each partition
        sums = hashes.take(row_indices[positions]).sum_groups((ends - counts)[first_ranges])
        digests = self._ensure_partition(topic, int(partitions[-1]))
        digests[partitions[first_ranges]] += sums
        carry_digests(digests)

    def _ensure_partition(self, topic: str, partition: int) -> UInt64Array:
        """Return the digests of a topic, extended to at least this partition."""
        digests = self._digests.get(topic)
        if digests is None or len(digests) <= partition:
            extended = np.zeros((partition + 1, DIGEST_COLUMNS), np.uint64)
            if digests is not None:
                extended[: len(digests)] = digests
            self._digests[topic] = digests = extended
        return digests
