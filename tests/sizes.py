"""Check the sizes of files and functions: at most 480 lines in a file, 50 in a function without its docstring.

`python -m tests.sizes` lists those that are longer. The limit for files was 400 until names and docstrings were written
out: full names and whole sentences take a fifth more lines.

EXCEPTIONS has the exceptions with their reasons. One that is not needed is an error too, so that the list gets shorter.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spark_kafka_sink", "tests", "integration", "tools")
FILE_LINES_MAX = 480
FUNCTION_LINES_MAX = 50

EXCEPTIONS: Mapping[str, str] = {
    "spark_kafka_sink/producer/batching/accumulator.py": "one lock guards all of it: who holds it must be seen",
    "spark_kafka_sink/producer/producer.py": "every call of the producer's users, on one page",
    "spark_kafka_sink/producer/producer.py: __init__": "the parts of a producer are put together here, each once",
    "spark_kafka_sink/producer/transactions/manager.py": "one lock guards all of it: who holds it must be seen",
}


def too_long(root: Path, path: Path) -> Iterator[tuple[str, int]]:
    """The file, and each function in it, that is too long; with its number of lines."""
    text, name = path.read_text(), path.relative_to(root).as_posix()
    lines = len(text.splitlines())
    if lines > FILE_LINES_MAX:
        yield name, lines
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _lines_of(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{name}: {node.name}", lines


def complaints(root: Path, exceptions: Mapping[str, str]) -> list[str]:
    found = {
        what: lines
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for what, lines in too_long(root, path)
    }
    wrong = [f"{what} has {lines} lines" for what, lines in found.items() if what not in exceptions]
    return wrong + [f"{what} is short enough: remove its exception" for what in exceptions if what not in found]


def _lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    last = function.end_lineno
    assert last is not None
    lines = last - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


if __name__ == "__main__":
    wrong = complaints(ROOT, EXCEPTIONS)
    limits = f"at most {FILE_LINES_MAX} lines in a file and {FUNCTION_LINES_MAX} in a function"
    sys.exit("\n".join([*wrong, f"{len(wrong)} of the sizes are wrong: {limits} (tests/sizes.py)"]) if wrong else 0)
