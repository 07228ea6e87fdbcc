"""Sections of a document that are made from the code: each stands between two comments that name it."""

from __future__ import annotations

from collections.abc import Mapping


def with_sections(document: str, sections: Mapping[str, str], opening: str = "") -> str:
    """Return the document with its generated sections. `opening` precedes the name in the opening comment."""
    for name, text in sections.items():
        begin, end = f"<!-- {opening}{name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = document.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the document has no section {name}: add `{begin.strip()}` and `{end}`")
        document = f"{before}{begin}\n{text}\n{end}{after}"
    return document
