"""What the files of the package import of each other, and where: at the top, for types, or inside of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "spark_kafka_sink"


class Import(NamedTuple):
    importer: str
    imported: str
    line: int
    in_function: bool


def modules(root: Path = ROOT, package: str = PACKAGE) -> dict[str, Path]:
    """The files of the package by the names of their modules; a folder has the name of its `__init__`."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(files: Mapping[str, Path]) -> list[Import]:
    """Every import, with what a file imports for types alone; of a name in a module, the module."""
    found = []
    for importer, path in files.items():
        tree = ast.parse(path.read_text())
        inside = {id(node) for each in _functions(tree) for node in ast.walk(each)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in files else node.module for name in inner]
            else:
                continue
            found += [Import(importer, name, node.lineno, id(node) in inside) for name in dict.fromkeys(names)]
    return found


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def circles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The sets of files from each of which the others can be reached."""
    below: dict[str, set[str]] = {}
    for importer, imported in arrows:
        below.setdefault(importer, set()).add(imported)
    reached = {name: _reachable(name, below) for name in below}
    found: set[tuple[str, ...]] = set()
    for name in below:
        if name in reached[name]:
            found.add(tuple(sorted(other for other in reached[name] if name in reached.get(other, ()))))
    return [list(circle) for circle in sorted(found)]


def _reachable(start: str, below: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(below.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += below.get(name, ())
    return found


def second_beginnings(path: Path) -> list[int]:
    """Lines where a block comment stands by itself below the first definition, as if another file began there."""
    found, began, defined = [], 0, False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            began = began or number
            continue
        if defined and began and not line and number - began >= 3:
            found.append(began)
        began = 0
        defined = defined or line.startswith(("def ", "class ", "async def "))
    return found
