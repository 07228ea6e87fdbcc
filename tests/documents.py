"""The pages of the documentation and their code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[str]:
    """Return the paths of README.md and of the pages in docs/ and .github/."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]
    return sorted(page.relative_to(ROOT).as_posix() for page in files)


def languages(page: str) -> set[str]:
    return {language for language, _ in FENCE.findall((ROOT / page).read_text())}


def blocks(page: str, language: str = "python") -> list[str]:
    return [text for block_language, text in FENCE.findall((ROOT / page).read_text()) if block_language == language]


def command_lines(page: str) -> list[str]:
    """Return the commands in the shell blocks of a page: continued lines joined, comments removed."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#\s.*", "", line).strip() for line in text.splitlines()]
    return [re.sub(r"\s+", " ", line) for line in lines if line]
