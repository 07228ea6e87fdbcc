"""Names of columns: read from a list, and the sentence about one that is not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from spark_kafka_sink.words import cleaned

COLUMNS_NAMED_MAX = 20
NAME_CHARACTERS_MAX = 60
_NAME = r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))"
_END = r"\s*(?:,|$)"


def listed_columns(text: str, example: str, *words: str) -> list[tuple[str, str]]:
    """Names between commas, each with the one of `words` that stands behind it, in lower case; else with "".

    A name in backticks may have any character, as in Spark. ValueError has the end of a sentence, with the example.
    """
    word = rf"(?:\s+({'|'.join(words)}))?" if words else "()"
    one = re.compile(_NAME + word + _END, re.IGNORECASE)
    found = []
    at = 0
    while at < len(text):
        match = one.match(text, at)
        if match is None:
            raise ValueError(f"must be a list of columns such as {example}")
        quoted, plain, behind = match.groups()
        found.append((quoted.replace("``", "`") if quoted else plain, (behind or "").lower()))
        at = match.end()
    return found


def no_such_column(name: str, names: Sequence[str], kind: str = "columns") -> str:
    """Which columns there are, and which one may be meant."""
    for other in names:
        if other.lower() == name.lower():
            return f"There is '{cleaned(other, NAME_CHARACTERS_MAX)}', but the names of {kind} are case-sensitive."
    near = get_close_matches(name, names, 1)
    return listed(names, kind) + (f" Is '{cleaned(near[0], NAME_CHARACTERS_MAX)}' meant?" if near else "")


def listed(names: Sequence[str], kind: str = "columns") -> str:
    shown = ", ".join(cleaned(name, NAME_CHARACTERS_MAX) for name in names[:COLUMNS_NAMED_MAX])
    more = f" and {len(names) - COLUMNS_NAMED_MAX} more" if len(names) > COLUMNS_NAMED_MAX else ""
    return f"The {kind} are {shown}{more}." if names else f"There are no {kind}."
