"""Column alignment for text tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align_columns(rows: Sequence[Sequence[str]], left_aligned: Collection[int]) -> list[str]:
    """Format rows as lines in which each column has the width of its longest cell. Trailing spaces are removed.

    There must be at least one row, and all rows must have the same number of cells.

    `left_aligned`: the indexes of the columns to align to the left. All other columns are aligned to the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in left_aligned else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
