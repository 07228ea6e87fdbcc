"""Plain English: some words are not used in the package, the tests and the documents.

Readers with another mother tongue must read such sentences twice: "a failure is told" (raised, logged or returned?),
"nobody waits" (which thread?), "so many rows" (how many?). Write subject, verb and object, with the domain's words:
future, batch, in flight, acknowledged, pending, failed, reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("spark_kafka_sink", "tests", "integration", "docs", "README.md", "CHANGELOG.md")
ENDINGS = (".py", ".md", ".html", ".sh", ".scala", ".java")
AVOIDED = ("told", "tells", "untold", "nobody", "so many", "so few", "whoever", "whom")
LEANING = ("The same", "Likewise", "As above", "Ditto")
WORDS = re.compile("(?<![a-z])(?:" + "|".join(AVOIDED).replace(" ", r"[\s_#]+") + ")(?![a-z])", re.IGNORECASE)
"""The words as they stand in sentences and in names: `_` separates words, too, and so does the end of a line."""

ALLOWED: dict[str, str] = {
    "tests/test_prose.py": "it names the words",
}
"""Files in which the words may stand, each with the reason: it quotes them, or what another program prints."""


def found(text: str) -> Iterator[str]:
    for match in WORDS.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{line}: {' '.join(match[0].split())}"


def texts() -> Iterator[tuple[str, str]]:
    for name in FOLDERS:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.suffix in ENDINGS and path.is_file():
                yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def test_the_package_the_tests_and_the_documents_are_written_without_these_words() -> None:
    assert [f"{name}:{hit}" for name, text in texts() if name not in ALLOWED for hit in found(text)] == []


def strings_that_stand_alone(module: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those below constants and fields included."""
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_docstring_leans_on_the_one_above() -> None:
    modules = [(name, text) for name, text in texts() if name.endswith(".py")]
    assert [
        f"{name}:{line}: {docstring}"
        for name, text in modules
        for line, docstring in strings_that_stand_alone(text)
        if docstring.startswith(LEANING)
    ] == []


def test_each_exception_is_still_needed() -> None:
    with_words = {name for name, text in texts() if any(found(text))}
    assert [name for name in ALLOWED if name not in with_words] == []


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("def test_it_is_told_at_once():", ["1: told"]),
        ("ok\n# Nobody waits for so\nmany", ["2: Nobody", "2: so many"]),
        ("a threshold, toldstoy and foretells", []),
    ],
)
def test_a_word_is_found_in_names_and_over_the_end_of_a_line(text: str, hits: list[str]) -> None:
    assert list(found(text)) == hits
