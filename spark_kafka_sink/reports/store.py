"""Where reports are kept: a file on the driver's machine, to which each commit appends a line of JSON."""

from __future__ import annotations

from spark_kafka_sink.reports.write_report import WriteReport, from_json


def append(path: str, report: WriteReport) -> None:
    with open(path, "a", encoding="utf-8") as lines:
        lines.write(report.to_json() + "\n")


def read_reports(path: str) -> list[WriteReport]:
    """What `reportPath` has collected."""
    with open(path, encoding="utf-8") as lines:
        return [from_json(line) for line in lines if line.strip()]
