"""Parser of option values that list columns."""

from __future__ import annotations

import re

_NAME_PATTERN = r"\s*(?:`(?P<quoted_name>(?:[^`]|``)+)`|(?P<plain_name>[^,`]+?))"
_SEPARATOR_PATTERN = r"\s*(?:,|$)"


def parse_column_list(text: str, example: str, *keywords: str) -> list[tuple[str, str]]:
    """Parse a comma-separated list of column names, each optionally followed by one of the keywords.

    As in Spark, a name in backticks may contain any character. Return pairs of a name and its keyword. The keyword is
    in lowercase, or "" if none follows the name.

    If the text is empty or invalid, raise ValueError. The message shows `example`, and completes a sentence that begins
    with the option's name.
    """
    # Without keywords, the group is empty, but it still exists in every match.
    keyword_pattern = rf"(?:\s+(?P<keyword>{'|'.join(keywords)}))?" if keywords else "(?P<keyword>)"
    column_pattern = re.compile(_NAME_PATTERN + keyword_pattern + _SEPARATOR_PATTERN, re.IGNORECASE)
    columns: list[tuple[str, str]] = []
    position = 0
    # The body also runs for an empty text, which the pattern then rejects.
    while position < len(text) or not columns:
        match = column_pattern.match(text, position)
        if match is None:
            raise ValueError(f"must be a list of columns such as {example}")
        quoted_name = match["quoted_name"]
        name = quoted_name.replace("``", "`") if quoted_name else match["plain_name"]
        columns.append((name, (match["keyword"] or "").lower()))
        position = match.end()
    return columns
