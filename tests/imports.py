"""Imports between the modules of the package: at the top, for type checking, or inside functions."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "spark_kafka_sink"


class Import(NamedTuple):
    """An import statement, or a call of `import_module`."""

    importer: str
    imported: str
    line: int
    in_function: bool


def modules(root: Path = ROOT, package: str = PACKAGE) -> dict[str, Path]:
    """Return the files of a package by module name; an `__init__.py` has the name of its package."""
    files = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(files: Mapping[str, Path]) -> list[Import]:
    """Return all imports, including those for type checking only. An import of a name counts as one of its module.

    Calls of `import_module` are included, with `*` for each part of the name that is computed at run time.
    """
    found = []
    for importer, path in files.items():
        for node, in_function in _walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
                names = dict.fromkeys(_imported_names(node, importer, files))
                found += [Import(importer, name, node.lineno, in_function) for name in names]
    return found


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield each node, and whether it is inside a function."""
    queue = deque([(tree, False)])
    while queue:
        node, in_function = queue.popleft()
        yield node, in_function
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        queue.extend((child, in_function) for child in ast.iter_child_nodes(node))


def _imported_names(
    node: ast.Import | ast.ImportFrom | ast.Call, importer: str, files: Mapping[str, Path]
) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        candidates = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in files else node.module for name in candidates] if node.module else []
    is_name = isinstance(node.func, ast.Name | ast.Attribute)
    if is_name and ast.unparse(node.func) in ("import_module", "importlib.import_module", "__import__"):
        return [_module_name_pattern(node.args[0], importer)]
    return []


def _module_name_pattern(name: ast.expr, importer: str) -> str:
    if isinstance(name, ast.Constant):
        return str(name.value)
    if isinstance(name, ast.JoinedStr):
        return "".join(_module_name_pattern(part, importer) for part in name.values)
    if isinstance(name, ast.FormattedValue) and ast.unparse(name.value) == "__name__":
        return importer
    return "*"


def find_cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Find import cycles: the sets of modules that import each other, directly or indirectly."""
    imports_of: dict[str, set[str]] = {}
    for importer, imported in edges:
        imports_of.setdefault(importer, set()).add(imported)
    reachable = {name: _find_reachable(name, imports_of) for name in imports_of}
    cycles: set[tuple[str, ...]] = set()
    for name in imports_of:
        if name in reachable[name]:
            cycles.add(tuple(sorted(other for other in reachable[name] if name in reachable.get(other, ()))))
    return [list(cycle) for cycle in sorted(cycles)]


def _find_reachable(start: str, imports_of: Mapping[str, set[str]]) -> set[str]:
    reachable: set[str] = set()
    stack = list(imports_of.get(start, ()))
    while stack:
        name = stack.pop()
        if name not in reachable:
            reachable.add(name)
            stack += imports_of.get(name, ())
    return reachable


def find_detached_comments(path: Path) -> list[int]:
    """Return the line numbers of top-level comments that stand alone, like the head of another file.

    Headings of one line, `# --- in a task`, and comments directly above a statement are allowed.
    """
    lines = path.read_text().splitlines()
    statement_lines = {
        number
        for node in ast.parse("\n".join(lines)).body
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    detached, first = [], 0
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("#") and number not in statement_lines:
            first = first or number
            continue
        if first and not line and not (first == number - 1 and lines[first - 1].startswith("# --- ")):
            detached.append(first)
        first = 0
    return detached
