"""Charts in SVG: lines, columns and horizontal bars. They are readable without color.

Lines differ by their dashes and are labeled at their ends. Horizontal bars have numbers next to them. Browsers show a
`<title>` as a tooltip. Colors are defined by the CSS classes of the page, which has a dark mode.

The x axis of charts over time is to scale, and a write is drawn at its start time, so that pauses are visible.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

NumberFormatter = Callable[[float], str]
"""Function that formats a number for an axis, a label or a tooltip."""

WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 62, 14, 30
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_ROW_HEIGHT = 20
_LABEL_WIDTH = 150
_NUMBER_WIDTH = 70
_MAX_LABEL_LENGTH = 23
_PAUSE_FACTOR = 5
"""A line is interrupted if the gap to the next write is larger than this multiple of the median gap."""
_MIN_NAME_DISTANCE = 13
"""Minimum vertical distance of the names of two lines."""


@dataclass(frozen=True)
class TimeAxis:
    """Times of the points of a chart in ascending order, in any unit, and their labels."""

    times: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True)
class Line:
    """Line of a chart, with gaps at nan. `style` is one of the CSS classes s1, s2 and s3."""

    name: str
    values: Sequence[float]
    style: str


@dataclass(frozen=True)
class Bar:
    """Bar of a chart."""

    label: str
    value: float
    tooltip: str


def draw_line_chart(
    title: str,
    lines: Sequence[Line],
    time_axis: TimeAxis,
    format_number: NumberFormatter,
    failed_indices: Collection[int] = (),
) -> str:
    """Draw lines over time, with an axis that begins at 0. Mark the points at `failed_indices` with a cross."""
    values = [value for line in lines for value in line.values if not math.isnan(value)]
    if not values:
        return _empty_chart(title)
    ticks = compute_ticks(max(values))
    positions = _positions_by_time(time_axis.times)
    parts = [*_draw_grid(ticks, format_number), *_draw_x_labels(positions, time_axis.labels)]
    for line in lines:
        parts += _draw_line(line, positions, time_axis.labels, ticks[-1], format_number)
    parts += _draw_line_names(lines, ticks[-1])
    parts += [_draw_text(positions[index], _TOP + _PLOT_HEIGHT - 4, "✗", "middle", "cross") for index in failed_indices]
    return _wrap_svg(title, HEIGHT, parts)


def draw_column_chart(
    title: str, bars: Sequence[Bar], format_number: NumberFormatter, times: Sequence[float] | None = None
) -> str:
    """Draw vertical bars, at these times or with equal distances."""
    if not bars:
        return _empty_chart(title)
    ticks = compute_ticks(max(bar.value for bar in bars))
    positions = _equal_positions(len(bars)) if times is None else _positions_by_time(times)
    step = min((after - before for before, after in pairwise(positions)), default=_PLOT_WIDTH)
    width = max(1.0, min(step * 0.8, 40))
    parts = [*_draw_grid(ticks, format_number), *_draw_x_labels(positions, [bar.label for bar in bars])]
    for position, bar in zip(positions, bars, strict=True):
        top = _to_y(bar.value, ticks[-1])
        parts.append(_draw_bar(position - width / 2, top, width, _TOP + _PLOT_HEIGHT - top, bar))
    return _wrap_svg(title, HEIGHT, parts)


def draw_bar_chart(
    title: str, bars: Sequence[Bar], format_number: NumberFormatter, reference_line: tuple[str, float] | None = None
) -> str:
    """Draw horizontal bars with their labels and numbers, and a vertical reference line with its label and value."""
    if not bars:
        return _empty_chart(title)
    top = max([bar.value for bar in bars] + ([reference_line[1]] if reference_line else [])) or 1.0
    bar_area_width = WIDTH - _LABEL_WIDTH - _NUMBER_WIDTH
    height = len(bars) * _ROW_HEIGHT + 34
    parts = []
    for index, bar in enumerate(bars):
        y = 8 + index * _ROW_HEIGHT
        width = bar_area_width * bar.value / top
        parts.append(_draw_text(_LABEL_WIDTH - 8, y + 13, _shorten_label(bar.label), "end"))
        parts.append(_draw_bar(_LABEL_WIDTH, y + 2, width, _ROW_HEIGHT - 6, bar))
        parts.append(_draw_text(WIDTH - 4, y + 13, format_number(bar.value), "end"))
    if reference_line is not None:
        x = _LABEL_WIDTH + bar_area_width * reference_line[1] / top
        below = 10 + len(bars) * _ROW_HEIGHT
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="6" y2="{below}"/>')
        parts.append(_draw_text(x, below + 15, f"{reference_line[0]} {format_number(reference_line[1])}", "middle"))
    return _wrap_svg(title, height, parts)


def compute_ticks(top: float, max_steps: int = 4) -> list[float]:
    """Return ticks from 0 to at least `top`, with a step of 1, 2 or 5 times a power of ten."""
    if not top > 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(top / max_steps))
    step = next(step * power for step in (1, 2, 5, 10) if step * power * max_steps >= top * (1 - 1e-9))
    return [step * count for count in range(math.ceil(top / step - 1e-9) + 1)]


def _equal_positions(count: int) -> list[float]:
    return [_LEFT + _PLOT_WIDTH * (index + 0.5) / count for index in range(count)]


def _positions_by_time(times: Sequence[float]) -> list[float]:
    """Return positions to scale, with a margin at both ends; equal distances if all times are equal."""
    begin, length = min(times), max(times) - min(times)
    if not length:
        return _equal_positions(len(times))
    margin = min(20.0, _PLOT_WIDTH / (2 * len(times)))
    return [_LEFT + margin + (_PLOT_WIDTH - 2 * margin) * (time - begin) / length for time in times]


def _to_y(value: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - value / top)


def _draw_grid(ticks: Sequence[float], format_number: NumberFormatter) -> Iterator[str]:
    for tick in ticks:
        y = _to_y(tick, ticks[-1])
        css_class = "axis" if tick == 0 else "grid"
        yield f'<line class="{css_class}" x1="{_LEFT}" x2="{_LEFT + _PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _draw_text(_LEFT - 8, y + 4, format_number(tick), "end")


def _draw_x_labels(positions: Sequence[float], labels: Sequence[str]) -> Iterator[str]:
    """Draw the labels of the first and the last column, and those in between that do not overlap with others."""
    previous, end, label_width = -math.inf, positions[-1], 8 * max(map(len, labels)) + 6
    for index, (position, label) in enumerate(zip(positions, labels, strict=True)):
        is_last = index == len(positions) - 1
        if position - previous >= label_width and (is_last or end - position >= label_width):
            yield _draw_text(position, HEIGHT - 10, label, "middle")
            previous = position


def _find_pauses(positions: Sequence[float]) -> set[int]:
    """Return the indices of the points after a pause: a gap that is much larger than the median gap."""
    gaps = [after - before for before, after in pairwise(positions)]
    if len(gaps) < 3:
        return set()
    median_gap = statistics.median(gaps)
    return {index for index, gap in enumerate(gaps, 1) if gap > _PAUSE_FACTOR * median_gap}


def _draw_line(
    line: Line, positions: Sequence[float], labels: Sequence[str], top: float, format_number: NumberFormatter
) -> Iterator[str]:
    count, pen, path = len(line.values), "M", []
    pauses = _find_pauses(positions)
    for index, value in enumerate(line.values):
        if math.isnan(value):
            pen = "M"
            continue
        if index in pauses:
            pen = "M"
        path.append(f"{pen}{positions[index]:.1f} {_to_y(value, top):.1f}")
        pen = "L"
    yield f'<path class="line {line.style}" d="{"".join(path)}"/>'
    radius = 5 if count == 1 else 2.4  # a single point without a line is hard to see
    for index, value in enumerate(line.values):
        if not math.isnan(value):
            tooltip = escape(f"{line.name}, {labels[index]}: {format_number(value)}")
            shape = f'cx="{positions[index]:.1f}" cy="{_to_y(value, top):.1f}" r="{radius}"'
            yield f'<circle class="dot {line.style}" {shape}><title>{tooltip}</title></circle>'


def _draw_line_names(lines: Sequence[Line], top: float) -> Iterator[str]:
    """Draw the names at the ends of the lines, from top to bottom, without overlaps."""
    line_ends = []
    for line in lines:
        values = [value for value in line.values if not math.isnan(value)]
        if values and line.name:
            line_ends.append((_to_y(values[-1], top) + 4, line))
    name_y = 0.0
    for y, line in sorted(line_ends, key=lambda end: end[0]):
        name_y = max(y, name_y + _MIN_NAME_DISTANCE)
        yield _draw_text(_LEFT + _PLOT_WIDTH + 8, name_y, line.name, "start", f"name {line.style}")


def _draw_bar(x: float, y: float, width: float, height: float, bar: Bar) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="bar" {shape} rx="1.5"><title>{escape(bar.tooltip)}</title></rect>'


def _draw_text(x: float, y: float, text: str, anchor: str, css_class: str = "tick") -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _shorten_label(label: str) -> str:
    """Shorten a long label to its end, because names of partitions end with their number."""
    return label if len(label) <= _MAX_LABEL_LENGTH else "…" + label[1 - _MAX_LABEL_LENGTH :]


def _empty_chart(title: str) -> str:
    return _wrap_svg(title, 60, [_draw_text(WIDTH / 2, 34, "no data", "middle")])


def _wrap_svg(title: str, height: int, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )
