"""Render reports as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from spark_kafka_sink.diagnostics.text import format_bytes, format_count, sanitize
from spark_kafka_sink.diagnostics.text_table import align_columns
from spark_kafka_sink.reports.number_format import format_milliseconds, format_number, format_ratio
from spark_kafka_sink.reports.skew import describe_task_skew, find_longest_write
from spark_kafka_sink.reports.write_report import (
    FAILED,
    WriteReport,
    get_query_id,
    merge_latencies,
    merge_report_ranges,
    sum_errors,
)

_COLUMNS = (
    "started (UTC)", "rows", "bytes", "rows/s", "ratio", "p50", "p95", "p99", "retried", "dead", "blocked", "batch",
)  # fmt: skip
_MAX_BATCH_LENGTH = 48
_MAX_PARTITIONS = 50


def render_lines(reports: Sequence[WriteReport]) -> Iterator[str]:
    """Yield the lines of the text: writes and their totals, offsets by partition, skew, requests, dead letters."""
    if not reports:
        yield "no reports"
        return
    query_ids = {get_query_id(report) for report in reports}
    has_several_jobs = len(query_ids) > 1
    if not has_several_jobs:
        yield sanitize(query_ids.pop())
    rows = [_format_write(report, has_several_jobs) for report in reports]
    yield from align_columns([_COLUMNS, *rows, _format_totals(reports)], left_aligned=(0, len(_COLUMNS) - 1))
    yield ""
    yield from _render_partitions(reports)
    yield from _render_task_skew(reports)
    yield from _render_requests(reports)
    error_counts = sum_errors(report.errors for report in reports)
    if error_counts:
        counts = [f"{count:,} {sanitize(name)}" for name, count in sorted(error_counts.items())]
        yield "dead letters: " + ", ".join(counts)


def _format_write(report: WriteReport, has_several_jobs: bool) -> tuple[str, ...]:
    batch = sanitize(report.batch if has_several_jobs else report.batch.partition("/")[2], _MAX_BATCH_LENGTH)
    return (*format_cells(report), f"{batch} FAILED" if report.status == FAILED else batch)


def format_cells(report: WriteReport) -> tuple[str, ...]:
    """Return the first cells of a row in both the text table and the HTML table, from start time to blocked time."""
    return (
        f"{report.started_at:%Y-%m-%d %H:%M:%S}",
        f"{report.rows:,}",
        format_bytes(report.bytes),
        format_number(report.rows_per_second),
        format_ratio(report.compression_ratio),
        *(format_milliseconds(report.latency_ms(share)) for share in (0.5, 0.95, 0.99)),
        f"{report.retries:,}",
        f"{report.dead_letters:,}",
        format_milliseconds(report.blocked_ms),
    )


def _format_totals(reports: Sequence[WriteReport]) -> tuple[str, ...]:
    """Return the last row of the table of writes, with one cell for each of _COLUMNS."""
    rows, duration_ms = sum(report.rows for report in reports), sum(report.duration_ms for report in reports)
    wire_bytes = sum(report.wire_bytes for report in reports)
    uncompressed_bytes = sum(report.uncompressed_bytes for report in reports)
    latencies = merge_latencies(reports)
    return (
        "all",
        f"{rows:,}",
        format_bytes(sum(report.bytes for report in reports)),
        format_number(1000 * rows / duration_ms if duration_ms else math.nan),
        format_ratio(wire_bytes / uncompressed_bytes if uncompressed_bytes else math.nan),
        *(format_milliseconds(latencies.percentile(share)) for share in (0.5, 0.95, 0.99)),
        f"{sum(report.retries for report in reports):,}",
        f"{sum(report.dead_letters for report in reports):,}",
        format_milliseconds(sum(report.blocked_ms for report in reports)),
        format_count(len(reports), "write"),
    )


def _render_partitions(reports: Sequence[WriteReport]) -> Iterator[str]:
    rows = [
        (sanitize(topic), str(partition), f"{offsets.first_offset:,}", f"{offsets.last_offset:,}", f"{offsets.rows:,}")
        for topic, topic_ranges in sorted(merge_report_ranges(reports).items())
        for partition, offsets in sorted(topic_ranges.items())
    ]
    if not rows:
        return
    columns = ("topic", "partition", "first offset", "last offset", "rows")
    yield from align_columns([columns, *rows[:_MAX_PARTITIONS]], left_aligned=(0,))
    if len(rows) > _MAX_PARTITIONS:
        yield f"... and {format_count(len(rows) - _MAX_PARTITIONS, 'other partition')}"


def _render_task_skew(reports: Sequence[WriteReport]) -> Iterator[str]:
    longest_write = find_longest_write(reports)
    if longest_write is not None:
        yield f"rows by task, {longest_write.started_at:%Y-%m-%d %H:%M:%S}: {describe_task_skew(longest_write)}"


def _render_requests(reports: Sequence[WriteReport]) -> Iterator[str]:
    """Describe the load on the brokers: requests, mean batch size and throttling. Without requests, yield nothing."""
    requests, batches = sum(report.requests for report in reports), sum(report.batches for report in reports)
    duration_ms = sum(report.duration_ms for report in reports)
    if requests and batches and duration_ms:
        throttled = format_milliseconds(sum(report.throttle_ms for report in reports))
        paced = format_milliseconds(sum(report.paced_ms for report in reports))
        yield (
            f"brokers: {requests:,} requests, {format_number(1000 * requests / duration_ms)} per second; "
            f"{format_bytes(sum(report.wire_bytes for report in reports) / batches)} per batch; tasks were throttled "
            f"by quotas for {throttled}, by maxBytesPerSecond for {paced}"
        )
