"""Takes each statement of modules out of the code once, and runs their tests: what survives has no test, or no use.

    python -m tests.take_out spark_kafka_sink/exactly_once/late_attempts.py --tests tests/exactly_once

Prints a line for each statement that no test misses. Works on a copy of the repository, so that nothing else sees the
change. Left alone are docstrings, imports and definitions.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COPIED = ("spark_kafka_sink", "tests", "integration", "docs", "conf", "pyproject.toml", "conftest.py", "Makefile")
_LEFT_ALONE = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)
RUN_SECONDS = 900.0
"""A run that takes longer waits for what was taken out: it is noticed."""


@dataclass(frozen=True)
class Statement:
    first: int
    last: int
    indent: int
    text: str


def statements(source: str) -> list[Statement]:
    """Of all functions, compound ones as a whole and each of their parts by itself."""
    lines = source.splitlines()
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for node in _parts(function):
                if not isinstance(node, _LEFT_ALONE) and not _is_text(node):
                    assert node.end_lineno is not None
                    text = lines[node.lineno - 1].strip()
                    found.append(Statement(node.lineno, node.end_lineno, node.col_offset, text))
    return sorted(set(found), key=lambda each: (each.first, -each.last))


def without(source: str, statement: Statement) -> str:
    lines = source.splitlines(keepends=True)
    lines[statement.first - 1 : statement.last] = [" " * statement.indent + "pass\n"]
    return "".join(lines)


def _parts(node: ast.AST) -> Iterator[ast.stmt]:
    for field in ("body", "orelse", "finalbody"):
        for each in getattr(node, field, ()):
            yield each
            if not isinstance(each, ast.FunctionDef | ast.ClassDef):
                yield from _parts(each)
    for handler in getattr(node, "handlers", ()):
        yield from _parts(handler)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def survivors(module: Path, tests: Sequence[str]) -> Iterator[Statement]:
    source = module.read_text()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in _COPIED:
            place = ROOT / name
            if place.is_dir():
                shutil.copytree(place, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(place, copy / name)
        target = copy / module.resolve().relative_to(ROOT)
        if not _pass(copy, tests):
            raise SystemExit("the tests fail with nothing taken out")
        for statement in statements(source):
            target.write_text(without(source, statement))
            if _pass(copy, tests):
                yield statement


def _pass(folder: Path, tests: Sequence[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, check=False, timeout=RUN_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    options = parser.parse_args()
    for module in options.modules:
        total, left = len(statements(module.read_text())), 0
        for statement in survivors(module, options.tests):
            left += 1
            print(f"{module}:{statement.first}: {statement.text}", flush=True)
        print(f"{module}: {total} statements, {left} are missed by no test", flush=True)


if __name__ == "__main__":
    main()
