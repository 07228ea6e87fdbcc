"""Figures of the HTML page. Each figure is a chart with a caption."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.producer.windows import compute_bucket_end_ms
from spark_kafka_sink.reports.charts import (
    Bar,
    Line,
    ReferenceLine,
    TimeAxis,
    draw_bar_chart,
    draw_column_chart,
    draw_line_chart,
)
from spark_kafka_sink.reports.number_format import format_milliseconds, format_number, format_percentage
from spark_kafka_sink.reports.skew import compute_mean_task_rows, describe_skew, describe_task_skew, find_longest_write
from spark_kafka_sink.reports.write_report import (
    FAILED,
    TaskSummary,
    WriteReport,
    merge_latencies,
    merge_report_ranges,
    sum_errors,
)

_MAX_BARS = 24
"""Maximum number of bars in a bar chart. If bars are omitted, the caption states the total number."""
_MAX_HOST_LENGTH = 14
_LATENCY_LINES = (("p99", 0.99, "s3"), ("p95", 0.95, "s2"), ("p50", 0.5, "s1"))
"""The latency chart's lines: the name, the quantile, and the CSS class."""


@dataclass(frozen=True)
class Figure:
    """A chart of the page as SVG, with a title and a caption."""

    title: str
    svg: str
    caption: str

    def to_html(self) -> str:
        return (
            f"<figure><h2>{escape(self.title)}</h2>{self.svg}<figcaption>{escape(self.caption)}</figcaption></figure>"
        )


def build_figures(reports: Sequence[WriteReport]) -> list[Figure]:
    """Build the figures in the order of the page. The reports may be in any order."""
    reports = sorted(reports, key=lambda report: report.started_ms)
    time_axis = TimeAxis([report.started_ms for report in reports], _format_start_times(reports))
    return [
        _build_throughput_figure(reports, time_axis),
        _build_latency_figure(reports, time_axis),
        _build_latency_distribution_figure(reports),
        _build_retries_figure(reports, time_axis),
        _build_partition_rows_figure(reports),
        _build_task_durations_figure(reports),
        _build_task_rows_figure(reports),
    ]


def _format_start_times(reports: Sequence[WriteReport]) -> list[str]:
    """Return the start time of each write. If the writes started on different days, include the date."""
    days = {report.started_at.date() for report in reports}
    time_format = "%H:%M:%S" if len(days) == 1 else "%m-%d %H:%M"
    return [f"{report.started_at:{time_format}}" for report in reports]


def _build_throughput_figure(reports: Sequence[WriteReport], time_axis: TimeAxis) -> Figure:
    """Show the rows per second of each write, and mark the writes that failed."""
    # Leave a gap in the line for a write without rows, instead of showing a throughput of 0.
    rates = [report.rows_per_second if report.rows else math.nan for report in reports]
    known_rates = [rate for rate in rates if not math.isnan(rate)]
    if not known_rates:
        caption = "There is no throughput to show: no write has both rows and a measurable duration."
    elif len(known_rates) == 1:
        caption = f"{format_number(known_rates[0])} rows per second in the only write with a known throughput."
    else:
        caption = (
            f"From {format_number(min(known_rates))} to {format_number(max(known_rates))} rows per second, with a "
            f"median of {format_number(statistics.median(known_rates))}."
        )
    failed_indices = [index for index, report in enumerate(reports) if report.status == FAILED]
    if failed_indices:
        caption += f" ✗ marks {format_count(len(failed_indices), 'write')} that failed."
    line = Line(name="", values=rates, css_class="s1")  # the only line, so it needs no name
    svg = draw_line_chart("rows per second of each write", [line], time_axis, format_number, failed_indices)
    return Figure("Rows per second", svg, caption)


def _build_latency_figure(reports: Sequence[WriteReport], time_axis: TimeAxis) -> Figure:
    """Show one line for each latency percentile, with a value for each write."""
    lines = [
        Line(name, [report.latency_ms(quantile) for report in reports], css_class)
        for name, quantile, css_class in _LATENCY_LINES
    ]
    latencies = merge_latencies(reports)
    caption = "No records were acknowledged."
    if latencies.counts:
        caption = (
            f"Half of all records were acknowledged within {format_milliseconds(latencies.percentile(0.5))}, 99% "
            f"within {format_milliseconds(latencies.percentile(0.99))}. Latency is measured from the moment the "
            "producer receives the oldest row that is staged together with the record."
        )
    return Figure(
        "Acknowledgement latency",
        draw_line_chart("latency percentiles of each write", lines, time_axis, format_milliseconds),
        caption,
    )


def _build_latency_distribution_figure(reports: Sequence[WriteReport]) -> Figure:
    """Show how many records of all writes belong to each latency bucket."""
    latencies = merge_latencies(reports)
    bars = []
    if latencies.counts:
        # Include the empty buckets, so that the columns form a scale.
        for bucket in range(min(latencies.counts), max(latencies.counts) + 1):
            record_count = latencies.counts.get(bucket, 0)
            label = format_milliseconds(compute_bucket_end_ms(bucket))
            bars.append(Bar(label, record_count, f"{record_count:,} records within {label}"))
    return Figure(
        "Distribution of latencies",
        draw_column_chart("records by latency", bars, format_number),
        "Records of all writes by latency. The upper bound of each column is at most a sixteenth above that of the "
        "previous column.",
    )


def _build_retries_figure(reports: Sequence[WriteReport], time_axis: TimeAxis) -> Figure:
    """Show the retried records of each write. The caption also counts the dead letters of all writes by error."""
    retries = sum(report.retries for report in reports)
    # Without retries, there are no bars, and the chart says "no data".
    bars: list[Bar] = []
    if retries:
        bars = [
            Bar(label, report.retries, f"{label}: {format_count(report.retries, 'record')} retried")
            for label, report in zip(time_axis.labels, reports, strict=True)
        ]
    error_counts = sum_errors(report.errors for report in reports)
    dead_letters = ", ".join(f"{count:,} {name}" for name, count in sorted(error_counts.items()))
    caption = f"{format_count(retries, 'record')} retried. " if retries else "No records were retried. "
    caption += f"Dead letters: {dead_letters}." if dead_letters else "There were no dead letters."
    svg = draw_column_chart("retried records of each write", bars, format_number, time_axis.times)
    return Figure("Retried records", svg, caption)


def _build_partition_rows_figure(reports: Sequence[WriteReport]) -> Figure:
    """Show the total row count of each partition, in descending order."""
    row_counts = {
        f"{topic}-{partition}": offsets.rows
        for topic, topic_ranges in merge_report_ranges(reports).items()
        for partition, offsets in topic_ranges.items()
    }
    bars = [
        Bar(name, rows, f"{name}: {format_count(rows, 'row')}")
        for name, rows in sorted(row_counts.items(), key=lambda item: -item[1])
    ]
    caption = describe_skew("partition", row_counts) + _describe_omitted_bars(bars)
    mean = statistics.fmean(row_counts.values()) if row_counts else 0.0
    return Figure("Rows by partition", _draw_row_counts("rows of each partition", bars, mean), caption)


def _build_task_rows_figure(reports: Sequence[WriteReport]) -> Figure:
    """Show the row count of each task in the longest write, in descending order."""
    longest_write = find_longest_write(reports)
    tasks = () if longest_write is None else sorted(longest_write.task_list, key=lambda task: -task.rows)
    bars = [
        Bar(_format_task(task), task.rows, f"task {task.partition_id}: {format_count(task.rows, 'row')}")
        for task in tasks
    ]
    caption = "No tasks were reported."
    mean = 0.0
    if longest_write is not None:
        caption = describe_task_skew(longest_write) + _describe_omitted_bars(bars)
        mean = compute_mean_task_rows(longest_write)
    return Figure("Rows by task of the longest write", _draw_row_counts("rows of each task", bars, mean), caption)


def _draw_row_counts(title: str, bars: Sequence[Bar], mean: float) -> str:
    """Draw the first _MAX_BARS bars and the mean. The bars must be in descending order."""
    reference_line = ReferenceLine("mean", mean) if len(bars) > 1 else None
    return draw_bar_chart(title, bars[:_MAX_BARS], format_number, reference_line)


def _build_task_durations_figure(reports: Sequence[WriteReport]) -> Figure:
    """Show the duration of each task in the longest write, in descending order."""
    title = "Tasks of the longest write"
    longest_write = find_longest_write(reports)
    if longest_write is None:
        return Figure(
            title, draw_bar_chart("tasks", bars=[], format_number=format_milliseconds), "No tasks were reported."
        )
    bars = [
        Bar(
            _format_task(task),
            task.duration_ms,
            f"task {task.partition_id}, attempt {task.attempt}, on {task.host}: "
            f"{format_milliseconds(task.duration_ms)}, {format_count(task.rows, 'row')}, "
            f"{format_milliseconds(task.blocked_ms)} blocked, {task.retries:,} retried",
        )
        for task in longest_write.task_list
    ]
    durations_ms = [task.duration_ms for task in longest_write.task_list]
    median_ms = statistics.median(durations_ms)
    blocked = format_percentage(longest_write.blocked_ms, sum(durations_ms))
    caption = (
        f"Tasks by number and host, for the write that started at {longest_write.started_at:%H:%M:%S} and took "
        f"{format_milliseconds(longest_write.duration_ms)}. Tasks waited for memory {blocked} of the time."
        f"{_describe_omitted_bars(bars)}"
    )
    reference_line = ReferenceLine("median", median_ms) if len(bars) > 1 else None
    svg = draw_bar_chart("tasks by duration", bars[:_MAX_BARS], format_milliseconds, reference_line)
    return Figure(title, svg, caption)


def _format_task(task: TaskSummary) -> str:
    """Return the task number and the end of the host name, because the names of pods and workers end with a number."""
    host = task.host.split(".")[0]
    if len(host) > _MAX_HOST_LENGTH:
        host = "…" + host[-_MAX_HOST_LENGTH:]
    return f"{task.partition_id}, {host}"


def _describe_omitted_bars(bars: Sequence[Bar]) -> str:
    return f" Only the {_MAX_BARS} largest of {len(bars)} are shown." if len(bars) > _MAX_BARS else ""
