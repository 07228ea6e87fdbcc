"""Access to the columns of a DataFrame by position.

Spark resolves a column by its name, and parses the name first: it ignores case, a dot separates a struct from its
field, backticks quote, and `*` means all columns. A DataFrame may have columns with any names, such as `a` and `A`. The
columns are therefore renamed by position before they are referenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def build_positional_name(position: int) -> str:
    """Return the name that `rename_by_position` gives to the column at this position."""
    return f"_pykafka_{position}"


def rename_by_position(frame: Any) -> Any:
    """Rename each column by `build_positional_name`. Spark resolves the new name to this column only."""
    return frame.toDF(*map(build_positional_name, range(len(frame.schema.fieldNames()))))


def select_by_position(frame: Any, positions: Sequence[int]) -> Any:
    """Select the columns at these positions, under their own names."""
    names = frame.schema.fieldNames()
    renamed_frame = rename_by_position(frame).select(*map(build_positional_name, positions))
    return renamed_frame.toDF(*(names[position] for position in positions))
