"""Skew: how unevenly a write's rows are distributed over tasks and partitions.

If the `distribution` option is set, one task writes all rows of a partition or key. If most rows belong to one
partition or key, the whole write takes as long as that one task.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping

from spark_kafka_sink.diagnostics.text import format_count, sanitize
from spark_kafka_sink.reports.write_report import WriteReport

SKEW_THRESHOLD = 1.5
"""Rows count as skewed if the largest row count is at least this many times the mean."""


def compute_skew(row_counts: Collection[int], mean: float | None = None) -> float:
    """Return the ratio of the largest row count to the mean, or 1 if there are no rows.

    `mean`: the mean over all units; needed if `row_counts` covers only some of them.
    """
    if mean is None:
        mean = statistics.fmean(row_counts) if row_counts else 0.0
    return max(row_counts) / mean if mean and row_counts else 1.0


def describe_skew(noun: str, row_counts: Mapping[str, int]) -> str:
    """Describe in one sentence how rows are distributed over partitions or other units.

    `noun`: what a unit is called, in the singular, such as "partition".
    `row_counts`: the row count by unit name.
    """
    return _describe_distribution(noun, row_counts, total_count=len(row_counts))


def describe_task_skew(report: WriteReport) -> str:
    """Describe in one sentence how a write's rows are distributed over its tasks.

    A report lists at most MAX_LISTED_TASKS tasks, but the mean is taken over all tasks.
    """
    mean = compute_mean_task_rows(report)
    return _describe_distribution("task", count_task_rows(report), total_count=report.tasks, mean=mean)


def _describe_distribution(
    noun: str, row_counts: Mapping[str, int], *, total_count: int, mean: float | None = None
) -> str:
    """Describe the distribution of rows over `total_count` units.

    `row_counts`: the row count by unit name; may omit units, but not the largest.
    `mean`: the mean over all units; computed from `row_counts` if None.
    """
    if not row_counts:
        return f"No {noun} has rows."
    if total_count == 1:
        return f"All rows are in one {noun}."
    skew = compute_skew(row_counts.values(), mean)
    largest = max(row_counts, key=lambda name: row_counts[name])
    verdict = "which is balanced" if skew < SKEW_THRESHOLD else "which is skewed"
    units = format_count(total_count, noun)
    return f"{units}; the largest ({sanitize(largest)}) has {skew:.1f} times the mean, {verdict}."


def find_longest_write(reports: Iterable[WriteReport]) -> WriteReport | None:
    """Return the longest write among the reports that list tasks, or None if no report does."""
    return max((report for report in reports if report.task_list), key=lambda report: report.duration_ms, default=None)


def compute_mean_task_rows(report: WriteReport) -> float:
    """Return the mean row count of all tasks, including those that the report does not list."""
    return report.rows / report.tasks if report.tasks else 0.0


def count_task_rows(report: WriteReport) -> dict[str, int]:
    """Return the row count of each listed task by task number."""
    return {str(task.partition_id): task.rows for task in report.task_list}


def describe_largest_partition(report: WriteReport) -> str:
    """Describe in one sentence the partition with the most rows. Return "" if there are no rows."""
    row_counts = {
        f"{topic}-{partition}": offsets.rows
        for topic, topic_ranges in report.partitions.items()
        for partition, offsets in topic_ranges.items()
    }
    total_rows = sum(row_counts.values())
    if not total_rows:
        return ""
    largest = max(row_counts, key=lambda name: row_counts[name])
    return f"{sanitize(largest)} has {100 * row_counts[largest] / total_rows:.0f}% of the rows."
