"""Skew is said in a sentence, with the name of what is fullest."""

from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.reports.figures import build_figures
from spark_kafka_sink.reports.skew import (
    compute_skew,
    describe_largest_partition,
    describe_skew,
    describe_task_skew,
    find_longest_write,
    task_row_counts,
)
from spark_kafka_sink.reports.text_report import render_lines
from spark_kafka_sink.reports.write_report import TaskSummary
from tests.reports.some_reports import job, report


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
def test_rows_are_even_or_skewed(rows: dict[str, int], sentence: str) -> None:
    assert describe_skew("task", rows) == sentence


def test_the_tasks_that_a_report_does_not_list_count_for_the_mean() -> None:
    """It lists the thousand that took longest, which are the fullest as well."""
    full = TaskSummary(partition_id=7, attempt=0, host="h", rows=1_000, bytes=1, duration_ms=9, retries=0, blocked_ms=0)
    listed = (full, dataclasses.replace(full, partition_id=8))
    wide = dataclasses.replace(report(), tasks=2_000, rows=200_000, task_list=listed)
    words = "2,000 tasks; the largest (7) has 10.0 times the mean, which is skewed."
    assert describe_task_skew(wide) == words
    assert words in "\n".join(render_lines([wide]))
    assert "mean 100<" in str(build_figures([wide])), "a line in the chart"


def test_a_name_does_not_act_on_the_terminal() -> None:
    assert "\x1b" not in describe_skew("partition", {"\x1b[2J-0": 9, "t-1": 1})


def test_the_fullest_is_compared_with_the_mean() -> None:
    assert compute_skew([]) == 1.0
    assert compute_skew([3, 0, 0]) == 3.0


def test_the_longest_write_that_lists_tasks_is_looked_at() -> None:
    longer = dataclasses.replace(report(1), duration_ms=9_000)
    longest_without = dataclasses.replace(report(2), duration_ms=99_000, task_list=())
    assert find_longest_write([report(0), longer, longest_without]) is longer
    assert find_longest_write([longest_without]) is None
    assert task_row_counts(longer) == {"0": 1_000}


def test_the_fullest_partition_has_its_share_of_all_rows() -> None:
    assert describe_largest_partition(dataclasses.replace(report(), partitions={})) == ""
    two = {"orders": {0: OffsetRange(0, 0, 10), 4: OffsetRange(0, 0, 30)}}
    assert describe_largest_partition(dataclasses.replace(report(), partitions=two)) == "orders-4 has 75 % of the rows."
    assert describe_largest_partition(job(1)[0]).startswith("orders-5 has ")
