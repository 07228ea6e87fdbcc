"""Selects the interleavings that `make test` runs: the pinned ones (sampling.py), and one other of each test.

A pinned interleaving is one in which the test fails when a rule of rules.py is removed. The explorer plays most of the
others, too. SOAK=1 (`make soak`) runs all of them.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from tests.exactly_once.sampling import ALWAYS_RUN

MAX_CASES = 6
"""A test with pinned cases, or with more cases than this, runs its pinned cases and one other in each version."""
UNSAMPLED_FILE = "test_explorer.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SOAK"):
        return
    cases: dict[tuple[str, object], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "tests/exactly_once/scenarios/" in item.nodeid and item.path.name != UNSAMPLED_FILE:
            cases[item.nodeid.split("[")[0], find_transaction_version(item)].append(item)
    deselected: set[pytest.Item] = set()
    for (test, version), version_cases in cases.items():
        pinned = select_pinned_cases(version_cases)
        if pinned or len(version_cases) > MAX_CASES:
            others = [case for case in version_cases if case not in pinned]
            sampled = random.Random(f"{test} {version}").choice(others)
            deselected |= {*others} - {sampled}
    if deselected:
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = [item for item in items if item not in deselected]


def select_pinned_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of a test in which every parameter that has pinned values has one of them."""
    marks = [sum(1 for _ in case.iter_markers(ALWAYS_RUN)) for case in cases]
    return [case for case, count in zip(cases, marks, strict=True) if count and count == max(marks)]


def find_transaction_version(item: pytest.Item) -> object:
    """Return the parameter that selects the transaction version, or None if the test has only one version."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    return params.get("version", params.get("broker"))
