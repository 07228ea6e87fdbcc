"""Reports as text: the parts that are listed, and the parts that are only counted."""

from __future__ import annotations

import dataclasses

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.reports.text_report import render_report_lines
from tests.reports.report_factories import make_report


def test_report_lines_without_reports_are_a_message() -> None:
    assert list(render_report_lines([])) == ["no reports"]


def test_lists_fifty_partitions_and_counts_the_others() -> None:
    partitions = {"orders": {partition: OffsetRange(0, 9, 10) for partition in range(53)}}
    lines = list(render_report_lines([dataclasses.replace(make_report(), partitions=partitions)]))
    assert len([line for line in lines if line.startswith("orders ")]) == 50
    assert "... and 3 other partitions" in lines
