"""Totals over several write reports, for the text report and the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.reports.write_report import FAILED, WriteFigures, WriteReport


@dataclass(frozen=True, kw_only=True)
class ReportTotals(WriteFigures):
    """Totals over several reports."""

    write_count: int
    failed_count: int
    duration_ms: int

    @classmethod
    def from_reports(cls, reports: Sequence[WriteReport]) -> ReportTotals:
        """Add up the counters and durations of the reports and merge their latency histograms."""
        sums = sum(reports, WriteTotals())
        return cls(
            write_count=len(reports),
            failed_count=sum(report.status == FAILED for report in reports),
            duration_ms=sum(report.duration_ms for report in reports),
            **{counter.name: getattr(sums, counter.name) for counter in fields(WriteTotals)},
        )
