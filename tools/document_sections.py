"""Replacement of the generated sections of a document. Each section stands between two comments with its name."""

from __future__ import annotations

from collections.abc import Mapping


def replace_sections(document: str, sections: Mapping[str, str], opening: str = "") -> str:
    """Return the document with the text of each section replaced. Raise ValueError if it lacks one of the sections.

    `opening`: text that precedes the section's name in the comment before the section.
    """
    for name, text in sections.items():
        begin, end = f"<!-- {opening}{name} -->\n", f"<!-- end of {name} -->"
        head, begin_comment, remaining_text = document.partition(begin)
        _, end_comment, tail = remaining_text.partition(end)
        if not begin_comment or not end_comment:
            raise ValueError(f"the document has no section {name}: add `{begin.strip()}` and `{end}`")
        document = f"{head}{begin}\n{text}\n{end}{tail}"
    return document
