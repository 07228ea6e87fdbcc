"""Skew: are the rows of a write spread evenly over its tasks, and over partitions?

Where each partition or key has one task (the option distribution), one that has most of the rows makes one task as long
as the write.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping

from spark_kafka_sink.diagnostics.text import format_count, sanitize
from spark_kafka_sink.reports.write_report import WriteReport

SKEW_THRESHOLD = 1.5
"""The fullest has this many times the mean, or more."""


def compute_skew(rows: Collection[int], mean: float | None = None) -> float:
    """The fullest, in times of the mean; 1 where there is nothing to compare. `mean`: where not all rows are here."""
    if mean is None:
        mean = statistics.fmean(rows) if rows else 0.0
    return max(rows) / mean if mean and rows else 1.0


def describe_skew(kind: str, rows: Mapping[str, int]) -> str:
    """A sentence about the rows of each partition, by name."""
    return _sentence(kind, rows, len(rows), None)


def describe_task_skew(report: WriteReport) -> str:
    """A sentence about the rows of each task. A report lists some of many tasks, and has the rows of all."""
    return _sentence("task", task_row_counts(report), report.tasks, mean_task_rows(report))


def _sentence(kind: str, rows: Mapping[str, int], count: int, mean: float | None) -> str:
    if not rows:
        return f"No {kind} got rows."
    if count == 1:
        return f"All rows are in one {kind}."
    ratio = compute_skew(rows.values(), mean)
    fullest = max(rows, key=lambda name: rows[name])
    judged = "which is even" if ratio < SKEW_THRESHOLD else "which is skewed"
    return f"{format_count(count, kind)}; the fullest ({sanitize(fullest)}) has {ratio:.1f} times the mean, {judged}."


def find_longest_write(reports: Iterable[WriteReport]) -> WriteReport | None:
    """Of those that list tasks."""
    return max((report for report in reports if report.task_list), key=lambda one: one.duration_ms, default=None)


def mean_task_rows(report: WriteReport) -> float:
    """Rows of a task, of all that the write had."""
    return report.rows / report.tasks if report.tasks else 0.0


def task_row_counts(report: WriteReport) -> dict[str, int]:
    """By the number of the task, of those that the report lists."""
    return {str(task.partition_id): task.rows for task in report.task_list}


def describe_largest_partition(report: WriteReport) -> str:
    """A sentence about the partition that has most of the rows; empty where none has any."""
    rows = {
        f"{topic}-{partition}": written.rows
        for topic, of_topic in report.partitions.items()
        for partition, written in of_topic.items()
    }
    total = sum(rows.values())
    if not total:
        return ""
    fullest = max(rows, key=lambda name: rows[name])
    return f"{sanitize(fullest)} has {100 * rows[fullest] / total:.0f} % of the rows."
