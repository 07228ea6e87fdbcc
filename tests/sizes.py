"""Size limits of files and functions: at most 500 lines in a file, 50 in a function without its docstring.

`python -m tests.sizes` lists those above the limits. The limit for files was 400 until names and docstrings were
written out, and 480 until docstrings defined their terms: full names and whole sentences take a quarter more lines.

EXCEPTIONS has the exceptions with their reasons. An exception that is not needed is an error, so that the list shrinks.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spark_kafka_sink", "tests", "integration", "tools")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50

EXCEPTIONS: Mapping[str, str] = {
    "spark_kafka_sink/producer/batching/accumulator.py": "one lock guards all of it: who holds it must be seen",
    "spark_kafka_sink/producer/producer.py": "every call of the producer's users, on one page",
    "spark_kafka_sink/producer/producer.py: __init__": "the parts of a producer are put together here, each once",
    "spark_kafka_sink/producer/transactions/manager.py": "one lock guards all of it: who holds it must be seen",
}


def find_oversized(root: Path, path: Path) -> Iterator[tuple[str, int]]:
    """Yield the file and each of its functions that are too long, with their numbers of lines."""
    text, name = path.read_text(), path.relative_to(root).as_posix()
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield name, lines
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _count_lines(node)
            if lines > MAX_FUNCTION_LINES:
                yield f"{name}: {node.name}", lines


def find_errors(root: Path, exceptions: Mapping[str, str]) -> list[str]:
    """Return messages about files and functions that are too long, and about exceptions that are not needed."""
    oversized = {
        name: lines
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for name, lines in find_oversized(root, path)
    }
    errors = [f"{name} has {lines} lines" for name, lines in oversized.items() if name not in exceptions]
    return errors + [f"{name} is short enough: remove its exception" for name in exceptions if name not in oversized]


def _count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    last = function.end_lineno
    assert last is not None
    lines = last - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


if __name__ == "__main__":
    errors = find_errors(ROOT, EXCEPTIONS)
    limits = f"at most {MAX_FILE_LINES} lines in a file and {MAX_FUNCTION_LINES} in a function"
    sys.exit("\n".join([*errors, f"{len(errors)} errors: {limits} (tests/sizes.py)"]) if errors else 0)
