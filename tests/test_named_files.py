"""Files named in docstrings and comments exist, also after files were renamed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
FILES = sorted(
    path for folder in (PACKAGE, ROOT / "tests", ROOT / "integration", ROOT / "tools") for path in folder.rglob("*.py")
)
PATHS = [f"/{path.relative_to(ROOT).as_posix()}" for path in (*FILES, *ROOT.glob("*.py"))]
NAMED = re.compile(r"(?<![\w/.])[\w/]+\.py\b")


def iterate_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring (also of constants and fields) and of each comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def unknown_in(source: str) -> list[str]:
    """Return the names that match no file, with their lines. A name may omit parent folders."""
    return [
        f"{line}: {name}"
        for line, text in iterate_texts(source)
        for name in NAMED.findall(text)
        if not any(path.endswith(f"/{name}") for path in PATHS)
    ]


def test_files_named_in_docstrings_and_comments_exist() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in FILES}
    found = {name: unknown_in(text) for name, text in texts.items() if NAMED.search(text)}
    assert {name: unknown for name, unknown in found.items() if unknown} == {}


def test_detects_name_of_missing_file() -> None:
    source = '"""See rows.py, client/gone.py."""\n\nX = "sent.py"  # as in lost.py\n"""Like producer/rows.py."""\n'
    assert unknown_in(source) == ["1: client/gone.py", "3: lost.py"]
