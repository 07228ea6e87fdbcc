"""Takes each statement of modules out of the code once, and runs their tests: what survives has no test, or no use.

    python -m tools.take_out spark_kafka_sink/exactly_once/late_attempts.py
    python -m tools.take_out MODULE --tests tests/exactly_once -k "not explorer"
    python -m tools.take_out --rooms                               all of ROOMS (hours)

Prints a line for each statement that no test misses, and with `--all` the first test that misses each other one. What
it does not know itself goes to pytest.

The tests are collected once, in this process, which runs none of them. One child runs all of them as they are, and
notes how long each takes and which lines of the modules it comes to. Then a child for each statement runs the tests
that come to it, the quickest first, with the statement taken out of the one function that has it; the first test
that fails ends it. So no file changes, and what a test starts as another program has nothing taken out. Left alone are
docstrings, imports, definitions and assertions.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import importlib
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
_LEFT_ALONE = (
    *(ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal),
    ast.Assert,  # says what is so in any case
)
_EXACTLY_ONCE = (
    "tests/exactly_once",
    "tests/cli/test_transactions.py",
    "tests/spark/scenarios/test_granted_timeouts.py",
    "tests/spark/scenarios/test_fenced_tasks.py",
    "tests/spark/test_exactly_once_writers.py",
    "tests/spark/test_exactly_once_replays.py",
    "tests/spark/test_exactly_once_starts.py",
    "tests/spark/options/test_delivery.py",
)
_TRANSACTIONS = (
    "tests/producer/transactions",
    *(
        f"tests/producer/test_transactional_{kind}.py"
        for kind in ("producer", "calls", "failures", "faults", "handover")
    ),
    "tests/producer/sending",
    "tests/producer/scenarios",
    *_EXACTLY_ONCE,
)
ROOMS = {
    "spark_kafka_sink/exactly_once": _EXACTLY_ONCE,
    "spark_kafka_sink/spark/exactly_once.py": _EXACTLY_ONCE,
    "spark_kafka_sink/producer/transactions": _TRANSACTIONS,
    "spark_kafka_sink/producer/sending/cluster_requests.py": _TRANSACTIONS,
    "spark_kafka_sink/requests": ("tests/requests", *_TRANSACTIONS),
}
"""Where a statement that no test misses may lose or double rows; with the places of their tests."""
_CPU_SECONDS, _SECONDS, _TIMES = 3.0, 60.0, 10.0
"""A test that takes so much longer waits for what was taken out, or goes round without end: it is noticed."""
_ENDLESS = "a test that does not end"

Place = tuple[str, str, int]
"""File, name and line of a function."""


@dataclass(frozen=True)
class Statement:
    first: int
    last: int
    indent: int
    text: str
    function: int
    """The line of the function of the module, or of a class, that has it."""


def statements(source: str) -> list[Statement]:
    """Of all functions, compound ones as a whole and each of their parts by itself."""
    lines = source.splitlines()
    found = []
    for function in _functions(ast.parse(source)):
        for node in _parts(function):
            if not isinstance(node, _LEFT_ALONE) and not _is_text(node):
                assert node.end_lineno is not None
                text = lines[node.lineno - 1].strip()
                found.append(Statement(node.lineno, node.end_lineno, node.col_offset, text, function.lineno))
    return sorted(found, key=lambda each: (each.first, -each.last))


def without(source: str, statement: Statement) -> ast.Module:
    """Return the module with the statement moved to where it is never executed, so that names keep their scope."""
    tree = ast.parse(source)
    _TakeOut(statement).visit(tree)
    return ast.fix_missing_locations(tree)


class _TakeOut(ast.NodeTransformer):
    def __init__(self, statement: Statement) -> None:
        self._place = (statement.first, statement.last, statement.indent)

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and (node.lineno, node.end_lineno, node.col_offset) == self._place:
            return ast.copy_location(ast.If(ast.Constant(False), [copy.copy(node)], []), node)
        return self.generic_visit(node)


def _functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for each in tree.body:
        if isinstance(each, ast.FunctionDef):
            yield each
        elif isinstance(each, ast.ClassDef):
            yield from _functions(each)


def _parts(node: ast.AST) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        for each in getattr(node, name, ()):
            yield each
            if not isinstance(each, ast.ClassDef):
                yield from _parts(each)
    for handler in getattr(node, "handlers", ()):
        yield from _parts(handler)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def code_without(module: Path, source: str, statement: Statement) -> CodeType:
    """Return the code of the function that contains the statement, without the statement."""
    tree = without(source, statement)
    function = next(each for each in _functions(tree) if each.lineno == statement.function)
    place = (str(module), function.name, min([function.lineno, *(each.lineno for each in function.decorator_list)]))
    return next(each for each in _codes(compile(tree, str(module), "exec")) if place_of(each) == place)


def functions_by_place() -> dict[Place, list[FunctionType]]:
    """All functions of this process, wherever they were imported."""
    found: dict[Place, list[FunctionType]] = {}
    gc.unfreeze()  # what was collected is frozen (conftest.py), and would not be among them
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found.setdefault(place_of(each.__code__), []).append(each)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def place_of(code: CodeType) -> Place:
    return code.co_filename, code.co_name, code.co_firstlineno


@dataclass
class Run:
    """A test as it was with nothing taken out."""

    seconds: float = 0.0
    lines: set[tuple[str, int]] = field(default_factory=set)


class Trial:
    """A plugin of pytest that runs the tests again and again, each time without one statement."""

    def __init__(self, modules: Sequence[Path], *, lines: Collection[int] = (), shows_all: bool = False) -> None:
        """`lines`: of the statements that are taken out; all, where there are none."""
        self._lines = lines
        self._sources = {module: module.read_text() for module in modules}
        self._files = {str(module) for module in modules}
        self._shows_all = shows_all
        self._runs: list[Run] = []
        self._failure = ""
        self._functions: dict[Place, list[FunctionType]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._runs, imported, failure = _in_child(lambda: (self._run_all(session), list(sys.modules), self._failure))
        if len(self._runs) < len(session.items):
            failing = session.items[len(self._runs)].nodeid
            pytest.exit(f"fails with nothing taken out: {failing}\n{failure}", 1)
        for name in imported:  # else each child imports for itself what tests import at last
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._functions = functions_by_place()
        gc.freeze()
        for module, source in self._sources.items():
            total = [each for each in statements(source) if not self._lines or each.first in self._lines]
            left = 0
            for statement in total:
                noticed = self._noticed(session, module, statement)
                left += not noticed
                if not noticed or self._shows_all:
                    place = f"{module.relative_to(ROOT)}:{statement.first}"
                    print(f"{place}: {statement.text}{noticed and f'  # {noticed}'}", flush=True)
            print(f"{module.relative_to(ROOT)}: {len(total)} statements, {left} are missed by no test", flush=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failure = report.longreprtext

    def _run_all(self, session: pytest.Session) -> list[Run]:
        """Up to the first that fails."""
        runs: list[Run] = []
        for item in session.items:
            run, started = Run(), time.perf_counter()
            follow = self._tracer(run.lines)
            threading.settrace(follow)
            sys.settrace(follow)
            passes = _passes(session, item)
            threading.settrace(None)
            sys.settrace(None)
            if not passes:
                return runs
            run.seconds = time.perf_counter() - started
            runs.append(run)
        return runs

    def _tracer(self, lines: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
        def line(frame: FrameType, event: str, value: Any) -> Any:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            return line

        return lambda frame, event, value: line if frame.f_code.co_filename in self._files else None

    def _noticed(self, session: pytest.Session, module: Path, statement: Statement) -> str:
        """By which test; empty if by none."""
        places = {(str(module), number) for number in range(statement.first, statement.last + 1)}
        tests = [pair for pair in zip(session.items, self._runs, strict=True) if pair[1].lines & places]
        tests.sort(key=lambda pair: pair[1].seconds)

        code = code_without(module, self._sources[module], statement)
        functions = self._functions[place_of(code)]

        def first_that_fails() -> str:
            for each in functions:
                each.__code__ = code
            return next((item.nodeid for item, run in tests if not _passes(session, item, run.seconds)), "")

        found = _in_child(first_that_fails)
        return _ENDLESS if found is None else str(found)


def _passes(session: pytest.Session, item: pytest.Item, seconds: float | None = None) -> bool:
    """`seconds`: how long it took before. A test that takes very much longer ends its process."""
    if seconds is not None:
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS + _TIMES * seconds)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS + _TIMES * seconds)
    failed = session.testsfailed
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed == failed


def _in_child(work: Callable[[], Any]) -> Any:
    """Call `work` in a child process and return its result, or None if the child ended without one."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if not child:
            try:
                os.setpgid(0, 0)
                silence = os.open(os.devnull, os.O_RDWR)
                for each in (0, 1, 2):
                    os.dup2(silence, each)
                pickle.dump(work(), answer)
                answer.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have started, and left
        answer.seek(0)
        pickled = answer.read()
    return pickle.loads(pickled) if pickled else None


def in_rooms() -> Iterator[tuple[list[Path], Sequence[str]]]:
    """Yield the modules of each room with its tests. A room is a folder or a module."""
    for room, tests in ROOMS.items():
        place = ROOT / room
        yield sorted(place.glob("*.py")) if place.is_dir() else [place], tests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", type=Path)
    parser.add_argument("--tests", nargs="+", help="without them: those of the modules' room, if they are in one")
    parser.add_argument("--lines", nargs="+", type=int, default=[], help="of the statements; without them: all")
    parser.add_argument("--rooms", action="store_true", help="all modules of ROOMS")
    parser.add_argument("--all", action="store_true", help="print the statements that a test misses too")
    options, for_pytest = parser.parse_known_args()
    given = [module.resolve() for module in options.modules]
    rooms = list(in_rooms())
    homeless = [module for module in given if not any(module in room for room, _ in rooms)]
    if homeless and not options.tests:
        parser.error(f"--tests is missing: {homeless[0]} is in no room")
    for room, tests in [*rooms, (homeless, ())]:
        modules = room if options.rooms else [module for module in given if module in room]
        if modules:
            command = ["-q", "-p", "no:cacheprovider", "--capture=sys", *for_pytest, *(options.tests or tests)]
            pytest.main(command, plugins=[Trial(modules, lines=options.lines, shows_all=options.all)])


if __name__ == "__main__":
    main()
