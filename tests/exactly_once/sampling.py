"""Selects the cases of tests of exactly-once delivery that `make test` runs. SOAK=1 (`make soak`) runs all of them.

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
    others = [case for case in cases if case not in pinned and _has_selected_version(test, case)]
    if others and test.startswith(SCENARIOS) and (pinned or len(others) > MAX_CASES):
        others = [random.Random(test).choice(others)]
    return [*pinned, *others]


def _find_pinned_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of a test in which every parameter that has pinned values has one of them."""
    marks = [sum(1 for _ in case.iter_markers(ALWAYS_RUN)) for case in cases]
    return [case for case, count in zip(cases, marks, strict=True) if count and count == max(marks)]


def _has_selected_version(test: str, case: pytest.Item) -> bool:
    """Return whether a case has the version that is selected for its other parameters, or has no version.

    A version is the parameter of a fixture `broker`, or the parameter `version` of a test in scenarios/.
    """
    callspec: Any = getattr(case, "callspec", None)
    name = next((name for name in ("broker", "version") if callspec is not None and name in callspec.params), None)
    if name is None or callspec.params[name] not in (1, 2) or (name == "version" and not test.startswith(SCENARIOS)):
        return True
    others = sorted((parameter, index) for parameter, index in callspec.indices.items() if parameter != name)
    return bool(callspec.params[name] == 1 + zlib.crc32(f"{test} {others}".encode()) % 2)
