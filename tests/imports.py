"""What the files of the package import of each other, and where: at the top, for types, or inside of functions."""

from __future__ import annotations

import ast
from collections import deque
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
    """Every import, with what a file imports for types alone; of a name in a module, the module.

    Calls of `import_module` are among them, with `*` for each part of the name that is known only when they run.
    """
    found = []
    for importer, path in files.items():
        for node, in_function in _nodes(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
                names = dict.fromkeys(_names(node, importer, files))
                found += [Import(importer, name, node.lineno, in_function) for name in names]
    return found


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each node, and whether it is inside of a function."""
    left = deque([(tree, False)])
    while left:
        node, in_function = left.popleft()
        yield node, in_function
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        left.extend((child, in_function) for child in ast.iter_child_nodes(node))


def _names(node: ast.Import | ast.ImportFrom | ast.Call, importer: str, files: Mapping[str, Path]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in files else node.module for name in inner] if node.module else []
    named = isinstance(node.func, ast.Name | ast.Attribute)
    if named and ast.unparse(node.func) in ("import_module", "importlib.import_module", "__import__"):
        return [_text(node.args[0], importer)]
    return []


def _text(name: ast.expr, importer: str) -> str:
    if isinstance(name, ast.Constant):
        return str(name.value)
    if isinstance(name, ast.JoinedStr):
        return "".join(_text(part, importer) for part in name.values)
    if isinstance(name, ast.FormattedValue) and ast.unparse(name.value) == "__name__":
        return importer
    return "*"


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
    """Lines where a comment stands by itself at the top level, as if another file began there.

    A heading in one line, `# --- in a task`, divides what is one thing. A comment above a statement belongs to it.
    """
    lines = path.read_text().splitlines()
    of_statements = {
        number
        for node in ast.parse("\n".join(lines)).body
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found, began = [], 0
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("#") and number not in of_statements:
            began = began or number
            continue
        if began and not line and not (began == number - 1 and lines[began - 1].startswith("# --- ")):
            found.append(began)
        began = 0
    return found
