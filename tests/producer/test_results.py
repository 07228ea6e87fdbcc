"""Results: offset ranges are merged over many calls instead of being kept per call."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_kafka_sink.producer import results
from spark_kafka_sink.producer.calls import StoredRange, StoredRanges
from spark_kafka_sink.producer.results import ColumnsResult, OffsetRange, OffsetRangeCollector, merge_stored_ranges


def result(topic: str, *shares: StoredRange) -> ColumnsResult:
    return ColumnsResult(topic, (), sum(share.stop - share.start for share in shares), [list(shares)])


def test_merges_ranges_of_many_results_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_MAX_UNMERGED_RANGES", 5)
    counts: list[int] = []

    def count(stored: Sequence[StoredRanges]) -> dict[int, OffsetRange]:
        counts.append(sum(map(len, stored)))
        return merge_stored_ranges(stored)

    monkeypatch.setattr(results, "merge_stored_ranges", count)
    written = OffsetRangeCollector()
    for number in range(10):
        written.add(result("a", StoredRange(0, 3, 0, 3 * number, -1), StoredRange(3, 5, 1, 2 * number, -1)))
    assert counts == [6, 6, 6], "two shares a result: after every third one"
    assert written.by_topic() == {"a": {0: OffsetRange(0, 29, 30), 1: OffsetRange(0, 19, 20)}}
    assert counts == [6, 6, 6, 2]


def test_collects_ranges_by_topic_and_omits_topics_without_written_rows() -> None:
    written = OffsetRangeCollector()
    for added in (
        result("a", StoredRange(0, 1, 0, 7, -1)),
        result("b", StoredRange(0, 2, 0, 4, -1)),
        ColumnsResult("c", (), 0, ()),
    ):
        written.add(added)
    assert written.by_topic() == {"a": {0: OffsetRange(7, 7, 1)}, "b": {0: OffsetRange(4, 5, 2)}}
    written.add(result("a", StoredRange(0, 1, 0, 8, -1)))
    assert written.by_topic()["a"] == {0: OffsetRange(7, 8, 2)}
