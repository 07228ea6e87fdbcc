"""Numbers as tables and charts show them: short, with their unit."""

from __future__ import annotations

import math

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NONE = "-"
"""In place of a number that there is none of."""


def short(value: float) -> str:
    """1,200,000 as 1.2M"""
    if math.isnan(value):
        return NONE
    for size, unit in _UNITS:
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def milliseconds(value: float) -> str:
    """21 ms, 1.3 s, 4 min"""
    if math.isnan(value):
        return NONE
    if value < 1000:
        return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
    seconds = value / 1000
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def share(part: float, whole: float) -> str:
    """12 %"""
    return NONE if not whole else f"{100 * part / whole:.0f} %"


def ratio(value: float) -> str:
    """0.33"""
    return NONE if math.isnan(value) else f"{value:.2f}"
