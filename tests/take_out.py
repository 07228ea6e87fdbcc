"""Takes each statement of modules out of the code once, and runs their tests: what survives has no test, or no use.

    python -m tests.take_out spark_kafka_sink/exactly_once/late_attempts.py --tests tests/exactly_once
    python -m tests.take_out --rooms                               all of ROOMS (hours)

With several `--tests`, the next is run only where the one before missed nothing. Of a room, a module's own test file
comes first. Prints a line for each statement that no test misses. Works on a copy of the repository, so that nothing
else sees the change. Left alone are docstrings, imports and definitions.
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
ROOMS = {
    "spark_kafka_sink/exactly_once": "tests/exactly_once",
    "spark_kafka_sink/producer/transactions": "tests/producer",
}
"""Where a statement that no test misses may lose or double rows; with the folder of their tests."""
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
        if not _all_pass(copy, tests):
            raise SystemExit("the tests fail with nothing taken out")
        for statement in statements(source):
            target.write_text(without(source, statement))
            if _all_pass(copy, tests):
                yield statement


def _all_pass(folder: Path, tests: Sequence[str]) -> bool:
    """One after the other, so that the first that misses something is the last."""
    return all(_pass(folder, [each]) for each in tests)


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


def in_rooms() -> Iterator[tuple[Path, list[str]]]:
    """The modules of all rooms, each with its own test file and then all tests of the room."""
    for room, tests in ROOMS.items():
        for module in sorted((ROOT / room).glob("*.py")):
            own = list((ROOT / tests).rglob(f"test_{module.stem}.py"))
            yield module.relative_to(ROOT), [*(str(each.relative_to(ROOT)) for each in own), tests]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", type=Path)
    parser.add_argument("--tests", nargs="+", default=[])
    parser.add_argument("--rooms", action="store_true")
    options = parser.parse_args()
    wanted = list(in_rooms()) if options.rooms else [(module, options.tests) for module in options.modules]
    for module, tests in wanted:
        total, left = len(statements(module.read_text())), 0
        for statement in survivors(module, tests) if total else ():
            left += 1
            print(f"{module}:{statement.first}: {statement.text}", flush=True)
        print(f"{module}: {total} statements, {left} are missed by no test", flush=True)


if __name__ == "__main__":
    main()
