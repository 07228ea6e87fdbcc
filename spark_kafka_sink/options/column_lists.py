"""Lists of columns as the value of an option."""

from __future__ import annotations

import re

_NAME = r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))"
_END = r"\s*(?:,|$)"


def parse_column_list(text: str, example: str, *words: str) -> list[tuple[str, str]]:
    """Return the names between commas, each with the one of `words` that follows it, in lower case, or with "".

    A name in backticks may have any character, as in Spark. Raises ValueError with the end of a sentence that shows
    the example.
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
