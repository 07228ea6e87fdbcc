"""Charts as SVG, in plain text: lines, columns and rows of bars. They are readable without colour.

Lines differ by their dashes and carry their names at their ends; bars have their numbers beside them. What a `<title>`
says is shown by a browser when the mouse rests there. Colours come from the page by CSS classes, so that dark pages are
dark.

Charts over time have a place for each write by when it began, so that a pause is as wide as it was long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

Words = Callable[[float], str]
"""A number as it is shown."""

WIDTH, HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 62, 14, 30
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_ROW_HEIGHT = 20
_LABEL_WIDTH = 150
_NUMBER_WIDTH = 70
_LABEL_CHARACTERS_MAX = 23
_PAUSE_GAPS = 5
"""A line ends where the next write began more than this many usual gaps later."""
_NAME_DISTANCE = 13
"""Between the names of lines that end close together."""


@dataclass(frozen=True)
class Moments:
    """When each column of a chart was, in any unit, in the order of time, and how it is called."""

    times: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True)
class Line:
    """A line of a chart; nan leaves a gap. `style` is one of the page's classes s1, s2 and s3."""

    name: str
    values: Sequence[float]
    style: str


@dataclass(frozen=True)
class Bar:
    """A bar. `hint` is shown when the mouse rests on it."""

    label: str
    value: float
    hint: str


def line_chart(title: str, lines: Sequence[Line], moments: Moments, words: Words, crossed: Collection[int] = ()) -> str:
    """Lines over moments, from zero up. The moments in `crossed` get a cross below."""
    known = [value for line in lines for value in line.values if not math.isnan(value)]
    if not known:
        return _nothing(title)
    ticks = nice_ticks(max(known))
    places = _by_time(moments.times)
    parts = [*_grid(ticks, words), *_columns(places, moments.labels)]
    for line in lines:
        parts += _path(line, places, moments.labels, ticks[-1], words)
    parts += _names(lines, ticks[-1])
    parts += [_text(places[index], _TOP + _PLOT_HEIGHT - 4, "✗", "middle", "cross") for index in crossed]
    return _svg(title, HEIGHT, parts)


def column_chart(title: str, bars: Sequence[Bar], words: Words, times: Sequence[float] | None = None) -> str:
    """Bars that stand on a line: at these times, or side by side."""
    if not bars:
        return _nothing(title)
    ticks = nice_ticks(max(bar.value for bar in bars))
    places = _side_by_side(len(bars)) if times is None else _by_time(times)
    step = min((after - before for before, after in pairwise(places)), default=_PLOT_WIDTH)
    width = max(1.0, min(step * 0.8, 40))
    parts = [*_grid(ticks, words), *_columns(places, [bar.label for bar in bars])]
    for place, bar in zip(places, bars, strict=True):
        top = _y(bar.value, ticks[-1])
        parts.append(_bar(place - width / 2, top, width, _TOP + _PLOT_HEIGHT - top, bar))
    return _svg(title, HEIGHT, parts)


def row_chart(title: str, bars: Sequence[Bar], words: Words, mark: tuple[str, float] | None = None) -> str:
    """Bars that lie below each other, each with its label and number; `mark` is a line across all of them."""
    if not bars:
        return _nothing(title)
    top = max([bar.value for bar in bars] + ([mark[1]] if mark else [])) or 1.0
    room = WIDTH - _LABEL_WIDTH - _NUMBER_WIDTH
    height = len(bars) * _ROW_HEIGHT + 34
    parts = []
    for index, bar in enumerate(bars):
        y = 8 + index * _ROW_HEIGHT
        width = room * bar.value / top
        parts.append(_text(_LABEL_WIDTH - 8, y + 13, _short(bar.label), "end"))
        parts.append(_bar(_LABEL_WIDTH, y + 2, width, _ROW_HEIGHT - 6, bar))
        parts.append(_text(WIDTH - 4, y + 13, words(bar.value), "end"))
    if mark is not None:
        x = _LABEL_WIDTH + room * mark[1] / top
        below = 10 + len(bars) * _ROW_HEIGHT
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="6" y2="{below}"/>')
        parts.append(_text(x, below + 15, f"{mark[0]} {words(mark[1])}", "middle"))
    return _svg(title, height, parts)


def nice_ticks(top: float, wanted: int = 4) -> list[float]:
    """From zero to at least `top`, by steps of 1, 2 or 5 times a power of ten."""
    if not top > 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(top / wanted))
    step = next(step * power for step in (1, 2, 5, 10) if step * power * wanted >= top * (1 - 1e-9))
    return [step * count for count in range(math.ceil(top / step - 1e-9) + 1)]


def _side_by_side(count: int) -> list[float]:
    return [_LEFT + _PLOT_WIDTH * (index + 0.5) / count for index in range(count)]


def _by_time(times: Sequence[float]) -> list[float]:
    """To scale, with a margin for the first and the last; side by side if all are of one moment."""
    begin, length = min(times), max(times) - min(times)
    if not length:
        return _side_by_side(len(times))
    margin = min(20.0, _PLOT_WIDTH / (2 * len(times)))
    return [_LEFT + margin + (_PLOT_WIDTH - 2 * margin) * (time - begin) / length for time in times]


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - value / top)


def _grid(ticks: Sequence[float], words: Words) -> Iterator[str]:
    for tick in ticks:
        y = _y(tick, ticks[-1])
        kind = "axis" if tick == 0 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{_LEFT + _PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 8, y + 4, words(tick), "end")


def _columns(places: Sequence[float], labels: Sequence[str]) -> Iterator[str]:
    """The labels of the first column and the last one, and of those between that have room."""
    last, end, room = -math.inf, places[-1], 8 * max(map(len, labels)) + 6
    for index, (place, label) in enumerate(zip(places, labels, strict=True)):
        is_last = index == len(places) - 1
        if place - last >= room and (is_last or end - place >= room):
            yield _text(place, HEIGHT - 10, label, "middle")
            last = place


def _pauses(places: Sequence[float]) -> set[int]:
    """Return the indices of the moments that follow a pause: a gap much wider than most."""
    gaps = [after - before for before, after in pairwise(places)]
    if len(gaps) < 3:
        return set()
    usual = statistics.median(gaps)
    return {index for index, gap in enumerate(gaps, 1) if gap > _PAUSE_GAPS * usual}


def _path(line: Line, places: Sequence[float], labels: Sequence[str], top: float, words: Words) -> Iterator[str]:
    count, pen, path = len(line.values), "M", []
    pauses = _pauses(places)
    for index, value in enumerate(line.values):
        if math.isnan(value):
            pen = "M"
            continue
        if index in pauses:
            pen = "M"
        path.append(f"{pen}{places[index]:.1f} {_y(value, top):.1f}")
        pen = "L"
    yield f'<path class="line {line.style}" d="{"".join(path)}"/>'
    radius = 5 if count == 1 else 2.4  # one point without a line is hard to find
    for index, value in enumerate(line.values):
        if not math.isnan(value):
            hint = escape(f"{line.name}, {labels[index]}: {words(value)}")
            place = f'cx="{places[index]:.1f}" cy="{_y(value, top):.1f}" r="{radius}"'
            yield f'<circle class="dot {line.style}" {place}><title>{hint}</title></circle>'


def _names(lines: Sequence[Line], top: float) -> Iterator[str]:
    """At the ends of the lines, from the highest down, and never upon each other."""
    ends = []
    for line in lines:
        known = [value for value in line.values if not math.isnan(value)]
        if known and line.name:
            ends.append((_y(known[-1], top) + 4, line))
    lowest = 0.0
    for y, line in sorted(ends, key=lambda end: end[0]):
        lowest = max(y, lowest + _NAME_DISTANCE)
        yield _text(_LEFT + _PLOT_WIDTH + 8, lowest, line.name, "start", f"name {line.style}")


def _bar(x: float, y: float, width: float, height: float, bar: Bar) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="bar" {shape} rx="1.5"><title>{escape(bar.hint)}</title></rect>'


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(label: str) -> str:
    """The end of a long one, where partitions and tasks have their number."""
    return label if len(label) <= _LABEL_CHARACTERS_MAX else "…" + label[1 - _LABEL_CHARACTERS_MAX :]


def _nothing(title: str) -> str:
    return _svg(title, 60, [_text(WIDTH / 2, 34, "nothing to show", "middle")])


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )
