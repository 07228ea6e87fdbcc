"""Skew of rows over tasks and partitions."""

from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.reports.figures import build_figures
from spark_kafka_sink.reports.skew import (
    compute_skew,
    count_task_rows,
    describe_largest_partition,
    describe_skew,
    describe_task_skew,
    find_longest_write,
)
from spark_kafka_sink.reports.text_report import render_report_lines
from spark_kafka_sink.reports.write_report import TaskSummary
from tests.reports.report_factories import make_micro_batches, make_report


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({}, "No task has rows."),
        ({"0": 5}, "All rows are in one task."),
        ({"0": 5, "1": 5}, "2 tasks; the largest (0) has 1.0 times the mean, which is balanced."),
        ({"0": 1, "7": 9, "8": 2}, "3 tasks; the largest (7) has 2.2 times the mean, which is skewed."),
        ({"0": 0, "1": 0}, "2 tasks; the largest (0) has 1.0 times the mean, which is balanced."),
    ],
)
def test_describes_rows_as_balanced_or_skewed(rows: dict[str, int], sentence: str) -> None:
    assert describe_skew("task", rows) == sentence


def test_mean_includes_tasks_that_are_not_listed() -> None:
    """A report lists only the thousand longest tasks, which tend to have more rows than the others."""
    largest = TaskSummary(
        partition_id=7, attempt=0, host="h", rows=1_000, bytes=1, duration_ms=9, retries=0, blocked_ms=0
    )
    tasks = (largest, dataclasses.replace(largest, partition_id=8))
    many_tasks = dataclasses.replace(make_report(), tasks=2_000, rows=200_000, task_list=tasks)
    sentence = "2,000 tasks; the largest (7) has 10.0 times the mean, which is skewed."
    assert describe_task_skew(many_tasks) == sentence
    assert sentence in "\n".join(render_report_lines([many_tasks]))
    assert "mean 100<" in str(build_figures([many_tasks])), "reference line of the chart"


def test_sanitizes_names_in_skew_description() -> None:
    assert "\x1b" not in describe_skew("partition", {"\x1b[2J-0": 9, "t-1": 1})


def test_skew_is_ratio_of_maximum_to_mean() -> None:
    assert compute_skew([]) == 1.0
    assert compute_skew([3, 0, 0]) == 3.0


def test_longest_write_must_list_tasks() -> None:
    longer = dataclasses.replace(make_report(1), duration_ms=9_000)
    longer_without_tasks = dataclasses.replace(make_report(2), duration_ms=99_000, task_list=())
    assert find_longest_write([make_report(0), longer, longer_without_tasks]) is longer
    assert find_longest_write([longer_without_tasks]) is None
    assert count_task_rows(longer) == {"0": 1_000}


def test_describes_share_of_largest_partition() -> None:
    assert describe_largest_partition(dataclasses.replace(make_report(), partitions={})) == ""
    partitions = {"orders": {0: OffsetRange(0, 0, 10), 4: OffsetRange(0, 0, 30)}}
    assert (
        describe_largest_partition(dataclasses.replace(make_report(), partitions=partitions))
        == "orders-4 has 75% of the rows."
    )
    assert describe_largest_partition(make_micro_batches(1)[0]).startswith("orders-5 has ")
