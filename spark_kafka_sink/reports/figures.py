"""What a page of reports shows: each chart with a sentence that says what to see in it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.producer.windows import bucket_end_ms
from spark_kafka_sink.reports.charts import Bar, Line, Moments, column_chart, line_chart, row_chart
from spark_kafka_sink.reports.number_format import milliseconds, share, short
from spark_kafka_sink.reports.skew import describe_skew, describe_task_skew, find_longest_write, mean_task_rows
from spark_kafka_sink.reports.write_report import (
    FAILED,
    TaskSummary,
    WriteReport,
    merge_latencies,
    merge_report_ranges,
    sum_errors,
)

_ROWS_MAX = 24
"""Bars of one chart; the others are counted in its sentence."""
_HOST_CHARACTERS_MAX = 14
_PERCENTILES = (("p99", 0.99, "s3"), ("p95", 0.95, "s2"), ("p50", 0.5, "s1"))


@dataclass(frozen=True)
class Figure:
    title: str
    svg: str
    sentence: str

    def html(self) -> str:
        return (
            f"<figure><h2>{escape(self.title)}</h2>{self.svg}<figcaption>{escape(self.sentence)}</figcaption></figure>"
        )


def figures(reports: Sequence[WriteReport]) -> list[Figure]:
    reports = sorted(reports, key=lambda report: report.started_ms)
    moments = Moments([report.started_ms for report in reports], _labels(reports))
    return [
        _throughput(reports, moments),
        _latency(reports, moments),
        _spread(reports),
        _retries(reports, moments),
        _partitions(reports),
        _tasks(reports),
        _rows_of_tasks(reports),
    ]


def _labels(reports: Sequence[WriteReport]) -> list[str]:
    """The times, with their days where there are several."""
    days = {report.started_at.date() for report in reports}
    return [f"{report.started_at:{'%H:%M:%S' if len(days) == 1 else '%m-%d %H:%M'}}" for report in reports]


def _throughput(reports: Sequence[WriteReport], moments: Moments) -> Figure:
    values = [report.rows_per_second if report.rows else math.nan for report in reports]
    known = [value for value in values if not math.isnan(value)]
    sentence = "No write has rows."
    if known:
        sentence = f"From {short(min(known))} to {short(max(known))}, the median is {short(statistics.median(known))}."
        sentence = f"{short(known[0])} in the one write." if len(known) == 1 else sentence
    failed = [index for index, report in enumerate(reports) if report.status == FAILED]
    if failed:
        sentence += f" ✗: {format_count(len(failed), 'write')} that failed."
    svg = line_chart("rows per second of each write", [Line("", values, "s1")], moments, short, failed)
    return Figure("Rows per second", svg, sentence)


def _latency(reports: Sequence[WriteReport], moments: Moments) -> Figure:
    lines = [Line(name, [report.latency_ms(part) for report in reports], style) for name, part, style in _PERCENTILES]
    merged = merge_latencies(reports)
    sentence = "No record was acknowledged."
    if merged.counts:
        sentence = (
            f"Half of all records were acknowledged within {milliseconds(merged.percentile(0.5))}, 99 % within "
            f"{milliseconds(merged.percentile(0.99))}, counted from when the producer got the first of their batch."
        )
    return Figure(
        "Latency until the acknowledgement",
        line_chart("percentiles of the latency of each write", lines, moments, milliseconds),
        sentence,
    )


def _spread(reports: Sequence[WriteReport]) -> Figure:
    merged = merge_latencies(reports)
    bars = []
    if merged.counts:
        for bucket in range(min(merged.counts), max(merged.counts) + 1):
            records, label = merged.counts.get(bucket, 0), milliseconds(bucket_end_ms(bucket))
            bars.append(Bar(label, records, f"{records:,} records within {label}"))
    return Figure(
        "How latencies are spread",
        column_chart("records by their latency", bars, short),
        "Records of all writes by their latency; each column reaches a sixteenth further than the one before.",
    )


def _retries(reports: Sequence[WriteReport], moments: Moments) -> Figure:
    bars = [
        Bar(label, report.retries, f"{label}: {format_count(report.retries, 'record')} retried")
        for label, report in zip(moments.labels, reports, strict=True)
    ]
    retries = sum(report.retries for report in reports)
    if not retries:
        bars = []
    errors = sum_errors(report.errors for report in reports)
    letters = ", ".join(f"{number:,} {name}" for name, number in sorted(errors.items()))
    again = f"{format_count(retries, 'record')} retried. " if retries else "No record was retried. "
    sentence = again + (f"Dead letters: {letters}." if letters else "No record became a dead letter.")
    return Figure(
        "Records retried", column_chart("records retried by each write", bars, short, moments.times), sentence
    )


def _partitions(reports: Sequence[WriteReport]) -> Figure:
    rows = {
        f"{topic}-{partition}": written.rows
        for topic, of_topic in merge_report_ranges(reports).items()
        for partition, written in of_topic.items()
    }
    bars = [
        Bar(name, number, f"{name}: {format_count(number, 'row')}")
        for name, number in sorted(rows.items(), key=lambda one: -one[1])
    ]
    sentence = describe_skew("partition", rows) + _more(bars)
    mean = statistics.fmean(rows.values()) if rows else 0.0
    return Figure("Rows by partition", _rows_chart("rows of each partition", bars, mean), sentence)


def _rows_of_tasks(reports: Sequence[WriteReport]) -> Figure:
    """Of the write that took longest, the fullest first."""
    slowest = find_longest_write(reports)
    tasks = () if slowest is None else sorted(slowest.task_list, key=lambda task: -task.rows)
    bars = [
        Bar(_name(task), task.rows, f"task {task.partition_id}: {format_count(task.rows, 'row')}") for task in tasks
    ]
    sentence, mean = "No task was reported.", 0.0
    if slowest is not None:
        sentence, mean = describe_task_skew(slowest) + _more(bars), mean_task_rows(slowest)
    return Figure("Rows by task of the longest write", _rows_chart("rows of each task", bars, mean), sentence)


def _rows_chart(label: str, bars: Sequence[Bar], mean: float) -> str:
    """Bars of rows, the fullest first."""
    mark = ("mean", mean) if len(bars) > 1 else None
    return row_chart(label, bars[:_ROWS_MAX], short, mark)


def _tasks(reports: Sequence[WriteReport]) -> Figure:
    """The tasks of the write that took longest, the longest first."""
    slowest = find_longest_write(reports)
    if slowest is None:
        return Figure("Tasks of the longest write", row_chart("tasks", [], milliseconds), "No task was reported.")
    bars = [
        Bar(
            _name(task),
            task.duration_ms,
            f"task {task.partition_id}, attempt {task.attempt}, on {task.host}: {milliseconds(task.duration_ms)}, "
            f"{format_count(task.rows, 'row')}, {milliseconds(task.blocked_ms)} blocked, {task.retries:,} retried",
        )
        for task in slowest.task_list
    ]
    median = statistics.median(task.duration_ms for task in slowest.task_list)
    blocked = share(slowest.blocked_ms, sum(task.duration_ms for task in slowest.task_list))
    sentence = (
        f"Tasks by number and host, of the write of {slowest.started_at:%H:%M:%S}. It took "
        f"{milliseconds(slowest.duration_ms)}; tasks waited for memory {blocked} of their time.{_more(bars)}"
    )
    svg = row_chart("tasks by duration", bars[:_ROWS_MAX], milliseconds, ("median", median) if len(bars) > 1 else None)
    return Figure("Tasks of the longest write", svg, sentence)


def _name(task: TaskSummary) -> str:
    """With the end of its host's name, where pods and workers have their number."""
    host = task.host.split(".")[0]
    return f"{task.partition_id}, {host if len(host) <= _HOST_CHARACTERS_MAX else '…' + host[-_HOST_CHARACTERS_MAX:]}"


def _more(bars: Sequence[Bar]) -> str:
    return f" The {_ROWS_MAX} largest of {len(bars)} are shown." if len(bars) > _ROWS_MAX else ""
