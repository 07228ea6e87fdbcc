"""Mutation tester: deletes one statement or exception handler at a time, and lists deletions that no test detects.

    python -m tools.mutation_tester spark_kafka_sink/exactly_once/late_attempts.py
    python -m tools.mutation_tester MODULE --tests tests/exactly_once -k "not explorer"
    python -m tools.mutation_tester --target sending               all modules of a target in TARGETS

A mutant is a module without one of its statements or exception handlers. A mutant that passes all tests survives:
either a test is missing, or the statement has no effect. The program prints one line for each surviving mutant, except
those that tools/accepted_survivors.py lists with a reason. It also prints listed mutants that a test now detects. With
`--show-killed`, it prints each detected mutant and the first test that failed on it, too. Unknown arguments are passed
to pytest. The exit status is 1 if tests fail on the unchanged modules, if a test detects a listed mutant, or if tests
detect less than MIN_KILLED_SHARE of a target's mutants.

The parent process collects the tests and never runs them. A first child runs all tests on the unchanged modules, and
records the duration of each test and the lines of the modules that it executes. Then one child for each mutant replaces
the code of the function that contains the statement, and runs those tests of the module's target that execute the
statement, until one fails. It begins with tests that have failed on other mutants of the same function, and otherwise
runs fast tests first.
`--max-seconds` limits the total duration of a mutant's tests, as measured on the unchanged modules. No file changes, so
programs that a test starts run the unchanged modules. Docstrings, imports, definitions, assertions, and statements that
never have an effect are not deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, FunctionType
from typing import IO, Any

import pytest

from tools.accepted_survivors import ACCEPTED_SURVIVORS
from tools.mutants import CodeLocation, Statement, code_location, compile_mutant, find_loaded_functions, find_statements
from tools.mutation_report import MutationReport

ROOT = Path(__file__).resolve().parent.parent
_EXACTLY_ONCE_TESTS = (
    "tests/exactly_once",
    "tests/cli/test_transactions.py",
    "tests/spark/scenarios/test_granted_timeouts.py",
    "tests/spark/scenarios/test_fenced_tasks.py",
    "tests/spark/test_exactly_once_writers.py",
    "tests/spark/test_exactly_once_replays.py",
    "tests/spark/test_exactly_once_starts.py",
    "tests/spark/options/test_delivery.py",
)
_TRANSACTIONAL_PRODUCER_TESTS = (
    "tests/producer/test_batches_in_doubt_at_abort.py",
    "tests/producer/test_commits_in_doubt.py",
    "tests/producer/test_transaction_waits.py",
    *(
        f"tests/producer/test_transactional_{suffix}.py"
        for suffix in ("close", "failures", "faults", "handover", "old_brokers", "producer")
    ),
)
_TRANSACTION_TESTS = (
    "tests/producer/transactions",
    *_TRANSACTIONAL_PRODUCER_TESTS,
    "tests/producer/sending",
    "tests/producer/scenarios",
    *_EXACTLY_ONCE_TESTS,
)
_SENDING_TESTS = (
    "tests/producer/sending",
    "tests/producer/scenarios",
    "tests/producer/transactions",
    *(
        f"tests/producer/test_{suffix}.py"
        for suffix in ("futures_of_calls", "producer", "results", "topic_waits", "windows")
    ),
    *_TRANSACTIONAL_PRODUCER_TESTS,
)
TARGETS = {
    "exactly-once": (("spark_kafka_sink/exactly_once", "spark_kafka_sink/spark/exactly_once.py"), _EXACTLY_ONCE_TESTS),
    "transactions": (("spark_kafka_sink/producer/transactions",), _TRANSACTION_TESTS),
    "sending": (("spark_kafka_sink/producer/sending",), _SENDING_TESTS),
    "requests": (("spark_kafka_sink/requests",), ("tests/requests", *_TRANSACTION_TESTS)),
}
"""Packages and modules in which an untested statement could lose or duplicate rows, and the paths of their tests."""
MIN_KILLED_SHARE = 0.97
_MIN_CPU_SECONDS, _MIN_SECONDS, _SLOWDOWN_FACTOR = 3.0, 60.0, 10.0
"""Time limits of a test on a mutant: a minimum, plus the duration of the test on the unchanged module times a factor.

A test that exceeds a limit waits for the effect of the deleted statement or loops forever. Its mutant counts as killed.
"""
_TIMED_OUT_TEST = "a test that exceeded its time limit"


@dataclass(frozen=True)
class Target:
    """Modules to mutate, and the paths of the tests that must kill their mutants."""

    modules: Sequence[Path]
    tests: Sequence[str]
    """Paths of files and folders, relative to ROOT."""


@dataclass
class BaselineRun:
    """The run of a test on the unchanged modules."""

    seconds: float = 0.0
    executed_lines: set[tuple[str, int]] = field(default_factory=set)
    """File and number of each line of the mutated modules that the test executes."""


class MutationPlugin:
    """A pytest plugin that replaces the test loop: it runs the collected tests on each mutant of the modules."""

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        lines: Collection[int] = (),
        show_killed: bool = False,
        processes: int = 1,
        max_seconds: float = float("inf"),
        accepted_survivors: Mapping[str, str] = ACCEPTED_SURVIVORS,
    ) -> None:
        """Read the modules of the targets. Nothing is run until pytest calls the plugin.

        `lines`: first lines of the statements to delete; if it is empty, all statements are deleted, one per mutant.
        """
        self._lines = lines
        self._targets = targets
        self._test_paths = {
            module: [ROOT / path for path in target.tests] for target in targets for module in target.modules
        }
        self._sources = {module: module.read_text() for module in self._test_paths}
        self._filenames = {str(module) for module in self._test_paths}
        self._processes = processes
        self._max_seconds = max_seconds
        self._baseline_runs: list[BaselineRun] = []
        self._failure_text = ""
        self._functions: dict[CodeLocation, list[FunctionType]] = {}
        self.report = MutationReport(accepted_survivors, show_killed=show_killed)
        self._killing_tests: dict[tuple[Path, str], set[str]] = {}
        """Ids of the tests that have killed mutants of each function."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests on all mutants and print the report. pytest calls this hook instead of its own loop."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        baseline = _start_child(lambda: (self._run_baseline(session), list(sys.modules), self._failure_text))
        self._baseline_runs, imported_modules, failure_text = _read_result(baseline)
        if len(self._baseline_runs) < len(session.items):
            failed_test = session.items[len(self._baseline_runs)].nodeid
            pytest.exit(f"fails on the unchanged modules: {failed_test}\n{failure_text}", 1)
        baseline_seconds = sum(run.seconds for run in self._baseline_runs)
        print(f"{len(session.items)} tests passed on the unchanged modules in {baseline_seconds:.0f} s", flush=True)
        # Import the modules here. Otherwise, every child would import the modules that its tests import.
        for name in imported_modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._functions = find_loaded_functions()
        gc.freeze()
        children: dict[int, tuple[Child, Path, Statement]] = {}
        for module, source in self._sources.items():
            # Inner statements first, because a test that needs one of them usually needs the statement around it, too.
            for statement in sorted(find_statements(source), key=lambda found: (found.last_line, -found.indent)):
                if not self._lines or statement.first_line in self._lines:
                    if len(children) == self._processes:
                        self._wait_for_any(children)
                    child = self._start_mutant(session, module, statement)
                    children[child.pid] = child, module, statement
        while children:
            self._wait_for_any(children)
        self.report.print_summary()
        return True

    def has_passed(self) -> bool:
        """Return whether tests kill enough mutants of each target, and no mutant that is listed as a survivor."""
        shares = [self.report.killed_share(map(_module_name, target.modules)) for target in self._targets]
        return min(shares) >= MIN_KILLED_SHARE and not self.report.find_killed_accepted_survivors()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failure_text = report.longreprtext

    def _run_baseline(self, session: pytest.Session) -> list[BaselineRun]:
        """Run the tests on the unchanged modules. Return the runs before the first failure."""
        runs: list[BaselineRun] = []
        for item in session.items:
            run, started = BaselineRun(), time.perf_counter()
            trace = self._build_tracer(run.executed_lines)
            threading.settrace(trace)
            sys.settrace(trace)
            passed = _run_test(session, item)
            threading.settrace(None)
            sys.settrace(None)
            if not passed:
                return runs
            run.seconds = time.perf_counter() - started
            runs.append(run)
        return runs

    def _build_tracer(self, executed_lines: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
        """Return a trace function that adds each executed line of the modules to `executed_lines`."""

        def trace_line(frame: FrameType, event: str, value: Any) -> Any:
            executed_lines.add((frame.f_code.co_filename, frame.f_lineno))
            return trace_line

        return lambda frame, event, value: trace_line if frame.f_code.co_filename in self._filenames else None

    def _select_tests(
        self, session: pytest.Session, module: Path, statement: Statement
    ) -> list[tuple[pytest.Item, BaselineRun]]:
        """Return the module's tests that execute the statement, in the order in which to run them.

        The sum of their durations is at most `max_seconds`, unless there is only one.
        """
        lines = {(str(module), number) for number in range(statement.first_line, statement.last_line + 1)}
        killing_tests = self._killing_tests.get((module, statement.function_name), ())
        pairs = zip(session.items, self._baseline_runs, strict=True)
        tests = sorted(
            (
                pair
                for pair in pairs
                if pair[1].executed_lines & lines
                and any(pair[0].path.is_relative_to(path) for path in self._test_paths[module])
            ),
            key=lambda pair: (pair[0].nodeid not in killing_tests, pair[1].seconds),
        )
        end_times = itertools.accumulate(run.seconds for _, run in tests)
        # At least the first test runs, even if it takes longer than the limit.
        return [
            test
            for index, (test, end_time) in enumerate(zip(tests, end_times, strict=True))
            if index == 0 or end_time <= self._max_seconds
        ]

    def _start_mutant(self, session: pytest.Session, module: Path, statement: Statement) -> Child:
        """Start a child that runs the tests without the statement.

        The child's result is the id of the first test that fails, or "" if all tests pass.
        """
        tests = self._select_tests(session, module, statement)
        code = compile_mutant(module, self._sources[module], statement)
        functions = self._functions.get(code_location(code), [])  # none if no test imports the module

        def run_tests() -> str:
            for function in functions:
                function.__code__ = code
            return next((item.nodeid for item, run in tests if not _run_test(session, item, run.seconds)), "")

        return _start_child(run_tests)

    def _wait_for_any(self, children: dict[int, tuple[Child, Path, Statement]]) -> None:
        """Wait until one of the children has ended, remove it and report its mutant."""
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        child, module, statement = children.pop(ended.si_pid)
        failed_test = _read_result(child)
        if failed_test:
            self._killing_tests.setdefault((module, statement.function_name), set()).add(failed_test)
        self.report.add(_module_name(module), statement, _TIMED_OUT_TEST if failed_test is None else failed_test)


def _run_test(session: pytest.Session, item: pytest.Item, baseline_seconds: float | None = None) -> bool:
    """Run a test, and return whether it passed.

    `baseline_seconds`: the test's duration on the unchanged modules. If it is set, a timer kills the process when the
    test takes much longer.
    """
    if baseline_seconds is not None:
        signal.setitimer(signal.ITIMER_PROF, _MIN_CPU_SECONDS + _SLOWDOWN_FACTOR * baseline_seconds)
        signal.setitimer(signal.ITIMER_REAL, _MIN_SECONDS + _SLOWDOWN_FACTOR * baseline_seconds)
    failed_before = session.testsfailed
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed == failed_before


@dataclass(frozen=True)
class Child:
    """A child process, and the file into which it writes its pickled result."""

    pid: int
    result_file: IO[bytes]


def _start_child(function: Callable[[], Any]) -> Child:
    """Start a child process that calls `function`."""
    result_file = tempfile.TemporaryFile()  # noqa: SIM115 - _read_result closes it
    pid = os.fork()
    if not pid:
        try:
            os.setpgid(0, 0)
            null_device = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null_device, descriptor)
            pickle.dump(function(), result_file)
            result_file.flush()
        finally:
            os._exit(0)
    return Child(pid, result_file)


def _read_result(child: Child) -> Any:
    """Wait for a child and return the result of its function, or None if the child ended without one."""
    os.waitpid(child.pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # processes that the child's tests have started and not stopped
    with child.result_file as result_file:
        result_file.seek(0)
        pickled = result_file.read()
    return pickle.loads(pickled) if pickled else None


def _module_name(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def resolve_target(name: str) -> Target:
    """Return a target of TARGETS, with the modules of its packages."""
    paths, tests = TARGETS[name]
    modules = [module for path in paths for module in (sorted((ROOT / path).glob("*.py")) or [ROOT / path])]
    return Target(modules, tests)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", type=Path)
    parser.add_argument("--tests", nargs="+", help="paths of the tests; default: the tests of the modules' target")
    parser.add_argument(
        "--lines", nargs="+", type=int, default=[], help="first lines of the statements to delete; default: all"
    )
    parser.add_argument("--target", choices=TARGETS, help="mutate all modules of this target")
    parser.add_argument("--processes", type=int, default=1, help="number of mutants that are tested concurrently")
    parser.add_argument("--max-seconds", type=float, default=float("inf"), help="limit for the tests of a mutant")
    parser.add_argument("--show-killed", action="store_true", help="also print the mutants that a test detects")
    options, pytest_arguments = parser.parse_known_args()
    requested_modules = [module.resolve() for module in options.modules]
    if options.target:
        requested_modules += resolve_target(options.target).modules
    targets = [resolve_target(name) for name in TARGETS]
    other_modules = set(requested_modules).difference(*(target.modules for target in targets))
    if other_modules and not options.tests:
        parser.error(f"--tests is required: {min(other_modules)} belongs to no target")
    targets = [
        replace(target, modules=modules)
        for target in [*targets, Target(sorted(other_modules), ())]
        if (modules := [module for module in target.modules if module in requested_modules])
    ]
    if options.tests:
        targets = [replace(target, tests=options.tests) for target in targets]
    if not targets:
        parser.error("a module or --target is required")
    plugin = MutationPlugin(
        targets,
        lines=options.lines,
        show_killed=options.show_killed,
        processes=options.processes,
        max_seconds=options.max_seconds,
    )
    tests = dict.fromkeys(path for target in targets for path in target.tests)
    command = ["-q", "-p", "no:cacheprovider", "--capture=sys", *pytest_arguments, *tests]
    status = pytest.main(command, plugins=[plugin])
    return int(status != pytest.ExitCode.OK or not plugin.has_passed())


if __name__ == "__main__":
    sys.exit(main())
