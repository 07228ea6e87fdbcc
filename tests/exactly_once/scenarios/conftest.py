"""Run a sample of the pinned interleavings, and those at which a test has noticed a missing rule (sampling.py).

SOAK=1 (`make soak`) runs all of them.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from tests.exactly_once.sampling import IN_EVERY_RUN

MAX_CASES = 6
"""A test with more cases than this in a transaction version runs a sample of them."""
SAMPLED_CASES = 3
"""The size of that sample. The explorer plays most of these schedules, too."""
EXPLORER = "test_explorer.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SOAK"):
        return
    cases: dict[tuple[str, object], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "tests/exactly_once/scenarios/" in item.nodeid and item.path.name != EXPLORER:
            cases[item.nodeid.split("[")[0], transaction_version(item)].append(item)
    skipped: set[pytest.Item] = set()
    for (test, version), version_cases in cases.items():
        if len(version_cases) > MAX_CASES:
            sample = random.Random(f"{test} {version}").sample(version_cases, SAMPLED_CASES)
            skipped |= {*version_cases} - {*sample, *noticing_cases(version_cases)}
    if skipped:
        config.hook.pytest_deselected(items=list(skipped))
        items[:] = [item for item in items if item not in skipped]


def noticing_cases(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of a test whose parameters are all marked, among those parameters that have marks."""
    marks = [sum(1 for _ in case.iter_markers(IN_EVERY_RUN)) for case in cases]
    return [case for case, count in zip(cases, marks, strict=True) if count and count == max(marks)]


def transaction_version(item: pytest.Item) -> object:
    """Return the parameter that chooses the transaction version, or None if the test has only one version."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    return params.get("version", params.get("broker"))
