"""Benchmark results as the table and chart of docs/benchmarks.md, a row of the README and rows of history.md.

Each part of the suite yields lines. A line contains the values of pykafka and of a baseline, one for each round.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
HISTORY = Path(__file__).with_name("history.md")
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"
README_ROW = re.compile(r"^(\| Rows per second\b.*?) \| [\d,]+ \| [\d,]+ \| [\d,]+ \|$", re.MULTILINE)
FOREACH_PARTITION = "`foreachPartition` + confluent-kafka"

CHART = """```mermaid
---
config:
  xyChart:
    width: 420
    height: 280
    titleFontSize: 15
    xAxis:
      labelFontSize: 13
    yAxis:
      showLabel: false
      showTick: false
  themeVariables:
    xyChart:
      plotColorPalette: "#7986cb"
      backgroundColor: "transparent"
      titleColor: "#777777"
      xAxisLabelColor: "#777777"
      xAxisTickColor: "#777777"
      xAxisLineColor: "#777777"
      yAxisLabelColor: "#777777"
      yAxisTitleColor: "#777777"
      yAxisTickColor: "#777777"
      yAxisLineColor: "#777777"
---
xychart-beta horizontal
  title "Thousands of rows per second (more is better)"
  x-axis [{names}]
  y-axis 0 --> {top}
  bar [{bars}]
```
"""


class Scale(NamedTuple):
    """The size of a run: its rounds, and its share of the rows, records and micro-batches of a full run."""

    rounds: int
    share: float

    def scale_count(self, count: int, minimum: int = 1) -> int:
        return max(minimum, round(count * self.share))


FULL, QUICK = Scale(7, 1.0), Scale(2, 0.2)


class Line(NamedTuple):
    """A line of the table: the values of pykafka and of the baseline in each round, in `unit`.

    `chart_label`: the destination of the rows, for a line of rows per second that the chart shows; otherwise empty.
    """

    measurement: str
    unit: str
    values: Sequence[float]
    baseline_values: Sequence[float]
    baseline: str
    goal: str = ""
    chart_label: str = ""

    @property
    def ratios(self) -> list[float]:
        return [value / baseline_value for value, baseline_value in zip(self.values, self.baseline_values, strict=True)]

    def format_history_row(self) -> str:
        figures = f"{_format_median(self.values)} {self.unit} | {_format_median(self.baseline_values)} {self.unit}"
        return f"{self.measurement} | {figures} | {self.baseline} | {statistics.median(self.ratios):.2f} |"

    def format_row(self) -> str:
        median, rounds = statistics.median(self.ratios), ", ".join(f"{ratio:.2f}" for ratio in self.ratios)
        figures = f"{_format_median(self.values)} {self.unit} | {_format_median(self.baseline_values)}"
        return f"| {self.measurement} | {figures} | {self.baseline} | **{median:.2f}** | {self.goal} | {rounds} |"


def build_line(
    measurement: str,
    unit: str,
    results: Mapping[str, Sequence[Mapping[str, float]]],
    key: str,
    pair: tuple[str, str],
    goal: str,
) -> Line:
    """Build a line from the figure `key` of two contenders. `pair`: the names of the contender and of its baseline."""
    values, baseline_values = ([run[key] for run in results[name]] for name in pair)
    return Line(measurement, unit, values, baseline_values, pair[1], goal)


def format_table(lines: Iterable[Line]) -> str:
    heads = ("measurement", "pykafka", "baseline", "which baseline", "ratio", "goal", "rounds")
    return "\n".join(
        [f"| {' | '.join(heads)} |", "|---|---:|---:|---|---:|---:|---|", *(line.format_row() for line in lines)]
    )


def format_chart(lines: Iterable[Line]) -> str:
    """Draw the rows per second of pykafka and of Spark's own sink. Return "" if no line has a chart label."""
    bars: dict[str, float] = {}
    for line in lines:
        if line.chart_label:
            bars[f"pykafka, {line.chart_label}"] = statistics.median(line.values) / 1000
            bars[f"Spark, {line.chart_label}"] = statistics.median(line.baseline_values) / 1000
    if not bars:
        return ""
    names = ", ".join(f'"{name}: {rate:,.0f}"' for name, rate in bars.items())
    values = ", ".join(f"{rate:.0f}" for rate in bars.values())
    axis_end = math.ceil(int(max(bars.values())) / 100) * 100 + 100
    return CHART.format(names=names, top=axis_end, bars=values)


def format_results(lines: Sequence[Line], conditions: str) -> str:
    """Format the part of the page between BEGIN and END."""
    return f"{BEGIN}\n{format_chart(lines)}\n{format_table(lines)}\n\n{conditions}\n\n{END}"


def write_page(text: str, lines: Sequence[Line]) -> None:
    """Write the page, and the README's row: the first line of the chart and the line of `foreachPartition`."""
    head, _, tail = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + text + tail.partition(END)[2])
    chart_line = next(line for line in lines if line.chart_label)
    foreach_partition = next(line for line in lines if line.baseline == FOREACH_PARTITION)
    rates = (chart_line.baseline_values, foreach_partition.baseline_values, chart_line.values)
    figures = " | ".join(f"{round(statistics.median(rate), -3):,.0f}" for rate in rates)
    README.write_text(README_ROW.sub(rf"\1 | {figures} |", README.read_text()))


def write_history(lines: Iterable[Line], day: str, commit: str) -> None:
    """Append a row for each line, and remove earlier rows of the same day and commit."""
    row_prefix = f"| {day} | `{commit}` |"
    other_rows = [row for row in HISTORY.read_text().splitlines() if not row.startswith(row_prefix)]
    HISTORY.write_text(
        "\n".join([*other_rows, *(f"{row_prefix} {line.format_history_row()}" for line in lines)]) + "\n"
    )


def _format_median(values: Sequence[float]) -> str:
    median = statistics.median(values)
    return f"{median:,.0f}" if median >= 10 else f"{median:.1f}"


def iterate_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield the number of each round with each contender. The order is reversed in every second round."""
    for turn in range(rounds):
        yield from ((turn, name) for name in (names if turn % 2 else names[::-1]))
