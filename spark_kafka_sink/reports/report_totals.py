"""Totals over several write reports, for the text report and the HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.producer.windows import LatencyHistogram
from spark_kafka_sink.reports.write_report import FAILED, WriteReport, merge_latencies


@dataclass(frozen=True)
class ReportTotals:
    """Totals over several reports. Rates and ratios are nan if they are undefined, as in WriteReport."""

    write_count: int
    failed_count: int
    row_count: int
    row_bytes: int
    """Size of the rows' keys, values and headers."""
    retry_count: int
    dead_letter_count: int
    batch_count: int
    request_count: int
    wire_bytes: int
    uncompressed_bytes: int
    duration_ms: int
    blocked_ms: int
    throttle_ms: int
    paced_ms: int
    latencies: LatencyHistogram

    @classmethod
    def from_reports(cls, reports: Sequence[WriteReport]) -> ReportTotals:
        """Add up the counters of the reports and merge their latency histograms."""
        return cls(
            write_count=len(reports),
            failed_count=sum(report.status == FAILED for report in reports),
            row_count=sum(report.rows for report in reports),
            row_bytes=sum(report.bytes for report in reports),
            retry_count=sum(report.retries for report in reports),
            dead_letter_count=sum(report.dead_letters for report in reports),
            batch_count=sum(report.batches for report in reports),
            request_count=sum(report.requests for report in reports),
            wire_bytes=sum(report.wire_bytes for report in reports),
            uncompressed_bytes=sum(report.uncompressed_bytes for report in reports),
            duration_ms=sum(report.duration_ms for report in reports),
            blocked_ms=sum(report.blocked_ms for report in reports),
            throttle_ms=sum(report.throttle_ms for report in reports),
            paced_ms=sum(report.paced_ms for report in reports),
            latencies=merge_latencies(reports),
        )

    @property
    def rows_per_second(self) -> float:
        return 1000 * self.row_count / self.duration_ms if self.duration_ms else math.nan

    @property
    def requests_per_second(self) -> float:
        return 1000 * self.request_count / self.duration_ms if self.duration_ms else math.nan

    @property
    def compression_ratio(self) -> float:
        """Bytes sent divided by bytes before compression."""
        return self.wire_bytes / self.uncompressed_bytes if self.uncompressed_bytes else math.nan

    @property
    def mean_batch_bytes(self) -> float:
        """Mean size of the record batches as they were sent."""
        return self.wire_bytes / self.batch_count if self.batch_count else math.nan
