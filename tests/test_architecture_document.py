"""docs/architecture.md names files and folders that exist. Who has clocks and sockets: test_doors.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType

from spark_kafka_sink.client import connection_states
from spark_kafka_sink.producer.batching import batch
from spark_kafka_sink.producer.sending import partition_states
from spark_kafka_sink.producer.transactions import states

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


def moves_of_docstring(module: ModuleType) -> dict[str, set[str]]:
    rows = re.findall(
        r"^    ([A-Z_]+) +.*  ([A-Z][A-Z_, ]+(?:or without connection)?|-)$", module.__doc__ or "", re.MULTILINE
    )
    gone = {"DISCONNECTED", "AUTHENTICATION_FAILED"}
    return {
        state: set(re.findall(r"[A-Z_]+", others)) | (gone if others.endswith("without connection") else set())
        for state, others in rows
    }


def test_the_tables_of_docstrings_are_those_of_the_code() -> None:
    for module in (states, connection_states):
        moves: Mapping[Enum, Iterable[Enum]] = module.MOVES
        in_code = {state.name: {other.name for other in others} for state, others in moves.items()}
        assert moves_of_docstring(module) == in_code


CACHES = {"protocol/message.py", "protocol/struct_codec.py"}
"""What these keep are codecs, which are made from declarations that never change."""


def memories(path: Path) -> list[str]:
    """Names at the top of a module that its functions change: collections in lower case, a pool, what is `global`."""
    found = []
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = ast.unparse(target)
            is_collection = isinstance(node.value, ast.Dict | ast.List | ast.Set) or ast.unparse(node.value) == "set()"
            is_pool = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("Pool")
            if (is_collection and not name.isupper() and not name.startswith("__")) or is_pool:
                found.append(name)
    found += [name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    return found


def test_the_page_lists_what_a_process_remembers() -> None:
    section = PAGE.split("## What a process remembers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_/]+\.py)` ([^|]+) \|", section, re.MULTILINE)
    listed = {path: set(re.findall(r"`(\w+)`", names)) for path, names in rows}
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name: set(memories(path)) for name, path in files.items() if name not in CACHES}
    assert {name: each for name, each in found.items() if each} == listed


def test_the_names_in_the_drawing_of_a_rows_journey_are_modules() -> None:
    drawing = PAGE.split("## One row's journey\n\n```text\n")[1].split("```")[0]
    modules = {path.stem for path in PACKAGE.rglob("*.py")}
    stations = set(re.findall(r"\b([a-z]+(?:_[a-z]+)+)\b", drawing)) - {"send_columns"}
    stations |= {"accumulator", "staging", "grouping", "cutting", "encoder", "batch", "sender", "idempotence"}
    stations |= {"deliveries", "outcome", "futures", "report"}
    assert all(station in drawing for station in stations)
    assert sorted(stations - modules) == []


def listed_in(folder: Path) -> set[str]:
    """The files and folders that the docstring of a folder names, if it has a list of them."""
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    is_list = re.search(r"^[a-z_0-9]+\.py +\S", docstring, re.MULTILINE)
    folders = set(re.findall(r"^[a-z_]+/(?= )", docstring, re.MULTILINE))
    return set(re.findall(r"(?<![\w/])[a-z_0-9]+\.py\b", docstring)) | folders if is_list else set()


def test_a_folder_that_lists_its_files_lists_all_of_them() -> None:
    listing = [path.parent for path in PACKAGE.rglob("__init__.py") if listed_in(path.parent)]
    assert len(listing) > 5
    for folder in listing:
        files = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
        rooms = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
        assert listed_in(folder) == files | rooms, folder.name
