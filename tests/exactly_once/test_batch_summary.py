"""Comparison of batches by their rows per topic."""

from __future__ import annotations

from spark_kafka_sink.exactly_once.batch_summary import MAX_LISTED_TOPICS, BatchSummary, summarize_tasks


def test_contents_with_equal_row_counts_per_topic_are_equal() -> None:
    summary = BatchSummary.from_row_counts({"a": 3, "b": 1}, 40)
    assert summary.has_same_row_counts(BatchSummary.from_row_counts({"b": 1, "a": 3, "c": 0}, 40))
    assert not summary.has_same_row_counts(BatchSummary.from_row_counts({"a": 1, "b": 3}, 40))
    assert not summary.has_same_row_counts(BatchSummary.from_row_counts({"a": 4}, 40))
    assert not summary.has_same_row_counts(BatchSummary.from_row_counts({"a": 3, "b": 1, "c": 1}, 40))


def test_contents_with_different_bytes_are_equal() -> None:
    """A value may contain the current time."""
    assert BatchSummary.from_row_counts({"a": 3}, 40).has_same_row_counts(BatchSummary.from_row_counts({"a": 3}, 41))


def test_unlisted_topics_are_compared() -> None:
    many = {f"t{number:03}": 1 for number in range(MAX_LISTED_TOPICS + 5)}
    summary = BatchSummary.from_row_counts(many, 0)
    assert len(summary.topics) == MAX_LISTED_TOPICS
    assert summary.rows == len(many)
    last = max(many)
    assert not summary.has_same_row_counts(BatchSummary.from_row_counts(many | {last: 2}, 0))


def test_sums_contents_of_tasks() -> None:
    assert summarize_tasks([({"a": 1}, 10), ({"a": 2, "b": 1}, 5), ({}, 0)]) == BatchSummary.from_row_counts(
        {"a": 3, "b": 1}, 15
    )


def test_str_lists_rows_bytes_and_topics() -> None:
    assert str(BatchSummary.from_row_counts({"b": 1, "a": 3}, 40)) == "4 rows with 40 bytes in total (a: 3, b: 1)"
    assert str(BatchSummary.from_row_counts({}, 0)) == "0 rows with 0 bytes in total (no topic)"
    assert str(BatchSummary.from_row_counts({"a": 1}, 1)) == "1 row with 1 byte in total (a: 1)"
