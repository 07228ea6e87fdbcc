"""Figures of the HTML page: the captions that summarize them, and the labels of their bars."""

from __future__ import annotations

import dataclasses
import re

import pytest

from spark_kafka_sink.producer.totals import Totals
from spark_kafka_sink.reports.figures import Figure, build_figures
from spark_kafka_sink.reports.write_report import WriteReport
from tests.reports.report_factories import make_report


def find_figure(reports: list[WriteReport], title: str) -> Figure:
    (figure,) = [figure for figure in build_figures(reports) if figure.title == title]
    return figure


def with_rate(rows: int) -> WriteReport:
    """Return the report of a write of one second."""
    return dataclasses.replace(make_report(), rows=rows, duration_ms=1_000)


@pytest.mark.parametrize(
    ("row_counts", "caption"),
    [
        ([0], "There is no throughput to show: no write has both rows and a measurable duration."),
        ([0, 500], "500 rows per second in the only write with a known throughput."),
        ([100, 0, 500, 200], "From 100 to 500 rows per second, with a median of 200."),
    ],
)
def test_caption_of_throughput_ignores_writes_without_rows(row_counts: list[int], caption: str) -> None:
    figure, *_ = build_figures([with_rate(rows) for rows in row_counts])
    assert figure.caption == caption


def test_write_without_rows_interrupts_line_of_throughput() -> None:
    figure, *_ = build_figures([with_rate(rows) for rows in (100, 200, 0, 300, 400)])
    (path,) = re.findall(r'<path class="line s1" d="([^"]*)"', figure.svg)
    assert re.sub(r"[^ML]", "", path) == "MLML"


def test_tasks_have_no_bars_if_no_report_lists_tasks() -> None:
    figure = find_figure([dataclasses.replace(make_report(), task_list=())], "Tasks of the longest write")
    assert figure.caption == "No tasks were reported."
    assert "no data" in figure.svg


def test_label_of_task_has_end_of_host_name() -> None:
    """The names of pods and workers end with a number."""
    (task, *_) = make_report().task_list
    task = dataclasses.replace(task, partition_id=3, host="orders-0123456789-executor-17.spark.svc")
    figure = find_figure([dataclasses.replace(make_report(), task_list=(task,))], "Tasks of the longest write")
    (label,) = re.findall(r">(3, [^<]*)<", figure.svg)
    assert label.startswith("3, …")
    assert label.endswith("executor-17")


def test_latency_distribution_without_batches_has_no_data() -> None:
    reports = [dataclasses.replace(make_report(), producer=Totals())]
    assert any("no data" in figure.svg for figure in build_figures(reports))
