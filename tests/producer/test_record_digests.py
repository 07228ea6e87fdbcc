"""Digests by topic and partition: each counts exactly the rows that brokers have stored in the partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_kafka_sink.producer.calls import StoredRange, StoredRanges
from spark_kafka_sink.producer.record_digests import DigestCollector
from spark_kafka_sink.producer.results import ColumnsResult, OffsetRange, OffsetRangeCollector
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import compute_digest, hash_records

COLUMNS = RecordColumns(pa.array([b"%d" % number for number in range(10)]))


def digest(*rows: int) -> int:
    return compute_digest(hash_records(COLUMNS.take(list(rows))))


def collect(*results: ColumnsResult) -> dict[str, dict[int, OffsetRange]]:
    ranges, digests = OffsetRangeCollector(), DigestCollector()
    for result in results:
        ranges.add(result)
        digests.add(result, COLUMNS)
    return digests.with_digests(ranges.by_topic())


def test_digests_rows_of_stored_ranges_by_partition() -> None:
    first_indices, second_indices = np.array([4, 2, 0, 9, 8]), np.array([7, 6, 5])
    stored: list[StoredRanges] = [
        [StoredRange(3, 5, 7, 50, -1), StoredRange(0, 2, 1, 10, -1)],
        np.array([[1, 2, 1, 12, -1]]),
    ]
    result = ColumnsResult("a", (), 5, stored, [first_indices, second_indices])
    assert collect(result) == {
        "a": {1: OffsetRange(10, 12, 3, digest(4, 2, 6)), 7: OffsetRange(50, 51, 2, digest(9, 8))}
    }


def test_adds_digests_of_several_results_and_topics() -> None:
    indices = np.arange(10)
    results = [
        ColumnsResult("a", (), 3, [[StoredRange(0, 3, 0, 0, -1)]], [indices]),
        ColumnsResult("b", (), 1, [[StoredRange(5, 6, 2, 0, -1)]], [indices]),
        ColumnsResult("a", (), 2, [[StoredRange(0, 1, 0, 3, -1)], [StoredRange(4, 5, 3, 0, -1)]], [indices, indices]),
        ColumnsResult("c", (), 0, ()),
    ]
    assert collect(*results) == {
        "a": {0: OffsetRange(0, 3, 4, digest(0, 1, 2, 0)), 3: OffsetRange(0, 0, 1, digest(4))},
        "b": {2: OffsetRange(0, 0, 1, digest(5))},
    }


def test_sum_of_ranges_has_a_digest_only_if_both_have_one() -> None:
    with_digest, without = OffsetRange(0, 1, 2, (1 << 128) - 1), OffsetRange(2, 3, 2)
    assert with_digest + with_digest == OffsetRange(0, 1, 4, (1 << 128) - 2)
    assert (with_digest + without).digest is None
    assert (without + with_digest).digest is None
