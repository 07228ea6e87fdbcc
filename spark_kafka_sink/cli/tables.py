"""Tables on a terminal: columns as wide as what stands in them, numbers to the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_kafka_sink.diagnostics.text import sanitize

CELL_CHARACTERS_MAX = 80


def print_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    for line in table_lines(names, rows):
        print(line)


def table_lines(names: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    given = [list(row) for row in rows]
    cells = [[sanitize(str(value), CELL_CHARACTERS_MAX) for value in row] for row in given]
    widths = [max(len(row[column]) for row in [list(names), *cells]) for column in range(len(names))]
    to_the_right = [bool(given) and all(_is_number(row[column]) for row in given) for column in range(len(names))]

    def line(values: Sequence[str]) -> str:
        fitted = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, to_the_right, strict=True)
        ]
        return "  ".join(fitted).rstrip()

    return [line(names), line(["-" * width for width in widths]), *(line(row) for row in cells)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or value == "?"
