"""Sections of a document that are made from the code: each stands between two comments that name it."""

from __future__ import annotations

from collections.abc import Mapping


def replace_sections(document: str, sections: Mapping[str, str], opening: str = "") -> str:
    """Return the document with its generated sections. `opening` precedes the name in the opening comment."""
    for name, text in sections.items():
        begin, end = f"<!-- {opening}{name} -->\n", f"<!-- end of {name} -->"
        head, begin_comment, remaining_text = document.partition(begin)
        _, end_comment, tail = remaining_text.partition(end)
        if not begin_comment or not end_comment:
            raise ValueError(f"the document has no section {name}: add `{begin.strip()}` and `{end}`")
        document = f"{head}{begin}\n{text}\n{end}{tail}"
    return document
