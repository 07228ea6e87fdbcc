"""Reports as a table on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_kafka_sink.diagnostics.text import format_bytes, format_count, sanitize
from spark_kafka_sink.diagnostics.text_table import align_columns
from spark_kafka_sink.reports.number_format import milliseconds, ratio, short
from spark_kafka_sink.reports.skew import describe_task_skew, find_longest_write
from spark_kafka_sink.reports.write_report import (
    FAILED,
    WriteReport,
    get_query_id,
    merge_latencies,
    merge_report_ranges,
    sum_errors,
)

_HEAD = ("started (UTC)", "rows", "bytes", "rows/s", "ratio", "p50", "p95", "p99", "again", "dead", "blocked", "batch")
_BATCH_CHARACTERS_MAX = 48
_PARTITIONS_MAX = 50


def render_lines(reports: Sequence[WriteReport]) -> Iterator[str]:
    """A line for each write, one for all of them, and the offsets of each partition."""
    if not reports:
        yield "no reports"
        return
    jobs = {get_query_id(report) for report in reports}
    if len(jobs) == 1:
        yield f"{sanitize(jobs.pop())}"
    rows = [_write(report, several=bool(jobs)) for report in reports]
    yield from align_columns([_HEAD, *rows, _sum(reports)], left_aligned=(0, len(_HEAD) - 1))
    yield ""
    yield from _partitions(reports)
    yield from _tasks(reports)
    yield from _requests(reports)
    errors = sum_errors(report.errors for report in reports)
    if errors:
        yield "dead letters: " + ", ".join(f"{number:,} {sanitize(name)}" for name, number in sorted(errors.items()))


def _write(report: WriteReport, several: bool) -> tuple[str, ...]:
    batch = sanitize(report.batch if several else report.batch.partition("/")[2], _BATCH_CHARACTERS_MAX)
    return (*cells_of(report), f"{batch} FAILED" if report.status == FAILED else batch)


def cells_of(report: WriteReport) -> tuple[str, ...]:
    """From the start of the write to the time for which it was blocked, as the first columns of any table."""
    return (
        f"{report.started_at:%Y-%m-%d %H:%M:%S}",
        f"{report.rows:,}",
        format_bytes(report.bytes),
        short(report.rows_per_second),
        ratio(report.compression_ratio),
        *(milliseconds(report.latency_ms(part)) for part in (0.5, 0.95, 0.99)),
        f"{report.retries:,}",
        f"{report.dead_letters:,}",
        milliseconds(report.blocked_ms),
    )


def _sum(reports: Sequence[WriteReport]) -> tuple[str, ...]:
    rows, duration_ms = sum(one.rows for one in reports), sum(one.duration_ms for one in reports)
    wire, plain = sum(one.wire_bytes for one in reports), sum(one.uncompressed_bytes for one in reports)
    latencies = merge_latencies(reports)
    return (
        "all",
        f"{rows:,}",
        format_bytes(sum(one.bytes for one in reports)),
        short(1000 * rows / duration_ms if duration_ms else float("nan")),
        ratio(wire / plain if plain else float("nan")),
        *(milliseconds(latencies.percentile(part)) for part in (0.5, 0.95, 0.99)),
        f"{sum(one.retries for one in reports):,}",
        f"{sum(one.dead_letters for one in reports):,}",
        milliseconds(sum(one.blocked_ms for one in reports)),
        format_count(len(reports), "write"),
    )


def _partitions(reports: Sequence[WriteReport]) -> Iterator[str]:
    rows = [
        (sanitize(topic), str(partition), f"{written.first_offset:,}", f"{written.last_offset:,}", f"{written.rows:,}")
        for topic, of_topic in sorted(merge_report_ranges(reports).items())
        for partition, written in sorted(of_topic.items())
    ]
    if not rows:
        return
    head = ("topic", "partition", "first offset", "last offset", "rows")
    yield from align_columns([head, *rows[:_PARTITIONS_MAX]], left_aligned=(0,))
    if len(rows) > _PARTITIONS_MAX:
        yield f"... and {format_count(len(rows) - _PARTITIONS_MAX, 'other partition')}"


def _tasks(reports: Sequence[WriteReport]) -> Iterator[str]:
    """How the rows of the longest write were spread over its tasks."""
    longest = find_longest_write(reports)
    if longest is not None:
        yield f"rows by task, {longest.started_at:%Y-%m-%d %H:%M:%S}: {describe_task_skew(longest)}"


def _requests(reports: Sequence[WriteReport]) -> Iterator[str]:
    """What brokers had to do for these writes."""
    requests, batches = sum(one.requests for one in reports), sum(one.batches for one in reports)
    duration_ms = sum(one.duration_ms for one in reports)
    if requests and batches and duration_ms:
        yield (
            f"brokers: {requests:,} requests, {short(1000 * requests / duration_ms)} a second; a batch has "
            f"{format_bytes(sum(one.wire_bytes for one in reports) / batches)}; tasks were throttled by quotas for "
            f"{milliseconds(sum(one.throttle_ms for one in reports))}, by maxBytesPerSecond for "
            f"{milliseconds(sum(one.paced_ms for one in reports))}"
        )
