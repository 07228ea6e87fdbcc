"""DigestCollector: computes digests of the written rows by topic and partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.calls import StoredRanges
from spark_kafka_sink.producer.results import ColumnsResult, OffsetRange
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import UInt64Array, hash_records, join_sums, split_hashes


class DigestCollector:
    """Sums the hashes of the rows that brokers have stored. The results must contain row indices."""

    def __init__(self) -> None:
        self._digests: dict[str, UInt64Array] = {}
        """The sums of the upper and lower halves of the hashes of each partition, by topic."""

    def add(self, result: ColumnsResult, columns: RecordColumns) -> None:
        """Add the written rows of a call. `columns`: all rows of the call."""
        if not result.rows_written:
            return
        hashes = hash_records(columns)
        # Responses usually share an array of row indices, so adding their ranges together takes fewer numpy calls.
        stored_by_group: dict[int, tuple[NDArray[np.int64], list[StoredRanges]]] = {}
        for stored, row_indices in zip(result.stored, result.row_indices, strict=True):
            stored_by_group.setdefault(id(row_indices), (row_indices, []))[1].append(stored)
        for row_indices, group in stored_by_group.values():
            self._add_ranges(
                result.topic, np.concatenate([np.asarray(stored) for stored in group]), hashes, row_indices
            )

    def attach_to(self, ranges: dict[str, dict[int, OffsetRange]]) -> dict[str, dict[int, OffsetRange]]:
        """Return the offset ranges, which must cover the same rows, with their digests."""
        return {
            topic: {
                partition: replace(written, digest=join_sums(*self._digests[topic][partition].tolist()))
                for partition, written in topic_ranges.items()
            }
            for topic, topic_ranges in ranges.items()
        }

    def _add_ranges(
        self, topic: str, stored: NDArray[np.int64], hashes: UInt64Array, row_indices: NDArray[np.int64]
    ) -> None:
        starts, stops, partitions, _, _ = stored.T
        counts = stops - starts
        ends = counts.cumsum()
        positions = np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
        halves = split_hashes(hashes[row_indices[positions]])
        range_sums = np.stack([np.add.reduceat(half, ends - counts) for half in halves], axis=1)
        np.add.at(self._ensure_partition(topic, int(partitions.max())), partitions, range_sums)

    def _ensure_partition(self, topic: str, partition: int) -> UInt64Array:
        """Return the topic's sums, extended to include this partition if necessary."""
        digests = self._digests.get(topic)
        if digests is None or len(digests) <= partition:
            extended = np.zeros((partition + 1, 2), np.uint64)
            if digests is not None:
                extended[: len(digests)] = digests
            self._digests[topic] = digests = extended
        return digests
