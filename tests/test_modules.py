"""Each module is tested somewhere that can be found: in the file of its name, or where docs/developing.md says."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
_TABLE = (ROOT / "docs" / "developing.md").read_text().split("| modules | tests |\n", 1)[1].split("\n\n", 1)[0]
ROWS = [tuple(re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:3]) for line in _TABLE.splitlines()[1:]]
PATTERNS = [pattern for modules, _ in ROWS for pattern in modules]
MODULES = sorted(
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for path in PACKAGE.rglob("*.py")
    if not path.name.startswith("__")
)


def has_a_file_of_its_own(module: str) -> bool:
    folder, _, name = module.rpartition("/")
    return (ROOT / "tests" / folder / f"test_{name}.py").exists()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_test_file_of_its_name_or_a_line_that_says_where_it_is_tested(module: str) -> None:
    listed = any(fnmatchcase(module, pattern) for pattern in PATTERNS)
    assert has_a_file_of_its_own(module) or listed, "see `Where a module is tested` in docs/developing.md"


def test_the_table_names_modules_and_tests_that_exist() -> None:
    assert [pattern for pattern in PATTERNS if not any(fnmatchcase(name, pattern) for name in MODULES)] == []
    assert [pattern for pattern in PATTERNS if has_a_file_of_its_own(pattern)] == [], "these need no line"
    assert [test for _, tests in ROWS for test in tests if not (ROOT / test).exists()] == []
    assert all(modules and tests for modules, tests in ROWS)
