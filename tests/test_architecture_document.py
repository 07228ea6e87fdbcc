"""The maintainers' pages name existing files and classes, and their layers and state tables match the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import pytest

from spark_kafka_sink.client import connection_states
from spark_kafka_sink.producer.batching import batch
from spark_kafka_sink.producer.sending import partition_states
from spark_kafka_sink.producer.transactions import states

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
ARCHITECTURE, INTERNALS, DESIGN = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("architecture", "internals", "exactly-once-design")
)
CODE = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("page", [ARCHITECTURE, INTERNALS, DESIGN], ids=["architecture", "internals", "exactly once"])
def test_classes_named_in_page_exist(page: str) -> None:
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    named = set(re.findall(r"`((?:[A-Z][a-z]+){2,})(?:\.(\w+))?`", prose))
    assert named
    for name, method in named:
        assert re.search(rf"\b{name}\b", CODE), name
        assert not method or f"def {method}(" in CODE, method


@pytest.mark.parametrize("page", [ARCHITECTURE, INTERNALS, DESIGN], ids=["architecture", "internals", "exactly once"])
def test_files_named_in_page_exist(page: str) -> None:
    named = set(re.findall(r"`((?:tests/)?[a-z_]+(?:/[a-z_0-9]+)+\.py)`", page))
    assert len(named) > 5
    assert sorted(name for name in named if not ((PACKAGE / name).exists() or (ROOT / name).exists())) == []


def floors() -> str:
    """Draw the layers of the import contract, from top to bottom, as in the page."""
    contract = (
        (ROOT / "pyproject.toml")
        .read_text()
        .split("\nexhaustive = true\n")[1]
        .split("\nlayers = [\n")[1]
        .split("\n]")[0]
    )
    rows = [re.findall(r"\w+", line) for line in contract.splitlines()]
    widths = [max(len(name) for name in column if name) for column in zip_longest(*rows, fillvalue="")]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def test_package_diagram_matches_import_contract() -> None:
    drawing = ARCHITECTURE.split("## Packages\n")[1].split("```text\n")[1].split("```")[0]
    assert drawing == floors(), f"write:\n{floors()}"


def moves_on_the_page(states: Iterable[Enum]) -> dict[str, set[str]]:
    """Return the last column of the page's table of these states."""
    cells = {
        row.split("|")[1].strip(" `"): row.split("|")[-2] for row in INTERNALS.splitlines() if row.startswith("| `")
    }
    return {state.name: set(re.findall(r"[A-Z_]+", cells[state.name])) for state in states}


def test_state_tables_match_code() -> None:
    of_batches = {state.name: {other.name for other in others} for state, others in batch.TRANSITIONS.items()}
    assert moves_on_the_page(batch.TRANSITIONS) == of_batches
    rows = re.findall(r"^    ([A-Z_]+) +.*  ([A-Z_, ]+|-)$", batch.__doc__ or "", re.MULTILINE)
    assert {state: set(re.findall(r"[A-Z_]+", others)) for state, others in rows} == of_batches
    of_partitions = {
        phase.name: {other.name for other in others} for phase, others in partition_states.TRANSITIONS.items()
    }
    assert moves_on_the_page(partition_states.TRANSITIONS) == of_partitions
    phases = re.findall(r"^    ([A-Z_]+) {2,}\S", partition_states.__doc__ or "", re.MULTILINE)
    assert phases == list(of_partitions)


def parse_docstring_transitions(module: ModuleType) -> dict[str, set[str]]:
    rows = re.findall(r"^    ([A-Z_]+) +.*  ([A-Z][A-Z_, ]+(?:or unconnected)?|-)$", module.__doc__ or "", re.MULTILINE)
    gone = {"DISCONNECTED", "AUTHENTICATION_FAILED"}
    return {
        state: set(re.findall(r"[A-Z_]+", others)) | (gone if others.endswith("unconnected") else set())
        for state, others in rows
    }


def test_docstring_tables_match_code() -> None:
    for module in (states, connection_states):
        moves: Mapping[Enum, Iterable[Enum]] = module.TRANSITIONS
        in_code = {state.name: {other.name for other in others} for state, others in moves.items()}
        assert parse_docstring_transitions(module) == in_code
