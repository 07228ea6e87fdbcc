"""The sentence about a column that is not there: which there are, and which one may be meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from spark_kafka_sink.words import cleaned

COLUMNS_NAMED_MAX = 20
NAME_CHARACTERS_MAX = 60


def no_such_column(name: str, names: Sequence[str], kind: str = "columns") -> str:
    """Which columns there are, and which one may be meant."""
    for other in names:
        if other.lower() == name.lower():
            return f"There is '{cleaned(other, NAME_CHARACTERS_MAX)}', but the names of columns are case-sensitive."
    near = get_close_matches(name, names, 1)
    return listed(names, kind) + (f" Is '{cleaned(near[0], NAME_CHARACTERS_MAX)}' meant?" if near else "")


def listed(names: Sequence[str], kind: str = "columns") -> str:
    shown = ", ".join(cleaned(name, NAME_CHARACTERS_MAX) for name in names[:COLUMNS_NAMED_MAX])
    more = f" and {len(names) - COLUMNS_NAMED_MAX} more" if len(names) > COLUMNS_NAMED_MAX else ""
    return f"The {kind} are {shown}{more}." if names else f"There are no {kind}."
