"""What the benchmarks have measured, as the table and the chart of docs/benchmarks.md, a row of the README, and rows of
history.md.

A part of the suite gives lines: ours, what it is compared with, and the ratio of the two in each round.
"""

from __future__ import annotations

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
README_ROW = re.compile(r"^(\| Rows per second, .*?) \| [\d,]+ \| [\d,]+ \| [\d,]+ \|$", re.MULTILINE)
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
    """How much is measured: rounds, and the share of a full run's rows, records and micro-batches."""

    rounds: int
    share: float

    def of(self, count: int, least: int = 1) -> int:
        return max(least, round(count * self.share))


FULL, QUICK = Scale(7, 1.0), Scale(2, 0.2)


class Line(NamedTuple):
    """`here` and `beside` are one figure of each round, in `unit`; the ratio is here to beside.

    `place`: where the rows went, in a line of rows per second that the chart shows.
    """

    what: str
    unit: str
    here: Sequence[float]
    beside: Sequence[float]
    whose: str
    goal: str = ""
    place: str = ""

    @property
    def ratios(self) -> list[float]:
        return [one / other for one, other in zip(self.here, self.beside, strict=True)]

    def past_row(self) -> str:
        figures = f"{_figure(self.here)} {self.unit} | {_figure(self.beside)} {self.unit}"
        return f"{self.what} | {figures} | {self.whose} | {statistics.median(self.ratios):.2f} |"

    def row(self) -> str:
        middle, rounds = statistics.median(self.ratios), ", ".join(f"{ratio:.2f}" for ratio in self.ratios)
        figures = f"{_figure(self.here)} {self.unit} | {_figure(self.beside)}"
        return f"| {self.what} | {figures} | {self.whose} | **{middle:.2f}** | {self.goal} | {rounds} |"


def line_of(
    what: str, unit: str, seen: Mapping[str, Sequence[Mapping[str, float]]], key: str, pair: tuple[str, str], goal: str
) -> Line:
    """The figure `key` of two contenders, by their names; the second one's name is shown."""
    here, beside = ([run[key] for run in seen[name]] for name in pair)
    return Line(what, unit, here, beside, pair[1], goal)


def table(lines: Iterable[Line]) -> str:
    heads = ("measurement", "pykafka", "baseline", "which baseline", "ratio", "goal", "rounds")
    return "\n".join([f"| {' | '.join(heads)} |", "|---|---:|---:|---|---:|---:|---|", *(line.row() for line in lines)])


def chart(lines: Iterable[Line]) -> str:
    """Ours and Spark's own sink, by the lines that measure rows per second of both; empty where none does."""
    bars: dict[str, float] = {}
    for line in lines:
        if line.place:
            bars[f"pykafka, {line.place}"] = statistics.median(line.here) / 1000
            bars[f"Spark, {line.place}"] = statistics.median(line.beside) / 1000
    if not bars:
        return ""
    names = ", ".join(f'"{name}: {rate:,.0f}"' for name, rate in bars.items())
    tops = ", ".join(f"{rate:.0f}" for rate in bars.values())
    return CHART.format(names=names, top=-(-int(max(bars.values())) // 100) * 100 + 100, bars=tops)


def measured(lines: Sequence[Line], how: str) -> str:
    """What stands between the page's two marks."""
    return f"{BEGIN}\n{chart(lines)}\n{table(lines)}\n\n{how}\n\n{END}"


def write_page(text: str, lines: Sequence[Line]) -> None:
    """Write the page, and the README's row: the first line of the chart and the line of `foreachPartition`."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + text + rest.partition(END)[2])
    charted = next(line for line in lines if line.place)
    foreach_partition = next(line for line in lines if line.whose == FOREACH_PARTITION)
    rates = (charted.beside, foreach_partition.beside, charted.here)
    figures = " | ".join(f"{round(statistics.median(rate), -3):,.0f}" for rate in rates)
    README.write_text(README_ROW.sub(rf"\1 | {figures} |", README.read_text()))


def write_history(lines: Iterable[Line], day: str, commit: str) -> None:
    """Add a row for each line, at the end; those that this commit has already are written anew."""
    place = f"| {day} | `{commit}` |"
    other_rows = [row for row in HISTORY.read_text().splitlines() if not row.startswith(place)]
    HISTORY.write_text("\n".join([*other_rows, *(f"{place} {line.past_row()}" for line in lines)]) + "\n")


def _figure(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:,.0f}" if middle >= 10 else f"{middle:.1f}"


def in_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Each contender in each round; every second round goes backwards."""
    for turn in range(rounds):
        yield from ((turn, name) for name in (names if turn % 2 else names[::-1]))
