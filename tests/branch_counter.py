"""Counter of the rare branches that the code reaches, in recompiled functions. The explorers use it.

rare_branches.py names the branches. `counted_branches` recompiles their functions with a call of the counter at each
branch, and restores them at the end. So the product contains no counters, and only the branches themselves become
slower.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from types import CodeType, FunctionType, ModuleType

_PACKAGE = "spark_kafka_sink."
_COUNTER_NAME = "__count_branch__"
"""The name of the counter in the global namespaces of the recompiled functions."""
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler)


@dataclass(frozen=True)
class Branch:
    """A branch of a function, marked by a text that occurs in the function once."""

    name: str
    """A sentence about the event that reaches the branch."""
    function: str
    """Path of the function within the package, for example `producer.sending.idempotence:Idempotence.admit`."""
    text: str
    """The marker, as `ast.unparse` writes it: a statement, an expression, or the first line of a block.

    A statement is counted when it is executed, an expression when its value is true, and the first line of a block
    (`if x:`, also for an `elif`, or `except KafkaSinkError:`) when the block is entered.
    """


class MarkerNotFoundError(Exception):
    """The text of a branch does not occur in its function exactly once."""


class BranchCounts:
    """The number of runs in which each branch was reached."""

    def __init__(self, branches: Iterable[Branch]) -> None:
        self._names = [branch.name for branch in branches]
        self._runs = Counter[str]()

    def add_run(self, reached: Iterable[str]) -> None:
        """Count a run, which reached the branches with these names."""
        self._runs.update(set(reached))

    def add(self, other: BranchCounts) -> None:
        self._runs.update(other._runs)

    def find_unreached(self) -> list[str]:
        """Return the names of the branches that no run has reached."""
        return [name for name in self._names if not self._runs[name]]

    def __str__(self) -> str:
        lines = [f"{self._runs[name]:8,}  {name}" for name in self._names]
        return "\n".join(["runs that reached each rare branch:", *lines])


def report_counts(counts: BranchCounts, *, required: bool) -> bool:
    """Print the counts and, if the branches are `required`, those that were not reached. Return whether all is well."""
    print(counts, flush=True)
    unreached = counts.find_unreached() if required else []
    for name in unreached:
        print(f"not reached by any run: {name}", flush=True)
    return not unreached


_reached: set[str] = set()


def take_reached() -> set[str]:
    """Return the names of the branches that this process has reached since the last call."""
    reached = set(_reached)
    _reached.clear()
    return reached


def _count(name: str, value: object = True) -> object:
    """Record that a branch was reached, if `value` is true. Return the value."""
    if value:
        _reached.add(name)
    return value


@contextlib.contextmanager
def counted_branches(branches: Iterable[Branch]) -> Iterator[None]:
    """Record for `take_reached` which branches are reached within the context."""
    originals = insert_counters(branches)
    try:
        yield
    finally:
        for function, code in originals.items():
            function.__code__ = code
            function.__globals__.pop(_COUNTER_NAME, None)
        _reached.clear()


def insert_counters(branches: Iterable[Branch]) -> dict[FunctionType, CodeType]:
    """Recompile the functions of these branches, with counters. Return the original code of each function.

    Raise MarkerNotFoundError, and change nothing, if a marker is missing.
    """
    by_module: dict[str, dict[FunctionType, list[Branch]]] = {}
    for branch in branches:
        function = find_function(branch.function)
        by_module.setdefault(function.__module__, {}).setdefault(function, []).append(branch)
    recompiled: dict[FunctionType, CodeType] = {}
    for module, functions in by_module.items():
        recompiled |= _recompile(sys.modules[module], functions)
    originals = {function: function.__code__ for function in recompiled}
    for function, code in recompiled.items():
        function.__globals__[_COUNTER_NAME] = _count
        function.__code__ = code
    return originals


def find_function(name: str) -> FunctionType:
    """Return the function with this name within the package, without its decorators."""
    function = inspect.unwrap(resolve_name(_PACKAGE + name))
    assert isinstance(function, FunctionType), name
    return function


def _recompile(
    module: ModuleType, branches_by_function: Mapping[FunctionType, Iterable[Branch]]
) -> dict[FunctionType, CodeType]:
    """Return the code of these functions of a module, with a call of the counter at each of their branches."""
    tree = ast.parse(inspect.getsource(module))
    nodes = {_place(node): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for function, branches in branches_by_function.items():
        _insert_counters(nodes[_place(function.__code__)], branches)
    code = compile(ast.fix_missing_locations(tree), inspect.getfile(module), "exec")
    codes = {_place(nested): nested for nested in _iterate_codes(code)}
    return {function: codes[_place(function.__code__)] for function in branches_by_function}


def _place(function: ast.FunctionDef | CodeType) -> tuple[str, int]:
    """Return the name of a function and its first line, that of its first decorator if it has any."""
    if isinstance(function, CodeType):
        return function.co_name, function.co_firstlineno
    return function.name, min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _insert_counters(function: ast.FunctionDef, branches: Iterable[Branch]) -> None:
    values = {node.value for node in ast.walk(function) if isinstance(node, ast.Expr)}  # have the texts of statements
    texts = {node: _marker_text(node) for node in ast.walk(function) if node not in values}
    names: dict[ast.AST, str] = {}
    for branch in branches:
        marked = [node for node, text in texts.items() if text == branch.text]
        if len(marked) != 1:
            message = f"{branch.name!r}: {len(marked)} places in {branch.function} have the text {branch.text!r}"
            raise MarkerNotFoundError(message)
        names[marked[0]] = branch.name
    _CounterInserter(names).visit(function)


def _marker_text(node: ast.AST) -> str | None:
    """Return the text that marks a node in a Branch, or None if the node cannot be counted."""
    if isinstance(node, _BLOCKS):
        return ast.unparse(node).strip().split("\n", 1)[0]
    if not isinstance(node, ast.stmt | ast.expr) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return None
    return ast.unparse(node)


class _CounterInserter(ast.NodeTransformer):
    """Inserts calls of the counter at these nodes, with the names of their branches."""

    def __init__(self, names: Mapping[ast.AST, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        self.generic_visit(node)
        name = self._names.get(node)
        if name is None:
            return node
        if isinstance(node, ast.expr):
            return ast.copy_location(_build_call(name, node), node)
        call = ast.copy_location(ast.Expr(_build_call(name)), node)
        if not isinstance(node, _BLOCKS):
            return [call, node]
        node.body.insert(0, call)
        return node


def _build_call(name: str, *value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_COUNTER_NAME, ast.Load()), [ast.Constant(name), *value], [])


def _iterate_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iterate_codes(constant)
