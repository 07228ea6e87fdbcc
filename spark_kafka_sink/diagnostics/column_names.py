"""Sentences about missing columns, for error messages."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from spark_kafka_sink.diagnostics.text import sanitize

MAX_LISTED_COLUMNS = 20
MAX_NAME_CHARACTERS = 60


def describe_missing_column(name: str, names: Sequence[str], kind: str = "columns") -> str:
    """List the existing columns, and suggest a similar one for a name that was not found.

    If an existing name differs from `name` only in case, or `name` begins with an existing name and a dot, such as
    `s.x`, return sentences about that column instead of the list.

    `kind`: what to call the columns, in the plural.
    """
    for existing_name in names:
        if existing_name.lower() == name.lower():
            shown_name = sanitize(existing_name, MAX_NAME_CHARACTERS)
            return f"There is '{shown_name}', but the names of {kind} are case-sensitive."
    parent_name = name.partition(".")[0]
    if parent_name != name and parent_name in names:
        shown_name = sanitize(parent_name, MAX_NAME_CHARACTERS)
        # The column's type is unknown here, so the sentence must also be true if the column has no fields.
        return f"There is '{shown_name}', but parts of {kind} cannot be named here. Select the part as a column first."
    matches = get_close_matches(name, names, 1)
    suggestion = f" Did you mean '{sanitize(matches[0], MAX_NAME_CHARACTERS)}'?" if matches else ""
    return describe_columns(names, kind) + suggestion


def describe_columns(names: Sequence[str], kind: str = "columns") -> str:
    """List the first columns in a sentence, followed by the number of omitted columns."""
    listed_names = ", ".join(sanitize(name, MAX_NAME_CHARACTERS) for name in names[:MAX_LISTED_COLUMNS])
    remainder = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return f"The {kind} are {listed_names}{remainder}." if names else f"There are no {kind}."
