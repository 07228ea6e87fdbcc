"""Sentences for error messages about columns that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from spark_kafka_sink.diagnostics.text import sanitize

COLUMNS_NAMED_MAX = 20
NAME_CHARACTERS_MAX = 60


def describe_missing_column(name: str, names: Sequence[str], kind: str = "columns") -> str:
    """Return which columns there are, and which of them may be meant."""
    for other in names:
        if other.lower() == name.lower():
            return f"There is '{sanitize(other, NAME_CHARACTERS_MAX)}', but the names of {kind} are case-sensitive."
    near = get_close_matches(name, names, 1)
    return describe_columns(names, kind) + (
        f" Did you mean '{sanitize(near[0], NAME_CHARACTERS_MAX)}'?" if near else ""
    )


def describe_columns(names: Sequence[str], kind: str = "columns") -> str:
    """Return a sentence that lists the first columns and counts the others."""
    shown = ", ".join(sanitize(name, NAME_CHARACTERS_MAX) for name in names[:COLUMNS_NAMED_MAX])
    more = f" and {len(names) - COLUMNS_NAMED_MAX} more" if len(names) > COLUMNS_NAMED_MAX else ""
    return f"The {kind} are {shown}{more}." if names else f"There are no {kind}."
