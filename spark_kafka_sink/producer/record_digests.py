"""DigestCollector: computes digests of the written rows by topic and partition."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.calls import StoredRanges
from spark_kafka_sink.producer.results import ColumnsResult, OffsetRange
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import UInt64Array, hash_records, join_sums, split_hashes


class DigestCollector:
    """Sums the hashes of the rows that brokers have stored, for each topic and partition.

    The results must contain row indices, so pass `keep_row_indices=True` to send_columns().
    """

    def __init__(self) -> None:
        self._digests: dict[str, UInt64Array] = {}
        """For each topic, an array with one row per partition: the sums of the upper and of the lower hash halves."""

    def add(self, result: ColumnsResult, columns: RecordColumns) -> None:
        """Add the written rows of a call.

        `columns`: all rows of the call, including those that were not written.
        """
        if not result.rows_written:
            return
        hashes = hash_records(columns)
        # Responses usually share an array of row indices, so adding their ranges together takes fewer numpy calls.
        row_indices_by_id = {id(row_indices): row_indices for row_indices in result.row_indices}
        ranges_by_id: defaultdict[int, list[StoredRanges]] = defaultdict(list)
        for stored_ranges, row_indices in zip(result.stored, result.row_indices, strict=True):
            ranges_by_id[id(row_indices)].append(stored_ranges)
        for array_id, row_indices in row_indices_by_id.items():
            range_array = np.concatenate([np.asarray(stored_ranges) for stored_ranges in ranges_by_id[array_id]])
            self._add_ranges(result.topic, range_array, row_indices, hashes)

    def attach_digests(self, ranges_by_topic: dict[str, dict[int, OffsetRange]]) -> dict[str, dict[int, OffsetRange]]:
        """Return the offset ranges by topic and partition, with their digests. The ranges must cover the added rows."""
        return {
            topic: {
                partition: replace(offset_range, digest=join_sums(*self._digests[topic][partition].tolist()))
                for partition, offset_range in topic_ranges.items()
            }
            for topic, topic_ranges in ranges_by_topic.items()
        }

    def _add_ranges(
        self, topic: str, stored_ranges: NDArray[np.int64], row_indices: NDArray[np.int64], hashes: UInt64Array
    ) -> None:
        """Add stored ranges of one row group.

        `row_indices`: for each row of the group, its index in the call.
        `hashes`: the hash of each row of the call.
        """
        starts, stops, partitions, _base_offsets, _log_append_times = stored_ranges.T
        row_counts = stops - starts
        # `group_indices` concatenates the rows of all ranges, as indices in the row group. Range i begins at the
        # position first_positions[i].
        end_positions = row_counts.cumsum()
        first_positions = end_positions - row_counts
        group_indices = np.arange(int(end_positions[-1])) + np.repeat(starts - first_positions, row_counts)
        hash_halves = split_hashes(hashes[row_indices[group_indices]])
        range_sums = np.stack([np.add.reduceat(half, first_positions) for half in hash_halves], axis=1)
        np.add.at(self._ensure_partition(topic, int(partitions.max())), partitions, range_sums)

    def _ensure_partition(self, topic: str, partition: int) -> UInt64Array:
        """Return the topic's sums, after adding rows up to this partition if they are missing."""
        digests = self._digests.get(topic)
        if digests is None or len(digests) <= partition:
            extended_digests = np.zeros((partition + 1, 2), np.uint64)
            if digests is not None:
                extended_digests[: len(digests)] = digests
            self._digests[topic] = digests = extended_digests
        return digests
