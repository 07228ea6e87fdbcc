"""Access to a DataFrame's columns by position.

Spark resolves a column by name, and parses the name first: case is ignored, a dot separates a struct from its field,
backticks quote, and `*` means all columns. But a DataFrame's columns may have any names, even both `a` and `A`. The
columns are therefore renamed by position before they are referenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def build_positional_name(position: int) -> str:
    """Return the name that `rename_by_position` gives to the column at this position."""
    return f"_pykafka_{position}"


def rename_by_position(frame: Any) -> Any:
    """Rename all columns to their positional names, which are unambiguous to Spark."""
    return frame.toDF(*map(build_positional_name, range(len(frame.schema.fieldNames()))))


def select_by_position(frame: Any, positions: Sequence[int]) -> Any:
    """Select the columns at these positions, under their own names."""
    names = frame.schema.fieldNames()
    renamed_frame = rename_by_position(frame).select(*map(build_positional_name, positions))
    return renamed_frame.toDF(*(names[position] for position in positions))
