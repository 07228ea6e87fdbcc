"""Compact number formats for tables and charts."""

from __future__ import annotations

import math

_SI_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NO_VALUE = "-"
"""Text shown instead of an undefined number: NaN, or a percentage of a total of zero."""


def format_number(value: float) -> str:
    """Format a number with an SI prefix: 1,200,000 becomes `1.2M`."""
    if math.isnan(value):
        return NO_VALUE
    for factor, prefix in _SI_PREFIXES:
        # With three significant digits, 999.5 would become 1e+03, so use the next prefix.
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def format_milliseconds(value: float) -> str:
    """Format a duration in milliseconds, seconds or minutes: `21 ms`, `1.3 s`, `4 min`."""
    if math.isnan(value):
        return NO_VALUE
    if value < 1000:
        return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"
    seconds = value / 1000
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def format_percentage(part: float, total: float) -> str:
    """Format `part` as a percentage of `total`, rounded to a whole number: `12%`."""
    return NO_VALUE if not total else f"{100 * part / total:.0f}%"


def format_ratio(value: float) -> str:
    """Format a ratio with two decimal places: `0.33`."""
    return NO_VALUE if math.isnan(value) else f"{value:.2f}"
