"""Reports as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_kafka_sink.diagnostics.text import format_bytes, format_count, sanitize
from spark_kafka_sink.diagnostics.text_table import align_columns
from spark_kafka_sink.reports.number_format import format_milliseconds, format_number, format_ratio
from spark_kafka_sink.reports.report_totals import ReportTotals
from spark_kafka_sink.reports.skew import describe_task_skew, find_longest_write
from spark_kafka_sink.reports.write_report import (
    FAILED,
    WriteReport,
    get_query_id,
    merge_report_ranges,
    sum_errors,
)

_COLUMNS = (
    "started (UTC)", "rows", "bytes", "rows/s", "ratio", "p50", "p95", "p99", "retried", "dead", "blocked", "batch",
)  # fmt: skip
_LATENCY_QUANTILES = (0.5, 0.95, 0.99)
"""The quantiles in the columns p50, p95 and p99."""
_MAX_BATCH_LENGTH = 48
_MAX_LISTED_PARTITIONS = 50


def render_report_lines(reports: Sequence[WriteReport]) -> Iterator[str]:
    """Yield the report's lines: writes and their totals, offsets by partition, task skew, requests, dead letters."""
    if not reports:
        yield "no reports"
        return
    query_ids = {get_query_id(report) for report in reports}
    has_several_queries = len(query_ids) > 1
    if not has_several_queries:
        yield sanitize(get_query_id(reports[0]))
    rows = [_format_write(report, show_query_id=has_several_queries) for report in reports]
    totals = ReportTotals.from_reports(reports)
    yield from align_columns([_COLUMNS, *rows, _format_totals(totals)], left_aligned=(0, len(_COLUMNS) - 1))
    yield ""
    yield from _render_partitions(reports)
    yield from _render_task_skew(reports)
    yield from _render_requests(totals)
    yield from _render_dead_letters(reports)


def _format_write(report: WriteReport, *, show_query_id: bool) -> tuple[str, ...]:
    batch = sanitize(report.batch if show_query_id else report.batch.partition("/")[2], _MAX_BATCH_LENGTH)
    return (*format_cells(report), f"{batch} FAILED" if report.status == FAILED else batch)


def format_cells(report: WriteReport) -> tuple[str, ...]:
    """Return the first cells of a row in both the text table and the HTML table, from start time to blocked time."""
    return (
        f"{report.started_at:%Y-%m-%d %H:%M:%S}",
        f"{report.rows:,}",
        format_bytes(report.bytes),
        format_number(report.rows_per_second),
        format_ratio(report.compression_ratio),
        *(format_milliseconds(report.latency_ms(quantile)) for quantile in _LATENCY_QUANTILES),
        f"{report.retries:,}",
        f"{report.dead_letters:,}",
        format_milliseconds(report.blocked_ms),
    )


def _format_totals(totals: ReportTotals) -> tuple[str, ...]:
    """Return the last row of the table of writes, with one cell for each of _COLUMNS."""
    return (
        "all",
        f"{totals.rows:,}",
        format_bytes(totals.bytes),
        format_number(totals.rows_per_second),
        format_ratio(totals.compression_ratio),
        *(format_milliseconds(totals.latencies.percentile(quantile)) for quantile in _LATENCY_QUANTILES),
        f"{totals.retries:,}",
        f"{totals.dead_letters:,}",
        format_milliseconds(totals.blocked_ms),
        format_count(totals.write_count, "write"),
    )


def _render_partitions(reports: Sequence[WriteReport]) -> Iterator[str]:
    """Yield a table of the offsets that the writes added to each partition, or nothing if they are unknown."""
    rows = [
        (sanitize(topic), str(partition), f"{offsets.first_offset:,}", f"{offsets.last_offset:,}", f"{offsets.rows:,}")
        for topic, topic_ranges in sorted(merge_report_ranges(reports).items())
        for partition, offsets in sorted(topic_ranges.items())
    ]
    if not rows:
        return
    columns = ("topic", "partition", "first offset", "last offset", "rows")
    yield from align_columns([columns, *rows[:_MAX_LISTED_PARTITIONS]], left_aligned=(0,))
    if len(rows) > _MAX_LISTED_PARTITIONS:
        yield f"... and {format_count(len(rows) - _MAX_LISTED_PARTITIONS, 'other partition')}"


def _render_task_skew(reports: Sequence[WriteReport]) -> Iterator[str]:
    longest_write = find_longest_write(reports)
    if longest_write is not None:
        yield f"rows by task, {longest_write.started_at:%Y-%m-%d %H:%M:%S}: {describe_task_skew(longest_write)}"


def _render_requests(totals: ReportTotals) -> Iterator[str]:
    """Describe the load on the brokers: requests, mean batch size and throttling. Without requests, yield nothing."""
    if totals.requests and totals.batches and totals.duration_ms:
        throttled = format_milliseconds(totals.throttle_ms)
        paced = format_milliseconds(totals.paced_ms)
        yield (
            f"brokers: {totals.requests:,} requests, {format_number(totals.requests_per_second)} per second; "
            f"{format_bytes(totals.mean_batch_bytes)} per batch; tasks were throttled by quotas for {throttled}, by "
            f"maxBytesPerSecond for {paced}"
        )


def _render_dead_letters(reports: Sequence[WriteReport]) -> Iterator[str]:
    """Count the dead letters by error. Without dead letters, yield nothing."""
    error_counts = sum_errors(report.errors for report in reports)
    if error_counts:
        counts = [f"{count:,} {sanitize(name)}" for name, count in sorted(error_counts.items())]
        yield "dead letters: " + ", ".join(counts)
