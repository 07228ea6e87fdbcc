"""kafka_test_cases.md has a row for each Kafka test, with existing tests or the reason why none applies."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGE = Path(__file__).with_name("kafka_test_cases.md").read_text()
CASES = {"TransactionManagerTest": 140}
"""Number of test cases per class in Kafka 4.3.1."""


def test_table_names_only_existing_tests() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", PAGE))
    written: set[str] = set()
    for folder in ("tests", "integration"):
        for path in (ROOT / folder).rglob("test_*.py"):
            written |= set(re.findall(r"^ *def (test_[a-z0-9_]+)", path.read_text(), re.MULTILINE))
    assert len(named) > 40
    assert sorted(named - written) == []


def test_table_has_one_row_for_each_kafka_test() -> None:
    for section in PAGE.split("\n## ")[1:]:
        name, _, table = section.partition("\n")
        rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", table, re.MULTILINE))
        assert len(re.findall(r"^\| ", table, re.MULTILINE)) == len(rows), f"{name}: a case has two rows"
        del rows["case"]
        for case, here in rows.items():
            assert "`test_" in here or here.startswith("does not apply"), f"{name}: {case}"
        assert len(rows) == CASES.get(name, len(rows)), name
