"""docs/architecture.md names files and folders that exist. Who has clocks and sockets: test_doors.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from spark_kafka_sink.producer.batching import batch
from spark_kafka_sink.producer.sending import partition_states

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


def moves_on_the_page(states: Iterable[Enum]) -> dict[str, set[str]]:
    """The last column of the page's table of these states."""
    cells = {row.split("|")[1].strip(" `"): row.split("|")[-2] for row in PAGE.splitlines() if row.startswith("| `")}
    return {state.name: set(re.findall(r"[A-Z_]+", cells[state.name])) for state in states}


def test_the_tables_of_states_are_those_of_the_code() -> None:
    of_batches = {state.name: {other.name for other in others} for state, others in batch.MOVES.items()}
    assert moves_on_the_page(batch.MOVES) == of_batches
    rows = re.findall(r"^    ([A-Z_]+) +.*  ([A-Z_, ]+|-)$", batch.__doc__ or "", re.MULTILINE)
    assert {state: set(re.findall(r"[A-Z_]+", others)) for state, others in rows} == of_batches
    of_partitions = {phase.name: {other.name for other in others} for phase, others in partition_states.MOVES.items()}
    assert moves_on_the_page(partition_states.MOVES) == of_partitions
    listed = re.findall(r"^    ([A-Z_]+) {2,}\S", partition_states.__doc__ or "", re.MULTILINE)
    assert listed == list(of_partitions)
