"""docs/architecture.md names files and folders that exist. Who has clocks and sockets: test_doors.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`((?:tests/)?[a-z_]+(?:/[a-z_0-9]+)+\.py)`", PAGE))
    assert len(named) > 30
    assert sorted(name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists())) == []


def test_the_folders_of_the_table_are_those_of_the_package_and_begin_with_files_that_exist() -> None:
    rows = re.findall(r"^\| `([a-z_/]+)/` \|.*\| `([a-z_]+\.py)` \|$", PAGE, re.MULTILINE)
    assert [row for row in rows if not (PACKAGE / row[0] / row[1]).exists()] == []
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/__init__.py")}
    assert {folder.split("/")[0] for folder, _ in rows} == folders
