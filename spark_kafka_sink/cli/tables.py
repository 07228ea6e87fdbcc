"""Formats text tables. Numbers are aligned to the right, everything else to the left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.diagnostics.text_table import align_columns

MAX_CELL_CHARACTERS = 80


def print_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    for line in format_table(names, rows):
        print(line)


def format_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Format the headings, a line of dashes and the rows."""
    values = [list(row) for row in rows]
    cells = [[sanitize(str(value), MAX_CELL_CHARACTERS) for value in row] for row in values]
    left_aligned = [
        column for column in range(len(names)) if not values or not all(_is_number(row[column]) for row in values)
    ]
    widths = [max(len(row[column]) for row in [list(names), *cells]) for column in range(len(names))]
    return align_columns([names, ["-" * width for width in widths], *cells], left_aligned)


def _is_number(value: object) -> bool:
    """Return whether a cell is a number, or a `?` in place of an unknown number."""
    return isinstance(value, int | float) or value == "?"
