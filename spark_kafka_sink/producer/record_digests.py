"""DigestCollector: computes digests of the written rows by topic and partition.

A digest is the sum of the 64-bit hashes of rows (records/record_hash.py). The receipt of a write contains the digests,
so that whoever reads the topic can verify that it still contains the written rows.
"""

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
        self._sums: dict[str, UInt64Array] = {}
        """The sums of each topic, as an array with a line per partition and two columns.

        The first column is the sum of the upper halves of the hashes, the second that of the lower halves. They are
        separate, because a sum of whole hashes would overflow 64 bits.
        """

    def add(self, result: ColumnsResult, columns: RecordColumns) -> None:
        """Add the written rows of one send_columns() call.

        `columns`: all rows of the call, including those that were not written.
        """
        if not result.rows_written:
            return
        hashes = hash_records(columns)
        for row_indices, stored_ranges in _group_by_row_indices(result):
            self._add_ranges(result.topic, stored_ranges, row_indices, hashes)

    def with_digests(self, ranges_by_topic: dict[str, dict[int, OffsetRange]]) -> dict[str, dict[int, OffsetRange]]:
        """Return a copy of the offset ranges, by topic and partition, with the digest set in each of them.

        The ranges must cover exactly the rows that were added.
        """
        return {
            topic: {
                partition: replace(offset_range, digest=join_sums(*self._sums[topic][partition].tolist()))
                for partition, offset_range in topic_ranges.items()
            }
            for topic, topic_ranges in ranges_by_topic.items()
        }

    def _add_ranges(
        self, topic: str, stored_ranges: NDArray[np.int64], row_indices: NDArray[np.int64], hashes: UInt64Array
    ) -> None:
        """Add the hashes of the rows in `stored_ranges` to the sums of their partitions.

        `stored_ranges`: at least one range of a row group (rows that were encoded together), as an array with a line
        per range and a column per field of StoredRange.
        `row_indices`: for each row of the group, its index in the send_columns() call.
        `hashes`: the hash of each row of the call.
        """
        starts, stops, partitions, _base_offsets, _log_append_times = stored_ranges.T
        row_counts = stops - starts
        # `indices_in_group` lists the rows of all ranges, one range after the other, and first_positions[i] is the
        # position in this list at which range i begins. For example, the ranges [5, 8) and [20, 22) begin at [0, 3], so
        # the list is [0, 1, 2, 3, 4] + [5, 5, 5, 17, 17] = [5, 6, 7, 20, 21].
        end_positions = row_counts.cumsum()
        first_positions = end_positions - row_counts
        indices_in_group = np.arange(int(end_positions[-1])) + np.repeat(starts - first_positions, row_counts)
        # reduceat() adds up the hashes of each range. Several ranges may have the same partition, so use np.add.at():
        # `+=` with an array of partitions would add only one of them.
        hash_halves = split_hashes(hashes[row_indices[indices_in_group]])
        range_sums = np.stack([np.add.reduceat(half, first_positions) for half in hash_halves], axis=1)
        np.add.at(self._get_sums(topic, int(partitions.max()) + 1), partitions, range_sums)

    def _get_sums(self, topic: str, min_partition_count: int) -> UInt64Array:
        """Return the sums of a topic, extended with zeros if they have fewer than `min_partition_count` partitions."""
        topic_sums = self._sums.get(topic)
        if topic_sums is None or len(topic_sums) < min_partition_count:
            extended_sums = np.zeros((min_partition_count, 2), np.uint64)
            if topic_sums is not None:
                extended_sums[: len(topic_sums)] = topic_sums
            self._sums[topic] = topic_sums = extended_sums
        return topic_sums


def _group_by_row_indices(result: ColumnsResult) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return each array of row indices in the result, with all stored ranges that refer to this array.

    Several responses usually refer to the same array, so handling their ranges together takes fewer numpy calls. Arrays
    are compared by identity (`id`), because comparing their elements would take too long. This is safe, because the
    result keeps all arrays alive, so no id is reused.
    """
    index_array_by_id = {id(row_indices): row_indices for row_indices in result.row_indices}
    ranges_by_array_id: defaultdict[int, list[StoredRanges]] = defaultdict(list)
    for stored_ranges, row_indices in zip(result.stored, result.row_indices, strict=True):
        ranges_by_array_id[id(row_indices)].append(stored_ranges)
    return [
        (row_indices, np.concatenate([np.asarray(stored_ranges) for stored_ranges in ranges_by_array_id[array_id]]))
        for array_id, row_indices in index_array_by_id.items()
    ]
