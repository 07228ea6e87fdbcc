"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[str]:
    """README.md, those of docs/ and those of .github/, by their paths."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]
    return sorted(page.relative_to(ROOT).as_posix() for page in found)


def languages(page: str) -> set[str]:
    return {language for language, _ in FENCE.findall((ROOT / page).read_text())}


def blocks(page: str, language: str = "python") -> list[str]:
    return [text for found, text in FENCE.findall((ROOT / page).read_text()) if found == language]


def command_lines(page: str) -> list[str]:
    """The lines of its shell blocks, continued lines as one, without comments."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#\s.*", "", line).strip() for line in text.splitlines()]
    return [re.sub(r"\s+", " ", line) for line in lines if line]
