"""Mutants: modules without one of their statements or exception handlers."""

from __future__ import annotations

import ast
import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

_EXCLUDED_NODE_TYPES = (
    *(ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal),
    ast.Assert,  # always true, so its deletion cannot be detected
)

CodeLocation = tuple[str, str, int]
"""File, name and first line of a function's code, including its decorators."""


@dataclass(frozen=True)
class Statement:
    """A statement or exception handler that can be deleted."""

    first_line: int
    last_line: int
    indent: int
    text: str
    function_name: str
    """The name of the module-level function, or of the class and method, that contains the statement."""
    function_line: int
    """The line of its `def`."""


def find_statements(source: str) -> list[Statement]:
    """Find all deletable statements and exception handlers of functions.

    A compound statement and the statements in its body are separate mutants. The result is sorted by first line.
    """
    lines = source.splitlines()
    statements = []
    for name, function in _find_functions(ast.parse(source)):
        for node in _iter_nested_statements(function):
            if not isinstance(node, _EXCLUDED_NODE_TYPES) and not _has_no_effect(node, function):
                assert node.end_lineno is not None
                text = lines[node.lineno - 1].partition("  # ")[0].strip()  # without a comment
                statements.append(Statement(node.lineno, node.end_lineno, node.col_offset, text, name, function.lineno))
    return sorted(statements, key=lambda statement: (statement.first_line, -statement.last_line))


def delete_statement(source: str, statement: Statement) -> ast.Module:
    """Return the module with the statement in the body of `if False`, so that its names keep their scope.

    An exception handler is kept, but handles no exception.
    """
    tree = ast.parse(source)
    _StatementDeleter(statement).visit(tree)
    return ast.fix_missing_locations(tree)


class _StatementDeleter(ast.NodeTransformer):
    """Moves a statement into the body of `if False`, or lets an exception handler handle no exception."""

    def __init__(self, statement: Statement) -> None:
        self._position = (statement.first_line, statement.last_line, statement.indent)

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, ast.stmt | ast.ExceptHandler) or self._position != (
            node.lineno,
            node.end_lineno,
            node.col_offset,
        ):
            return self.generic_visit(node)
        if isinstance(node, ast.ExceptHandler):
            return ast.copy_location(ast.ExceptHandler(ast.Tuple([], ast.Load()), node.name, node.body), node)
        return ast.copy_location(ast.If(ast.Constant(False), [copy.copy(node)], []), node)


def _find_functions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods of a module with their qualified names, but no nested functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _find_functions(node, f"{prefix}{node.name}.")


def _iter_nested_statements(node: ast.AST) -> Iterator[ast.stmt | ast.ExceptHandler]:
    """Yield the statements and exception handlers in the node's blocks, at all levels except inside of classes."""
    for block_name in ("body", "orelse", "finalbody"):
        for statement in getattr(node, block_name, ()):
            yield statement
            if not isinstance(statement, ast.ClassDef):
                yield from _iter_nested_statements(statement)
    for handler in getattr(node, "handlers", ()):
        yield handler
        yield from _iter_nested_statements(handler)


def _has_no_effect(node: ast.stmt | ast.ExceptHandler, function: ast.FunctionDef) -> bool:
    """Return whether the statement is a docstring, a declaration of a type, or a `return None` that ends a function."""
    if isinstance(node, ast.Return):
        is_none = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
        return is_none and any(node is last for last in _iter_last_statements(function.body))
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or (isinstance(node, ast.AnnAssign) and node.value is None)


def _iter_last_statements(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the last statement of a function's block, and the last ones of the blocks in it."""
    last = block[-1]
    yield last
    if isinstance(last, ast.If):
        branches = [last.body, last.orelse]
    elif isinstance(last, ast.With):
        branches = [last.body]
    elif isinstance(last, ast.Try):
        branches = [last.orelse or last.body, *(handler.body for handler in last.handlers)]
    else:
        return
    for branch in filter(None, branches):
        yield from _iter_last_statements(branch)


def compile_mutant(module: Path, source: str, statement: Statement) -> CodeType:
    """Compile the function that contains the statement, without the statement."""
    tree = delete_statement(source, statement)
    function = next(node for _, node in _find_functions(tree) if node.lineno == statement.function_line)
    first_line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    location = (str(module), function.name, first_line)
    module_code = compile(tree, str(module), "exec")
    return next(code for code in _iter_code_objects(module_code) if code_location(code) == location)


def find_loaded_functions() -> dict[CodeLocation, list[FunctionType]]:
    """Find all function objects of this process, including those that other modules have imported."""
    functions: dict[CodeLocation, list[FunctionType]] = {}
    gc.unfreeze()  # conftest.py freezes the objects that exist after collection, and get_objects would omit them
    for value in gc.get_objects():
        if isinstance(value, FunctionType):
            functions.setdefault(code_location(value.__code__), []).append(value)
    return functions


def _iter_code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_code_objects(constant)


def code_location(code: CodeType) -> CodeLocation:
    return code.co_filename, code.co_name, code.co_firstlineno
