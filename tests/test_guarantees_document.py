"""Every numbered fault and every rule on the pages about guarantees has tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PRODUCER_PAGE = (ROOT / "docs" / "producer-guarantees.md").read_text()
EXACTLY_ONCE_PAGE = (ROOT / "docs" / "exactly-once-tests.md").read_text()
EVENTS_PAGE = (ROOT / "docs" / "exactly-once-events.md").read_text()
LIMITS_PAGE = (ROOT / "docs" / "exactly-once-limits.md").read_text()
SCRIPTED = "\n".join(path.read_text() for path in (ROOT / "tests" / "producer").rglob("test_*.py"))
ALL = "\n".join(path.read_text() for folder in ("tests", "integration") for path in (ROOT / folder).rglob("test_*.py"))
REAL = "\n".join(path.read_text() for path in (ROOT / "integration").glob("test_faults_*.py"))
ROWS = {int(number): kind for number, kind in re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", PRODUCER_PAGE, re.MULTILINE)}


def numbers(tests: str) -> set[int]:
    """Return the numbers in a test name: test_3_and_4_... has two."""
    names = re.findall(r"^def test_(\d+)(?:_and_(\d+))?_", tests, re.MULTILINE)
    return {int(number) for name in names for number in name if number}


@pytest.mark.parametrize(("kind", "tests"), [("scripted", SCRIPTED), ("real", REAL)])
def test_every_fault_has_tests_and_every_numbered_test_has_a_fault(kind: str, tests: str) -> None:
    assert {number for number, kinds in ROWS.items() if kind in kinds} == numbers(tests)


def test_every_fault_is_demonstrated() -> None:
    assert sorted(ROWS) == [*range(1, 28)]
    assert all(ROWS.values())


def test_page_contains_six_rules() -> None:
    rules = re.findall(r"^(\d)\. \*\*.*?(?=^\d\. \*\*|^$)", PRODUCER_PAGE, re.MULTILINE | re.DOTALL)
    assert rules == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    "page",
    [PAGE, PRODUCER_PAGE, f"{EXACTLY_ONCE_PAGE}{EVENTS_PAGE}{LIMITS_PAGE}"],
    ids=["Spark", "producer", "exactly once"],
)
def test_tests_named_in_pages_exist(page: str) -> None:
    for name in re.findall(r"`(test_\w+[a-z])`", page):
        assert f"def {name}(" in ALL, name
    for path in re.findall(r"`((?:tests|integration)/[\w/]+\.py)`", page):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    "heading",
    ["Promises", "Options and permissions", "How batches are compared", "What is not promised", "Operations"],
)
def test_every_exactly_once_line_names_its_tests(heading: str) -> None:
    """Checks every table row, list item, and paragraph that begins with an event."""
    section = f"{EXACTLY_ONCE_PAGE}\n{LIMITS_PAGE}".split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(
        r"^(?:\| (?!---|Option or permission \||Event \||Step \|).*$|(?:- )?\*\*.*(?:\n(?!- \*\*|\n).*)*)",
        section,
        re.M,
    )
    assert lines
    assert [line[:60] for line in lines if not re.search(r"`(test_\w+|(?:tests|integration)/[\w/]+\.py)`", line)] == []


def test_every_spark_exactly_once_row_names_its_tests() -> None:
    table = EVENTS_PAGE.split("| Event | Rows that `read_committed` readers see | Test |\n")[1].split("\n\n")[0]
    rows = table.splitlines()[1:]
    assert rows
    assert [row for row in rows if not re.search(r"`[\w/.]*test_\w+(\.py)?` \|$", row)] == []


@pytest.mark.parametrize("rule", range(1, 7))
def test_every_rule_has_a_test_and_a_counterpart_without_the_rule(rule: int) -> None:
    assert re.search(rf"^def test_(\d+_)?rule_{rule}_", SCRIPTED, re.MULTILINE)
    assert re.search(rf"^def test_without_rule_{rule}_", SCRIPTED, re.MULTILINE)
    line = re.search(rf"^{rule}\. \*\*.*?(?=^\d\. \*\*|^$)", PRODUCER_PAGE, re.MULTILINE | re.DOTALL)
    assert line is not None
    assert re.search(rf"`test_(\d+_)?rule_{rule}_", line[0])
