"""SVG charts with lines, columns or horizontal bars, readable without color.

Lines have different dash patterns, and their names are drawn at their ends. Horizontal bars have numbers next to them.
Browsers show a `<title>` as a tooltip. The page's CSS classes define the colors for both light and dark mode.

Time charts plot each write at its start time on a linear x axis, so pauses show up as gaps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NamedTuple

NumberFormatter = Callable[[float], str]
"""Function that formats a number for an axis, a label or a tooltip."""

# Sizes are in units of the SVG's viewBox.
WIDTH, HEIGHT = 560, 250
"""The width of all charts, and the height of charts with axes."""
_EMPTY_CHART_HEIGHT = 60

# --- text
_CHARACTER_WIDTH = 8
"""Approximate width of a character in a label of the x axis."""
_HALF_TEXT_HEIGHT = 4
"""Distance from the vertical middle of a piece of text to its baseline."""
_TEXT_GAP = 8
"""Horizontal gap between a label and the line or bar that it belongs to."""

# --- charts with axes, which show lines or columns
_LEFT_MARGIN, _RIGHT_MARGIN, _TOP_MARGIN, _BOTTOM_MARGIN = 64, 62, 14, 30
"""Margins around the plot area."""
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN, HEIGHT - _TOP_MARGIN - _BOTTOM_MARGIN
_LABEL_GAP = 6
"""Minimum gap between two labels of the x axis."""
_X_LABEL_OFFSET = 10
"""Distance from the baseline of a label of the x axis to the bottom of the chart."""
_FAILURE_MARK_OFFSET = 4
"""Distance from the x axis up to the baseline of the cross that marks a failed write."""
_MIN_NAME_DISTANCE = 13
"""Minimum vertical distance between the names of two lines."""
_PAUSE_FACTOR = 5
"""A gap between two writes interrupts a line if it is longer than this multiple of the median gap."""
_ROUNDING_TOLERANCE = 1e-9
_MIN_COLUMN_WIDTH = 1.0
_MAX_COLUMN_WIDTH = 40
_COLUMN_WIDTH_SHARE = 0.8
"""Width of a column as a share of the smallest distance between two columns."""

# --- charts of horizontal bars; each bar has a row with its label, the bar itself and its number
_BAR_CHART_TOP = 8
"""Distance from the top of the chart to the first row."""
_BAR_SPACING = 20
"""Height of a row."""
_BAR_INSET = 2
"""Distance from the top of a row to the top of its bar."""
_BAR_HEIGHT = 14
_BASELINE_OFFSET = 13
"""Distance from the top of a row to the baseline of its label and number."""
_BAR_CHART_PADDING = 34
"""Height above and below all rows, including the label of the reference line."""
_LABEL_WIDTH = 150
"""Width of the labels to the left of the bars."""
_MAX_LABEL_LENGTH = 23
_NUMBER_WIDTH = 70
"""Width of the numbers to the right of the bars."""
_NUMBER_MARGIN = 4
"""Distance from the numbers to the right edge."""
_REFERENCE_OVERHANG = 2
"""Length by which the reference line extends beyond the rows at both ends."""
_REFERENCE_LABEL_OFFSET = 15
"""Distance from the lower end of the reference line to the baseline of its label."""


@dataclass(frozen=True)
class TimeAxis:
    """A chart's x axis: the times of its points in ascending order, in any unit, with a label for each time."""

    times: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True)
class Line:
    """A named line of a chart."""

    name: str
    values: Sequence[float]
    """One value for each time on the axis. The line is interrupted where the value is nan."""
    css_class: str
    """The class that selects the line's color and dash pattern: s1, s2 or s3."""


@dataclass(frozen=True)
class Bar:
    """A labeled value of a column chart or bar chart."""

    label: str
    value: float
    tooltip: str


class ReferenceLine(NamedTuple):
    """A labeled vertical line across all bars of a bar chart, such as the mean of their values."""

    label: str
    value: float


def draw_line_chart(
    title: str,
    lines: Sequence[Line],
    time_axis: TimeAxis,
    format_number: NumberFormatter,
    failed_indices: Collection[int] = (),
) -> str:
    """Return an SVG chart of lines over time. The y axis starts at 0.

    `failed_indices`: the indices of the times at which to draw a cross, which marks a failed write.
    """
    values = [value for line in lines for value in line.values if not math.isnan(value)]
    if not values:
        return _build_empty_chart(title)
    ticks = compute_ticks(max(values))
    x_positions = _scale_times(time_axis.times)
    elements = [*_draw_grid(ticks, format_number), *_draw_x_labels(x_positions, time_axis.labels)]
    for line in lines:
        elements += _draw_line(line, x_positions, time_axis.labels, ticks[-1], format_number)
    elements += _draw_line_names(lines, ticks[-1])
    failure_mark_y = _TOP_MARGIN + _PLOT_HEIGHT - _FAILURE_MARK_OFFSET
    elements += [
        _draw_text(x_positions[index], failure_mark_y, "✗", anchor="middle", css_class="cross")
        for index in failed_indices
    ]
    return _build_svg(title, HEIGHT, elements)


def draw_column_chart(
    title: str, bars: Sequence[Bar], format_number: NumberFormatter, times: Sequence[float] | None = None
) -> str:
    """Return an SVG chart of vertical bars.

    `times`: the positions of the bars on a time axis, in ascending order; if None, the bars are spaced evenly.
    """
    if not bars:
        return _build_empty_chart(title)
    ticks = compute_ticks(max(bar.value for bar in bars))
    x_positions = _space_evenly(len(bars)) if times is None else _scale_times(times)
    min_distance = min((after - before for before, after in pairwise(x_positions)), default=_PLOT_WIDTH)
    width = max(_MIN_COLUMN_WIDTH, min(min_distance * _COLUMN_WIDTH_SHARE, _MAX_COLUMN_WIDTH))
    elements = [*_draw_grid(ticks, format_number), *_draw_x_labels(x_positions, [bar.label for bar in bars])]
    for x, bar in zip(x_positions, bars, strict=True):
        y = _to_y(bar.value, ticks[-1])
        elements.append(_draw_bar(x - width / 2, y, width, _TOP_MARGIN + _PLOT_HEIGHT - y, bar))
    return _build_svg(title, HEIGHT, elements)


def draw_bar_chart(
    title: str, bars: Sequence[Bar], format_number: NumberFormatter, reference_line: ReferenceLine | None = None
) -> str:
    """Return an SVG chart of horizontal bars with their labels and numbers, and the reference line, if any."""
    if not bars:
        return _build_empty_chart(title)
    values = [bar.value for bar in bars]
    if reference_line is not None:
        values.append(reference_line.value)
    # If all values are 0, any other divisor will do.
    max_value = max(values) or 1.0
    bar_area_width = WIDTH - _LABEL_WIDTH - _NUMBER_WIDTH
    height = len(bars) * _BAR_SPACING + _BAR_CHART_PADDING
    elements = []
    for index, bar in enumerate(bars):
        y = _BAR_CHART_TOP + index * _BAR_SPACING
        width = bar_area_width * bar.value / max_value
        label_end, text_y = _LABEL_WIDTH - _TEXT_GAP, y + _BASELINE_OFFSET
        elements.append(_draw_text(label_end, text_y, _shorten_label(bar.label), anchor="end"))
        elements.append(_draw_bar(_LABEL_WIDTH, y + _BAR_INSET, width, _BAR_HEIGHT, bar))
        elements.append(_draw_text(WIDTH - _NUMBER_MARGIN, text_y, format_number(bar.value), anchor="end"))
    if reference_line is not None:
        x = _LABEL_WIDTH + bar_area_width * reference_line.value / max_value
        label = f"{reference_line.label} {format_number(reference_line.value)}"
        elements += _draw_reference_line(x, label, bar_count=len(bars))
    return _build_svg(title, height, elements)


def compute_ticks(max_value: float, max_steps: int = 4) -> list[float]:
    """Return axis ticks from 0 to at least `max_value`. The step is 1, 2 or 5 times a power of ten.

    For example, the ticks for 7 are 0, 2, 4, 6 and 8.
    """
    if not max_value > 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(max_value / max_steps))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    # The tolerance prevents an additional tick if a rounding error makes the maximum slightly larger than a tick.
    step = next(step for step in steps if step * max_steps >= max_value * (1 - _ROUNDING_TOLERANCE))
    step_count = math.ceil(max_value / step - _ROUNDING_TOLERANCE)
    return [step * index for index in range(step_count + 1)]


def _space_evenly(count: int) -> list[float]:
    """Return evenly spaced x positions."""
    return [_LEFT_MARGIN + _PLOT_WIDTH * (index + 0.5) / count for index in range(count)]


def _scale_times(times: Sequence[float]) -> list[float]:
    """Map times linearly to x positions, with a margin at both ends. If all times are equal, space them evenly."""
    start, duration = min(times), max(times) - min(times)
    if not duration:
        return _space_evenly(len(times))
    margin = min(20.0, _PLOT_WIDTH / (2 * len(times)))
    return [_LEFT_MARGIN + margin + (_PLOT_WIDTH - 2 * margin) * (time - start) / duration for time in times]


def _to_y(value: float, max_value: float) -> float:
    return _TOP_MARGIN + _PLOT_HEIGHT * (1 - value / max_value)


def _draw_grid(ticks: Sequence[float], format_number: NumberFormatter) -> Iterator[str]:
    """Draw a horizontal line and a number for each tick."""
    left, right = _LEFT_MARGIN, _LEFT_MARGIN + _PLOT_WIDTH
    for tick in ticks:
        y = _to_y(tick, ticks[-1])
        css_class = "axis" if tick == 0 else "grid"
        yield f'<line class="{css_class}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _draw_text(_LEFT_MARGIN - _TEXT_GAP, y + _HALF_TEXT_HEIGHT, format_number(tick), anchor="end")


def _draw_x_labels(x_positions: Sequence[float], labels: Sequence[str]) -> Iterator[str]:
    """Draw the last label, and each earlier label that overlaps neither the last one nor the previously drawn one."""
    label_width = _CHARACTER_WIDTH * max(map(len, labels)) + _LABEL_GAP
    previous_x, last_x = -math.inf, x_positions[-1]
    for index, (x, label) in enumerate(zip(x_positions, labels, strict=True)):
        is_last = index == len(x_positions) - 1
        if x - previous_x >= label_width and (is_last or last_x - x >= label_width):
            yield _draw_text(x, HEIGHT - _X_LABEL_OFFSET, label, anchor="middle")
            previous_x = x


def _find_pauses(x_positions: Sequence[float]) -> set[int]:
    """Return the index of the first point after each pause (a gap much larger than the median gap)."""
    gaps = [after - before for before, after in pairwise(x_positions)]
    # The median of one or two gaps does not show what gap is usual.
    if len(gaps) < 3:
        return set()
    median_gap = statistics.median(gaps)
    return {index for index, gap in enumerate(gaps, 1) if gap > _PAUSE_FACTOR * median_gap}


def _draw_line(
    line: Line, x_positions: Sequence[float], labels: Sequence[str], max_value: float, format_number: NumberFormatter
) -> Iterator[str]:
    """Draw a line that is interrupted at nan and at pauses, and a point with a tooltip for each value."""
    path_commands = []
    pauses = _find_pauses(x_positions)
    # In an SVG path, M moves to a point without drawing, and L draws a line to it.
    command = "M"
    for index, value in enumerate(line.values):
        if math.isnan(value):
            command = "M"
            continue
        if index in pauses:
            command = "M"
        path_commands.append(f"{command}{x_positions[index]:.1f} {_to_y(value, max_value):.1f}")
        command = "L"
    yield f'<path class="line {line.css_class}" d="{"".join(path_commands)}"/>'
    # A single point is larger, because there is no line that leads to it.
    radius = 5 if len(line.values) == 1 else 2.4
    for index, value in enumerate(line.values):
        if not math.isnan(value):
            tooltip = escape(f"{line.name}, {labels[index]}: {format_number(value)}")
            shape = f'cx="{x_positions[index]:.1f}" cy="{_to_y(value, max_value):.1f}" r="{radius}"'
            yield f'<circle class="dot {line.css_class}" {shape}><title>{tooltip}</title></circle>'


def _draw_line_names(lines: Sequence[Line], max_value: float) -> Iterator[str]:
    """Draw each line's name at its end. Names that would overlap are moved down."""
    line_ends = []
    for line in lines:
        values = [value for value in line.values if not math.isnan(value)]
        if values and line.name:
            line_ends.append((_to_y(values[-1], max_value) + _HALF_TEXT_HEIGHT, line))
    name_y = 0.0
    for y, line in sorted(line_ends, key=lambda end: end[0]):
        name_y = max(y, name_y + _MIN_NAME_DISTANCE)
        name_x = _LEFT_MARGIN + _PLOT_WIDTH + _TEXT_GAP
        yield _draw_text(name_x, name_y, line.name, anchor="start", css_class=f"name {line.css_class}")


def _draw_bar(x: float, y: float, width: float, height: float, bar: Bar) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="bar" {shape} rx="1.5"><title>{escape(bar.tooltip)}</title></rect>'


def _draw_reference_line(x: float, label: str, *, bar_count: int) -> Iterator[str]:
    """Draw a vertical line across the rows of all bars, with a label below it."""
    line_start = _BAR_CHART_TOP - _REFERENCE_OVERHANG
    line_end = _BAR_CHART_TOP + bar_count * _BAR_SPACING + _REFERENCE_OVERHANG
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{line_start}" y2="{line_end}"/>'
    yield _draw_text(x, line_end + _REFERENCE_LABEL_OFFSET, label, anchor="middle")


def _draw_text(x: float, y: float, text: str, *, anchor: str, css_class: str = "tick") -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _shorten_label(label: str) -> str:
    """Keep only the end of a long label, because partition names end with the partition number."""
    if len(label) <= _MAX_LABEL_LENGTH:
        return label
    kept_length = _MAX_LABEL_LENGTH - len("…")
    return "…" + label[-kept_length:]


def _build_empty_chart(title: str) -> str:
    text_y = _EMPTY_CHART_HEIGHT / 2 + _HALF_TEXT_HEIGHT
    return _build_svg(title, _EMPTY_CHART_HEIGHT, [_draw_text(WIDTH / 2, text_y, "no data", anchor="middle")])


def _build_svg(title: str, height: int, elements: Sequence[str]) -> str:
    body = "".join(elements)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )
