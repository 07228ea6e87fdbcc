"""Selection of exactly-once test cases for `make test`. SOAK=1 (`make soak`) runs all of them.

Most of these tests have both transaction versions as a parameter. `make test` runs each case in one of the versions. A
hash of the case selects it, so about half of all cases run in each. The explorer plays its schedules in both.

Some tests in scenarios/ play many interleavings. `make test` runs the pinned ones, in both versions, and one other. A
pinned interleaving is one in which the test fails when a rule of rules.py is removed. The explorer plays most of the
others, too.
"""

from __future__ import annotations

import os
import random
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import pytest

ALWAYS_RUN = "always_run"
MAX_CASES = 6
"""A test in scenarios/ with pinned cases, or with more cases than this in a version, runs only one other case."""
SCENARIOS = "tests/exactly_once/scenarios/"
COMPLETE_FILES = (SCENARIOS + "test_explorer.py", "tests/exactly_once/test_transaction_aborts.py")
"""Files whose cases all run, because they are a sample, or because the expected result depends on the version."""
T = TypeVar("T")


def mark_always_run(values: Iterable[T], pinned: Collection[T]) -> list[object]:
    """Mark the pinned values of a parameter: those at which the test fails when a rule of rules.py is removed.

    A tuple is a value of several parameters. Of a test with several such calls, the cases in which all values are
    pinned run in every `make test`.
    """
    mark = getattr(pytest.mark, ALWAYS_RUN)
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark) if value in pinned else value
        for value in values
    ]


def deselect_unsampled_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the cases that `make test` does not run, unless the command line names tests."""
    if os.environ.get("SOAK") or any("::" in argument for argument in config.args):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.nodeid.startswith("tests/") and not item.nodeid.startswith(COMPLETE_FILES):
            cases[item.nodeid.split("[")[0]].append(item)
    selected = {case for test, test_cases in cases.items() for case in _select_cases(test, test_cases)}
    deselected = [case for test_cases in cases.values() for case in test_cases if case not in selected]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        excluded = set(deselected)
        items[:] = [item for item in items if item not in excluded]


def _select_cases(test: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    pinned = _find_pinned_cases(cases)
    others = _select_versions(test, [case for case in cases if case not in pinned])
    if others and test.startswith(SCENARIOS) and (pinned or len(others) > MAX_CASES):
        others = [random.Random(test).choice(others)]
    return [*pinned, *others]


def _find_pinned_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of a test in which every parameter that has pinned values has one of them."""
    marks = [sum(1 for _ in case.iter_markers(ALWAYS_RUN)) for case in cases]
    return [case for case, count in zip(cases, marks, strict=True) if count and count == max(marks)]


def _select_versions(test: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return one of the cases that differ only in the transaction version. Keep a case that exists in one version."""
    cases_by_parameters: dict[str, list[pytest.Item]] = defaultdict(list)
    for case in cases:
        cases_by_parameters[_format_other_parameters(test, case)].append(case)
    return [
        same_cases[zlib.crc32(f"{test} {parameters}".encode()) % len(same_cases)]
        for parameters, same_cases in cases_by_parameters.items()
    ]


def _format_other_parameters(test: str, case: pytest.Item) -> str:
    """Return all of the case's parameters but the version, or the case's name if it has no version.

    A version is the parameter of a fixture `broker`, or the parameter `version` of a test in scenarios/.
    """
    callspec: Any = getattr(case, "callspec", None)
    names = ("broker", "version") if test.startswith(SCENARIOS) else ("broker",)
    for name in names if callspec is not None else ():
        if callspec.params.get(name) in (1, 2):
            return str(sorted((parameter, index) for parameter, index in callspec.indices.items() if parameter != name))
    return case.nodeid
