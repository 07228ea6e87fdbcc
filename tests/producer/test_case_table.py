"""docs/kafka-test-cases.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_test_that_the_table_of_cases_names_exists() -> None:
    page = (ROOT / "docs" / "kafka-test-cases.md").read_text()
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", page))
    written: set[str] = set()
    for folder in ("tests", "integration"):
        for path in (ROOT / folder).rglob("test_*.py"):
            written |= set(re.findall(r"^ *def (test_[a-z0-9_]+)", path.read_text(), re.MULTILINE))
    assert len(named) > 40
    assert sorted(named - written) == []
