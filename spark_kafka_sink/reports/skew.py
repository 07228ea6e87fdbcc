"""Skew: are the rows of a write spread evenly over its tasks, and over partitions?

Where each partition or key has one task (the option distribution), one that has most of the rows makes one task as long
as the write.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping

from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.words import cleaned, counted

SKEWED = 1.5
"""The fullest has this many times the mean, or more."""


def fullness(rows: Collection[int]) -> float:
    """The fullest, in times of the mean; 1 where there is nothing to compare."""
    mean = statistics.fmean(rows) if rows else 0.0
    return max(rows) / mean if mean else 1.0


def skew_of(kind: str, rows: Mapping[str, int]) -> str:
    """A sentence about the rows of each partition, or of each task, by name."""
    if not rows:
        return f"No {kind} got rows."
    if len(rows) == 1:
        return f"All rows are in one {kind}."
    ratio = fullness(rows.values())
    fullest = max(rows, key=lambda name: rows[name])
    judged = "which is even" if ratio < SKEWED else "which is skewed"
    return f"{counted(len(rows), kind)}; the fullest ({cleaned(fullest)}) has {ratio:.1f} times the mean, {judged}."


def longest_write(reports: Iterable[WriteReport]) -> WriteReport | None:
    """Of those that list tasks."""
    return max((report for report in reports if report.task_list), key=lambda one: one.duration_ms, default=None)


def rows_of_tasks(report: WriteReport) -> dict[str, int]:
    """By the number of the task, of those that the report lists."""
    return {str(task.partition_id): task.rows for task in report.task_list}


def fullest_partition(report: WriteReport) -> str:
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
    return f"{cleaned(fullest)} has {100 * rows[fullest] / total:.0f} % of the rows."
