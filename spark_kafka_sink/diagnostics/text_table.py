"""Alignment of the columns of text tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align_columns(rows: Sequence[Sequence[str]], left_aligned: Collection[int]) -> list[str]:
    """Format rows as lines with columns of equal width, without trailing spaces.

    `left_aligned`: the indexes of the columns to align to the left. The others are aligned to the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in left_aligned else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
