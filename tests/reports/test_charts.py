"""SVG charts: scales, interrupted lines, labels and ticks."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import pytest

from spark_kafka_sink.reports.charts import compute_ticks
from spark_kafka_sink.reports.figures import build_figures
from tests.reports.report_factories import make_report


def find_dot_positions(svg: str, style: str) -> list[float]:
    return [float(position) for position in re.findall(rf'<circle class="dot {style}" cx="([0-9.]+)"', svg)]


def test_time_axis_is_to_scale() -> None:
    seconds = (0, 10, 100, 1_000)
    reports = [dataclasses.replace(make_report(), started_ms=1_700_000_000_000 + 1_000 * second) for second in seconds]
    throughput, latency, _, retries, *_ = build_figures([*reversed(reports)])
    bar_positions = [
        float(x) + float(width) / 2
        for x, width in re.findall(r'class="bar" x="([0-9.]+)".*? width="([0-9.]+)"', retries.svg)
    ]
    for positions in (find_dot_positions(throughput.svg, "s1"), find_dot_positions(latency.svg, "s3"), bar_positions):
        assert len(positions) == len(seconds)
        width = positions[-1] - positions[0]
        assert [(position - positions[0]) / width for position in positions] == pytest.approx(
            [0, 0.01, 0.1, 1], abs=0.002
        )
        assert width > 380


def test_line_is_interrupted_at_a_pause() -> None:
    seconds = (0, 10, 20, 30, 1_000, 1_010)
    reports = [dataclasses.replace(make_report(), started_ms=1_700_000_000_000 + 1_000 * offset) for offset in seconds]
    throughput, latency, *_ = build_figures(reports)
    for svg in (throughput.svg, latency.svg):
        for path in re.findall(r'<path class="line s\d" d="([^"]*)"', svg):
            assert re.sub(r"[^ML]", "", path) == "MLLLML"


def test_line_is_not_interrupted_at_regular_intervals() -> None:
    reports = [
        dataclasses.replace(make_report(), started_ms=1_700_000_000_000 + offset) for offset in (0, 10, 25, 60, 65)
    ]
    throughput, *_ = build_figures(reports)
    (path,) = re.findall(r'<path class="line s1" d="([^"]*)"', throughput.svg)
    assert re.sub(r"[^ML]", "", path) == "MLLLL"


def test_writes_with_equal_start_times_have_equal_distances() -> None:
    throughput, *_ = build_figures([make_report(), make_report(), make_report()])
    first, second, third = find_dot_positions(throughput.svg, "s1")
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert first < second


def test_labels_of_several_days_have_dates_and_do_not_overlap() -> None:
    hours = [0, 1, 2, 30, 31, 47, 48]
    reports = [dataclasses.replace(make_report(), started_ms=1_700_000_000_000 + 3_600_000 * hour) for hour in hours]
    throughput, *_ = build_figures(reports)
    labels = re.findall(r'<text class="tick" x="([0-9.]+)" y="240.0" text-anchor="middle">([^<]*)<', throughput.svg)
    assert [label for _, label in labels] == ["11-14 22:13", "11-16 04:13", "11-16 22:13"]
    positions = [float(position) for position, _ in labels]
    assert min(after - before for before, after in pairwise(positions)) > 90


NAN = float("nan")


@pytest.mark.parametrize("top", [0.003, 1, 1.0001, 5, 99, 100, 101, 123_456, 1e12])
def test_ticks_are_round_and_reach_maximum(top: float) -> None:
    ticks = compute_ticks(top)
    assert ticks[0] == 0
    assert ticks[-2] < top * (1 + 1e-9) <= ticks[-1] * (1 + 1e-6)
    assert 3 <= len(ticks) <= 6
    assert f"{ticks[1]:.0e}"[0] in "125"


@pytest.mark.parametrize("top", [0, NAN, -1])
def test_ticks_without_data_are_zero_and_one(top: float) -> None:
    assert compute_ticks(top) == [0, 1]
