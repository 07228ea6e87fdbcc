"""A sample of the pinned interleavings; SOAK=1 (`make soak`) runs all of them."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

MAX_CASES = 12
"""How many positions of one test run. The explorer plays most of these schedules, too."""
EXPLORER = "test_explorer.py"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SOAK"):
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "tests/exactly_once/scenarios/" in item.nodeid and item.path.name != EXPLORER:
            cases[item.nodeid.split("[")[0]].append(item)
    skipped: set[pytest.Item] = set()
    for test, all_cases in cases.items():
        if len(all_cases) > MAX_CASES:
            skipped |= {*all_cases} - {*random.Random(test).sample(all_cases, MAX_CASES)}
    if skipped:
        config.hook.pytest_deselected(items=list(skipped))
        items[:] = [item for item in items if item not in skipped]
