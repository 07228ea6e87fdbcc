"""Text tables, in which numbers are aligned to the right and everything else to the left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.diagnostics.text_table import align_columns

MAX_CELL_CHARACTERS = 80


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    for line in format_table(headings, rows):
        print(line)


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Format the headings, a line of dashes and the rows."""
    value_rows = [list(row) for row in rows]
    cell_rows = [[sanitize(str(value), MAX_CELL_CHARACTERS) for value in row] for row in value_rows]
    columns = range(len(headings))
    number_columns = [column for column in columns if value_rows and all(_is_number(row[column]) for row in value_rows)]
    left_aligned = [column for column in columns if column not in number_columns]
    widths = [max(len(row[column]) for row in [headings, *cell_rows]) for column in columns]
    return align_columns([headings, ["-" * width for width in widths], *cell_rows], left_aligned)


def _is_number(value: object) -> bool:
    """Return whether a cell is a number, or a `?` in place of an unknown number."""
    return isinstance(value, int | float) or value == "?"
