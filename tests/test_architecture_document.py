"""docs/architecture.md names files and folders that exist. Who has clocks and sockets: test_doors.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import zip_longest
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


def floors() -> str:
    """The drawing of the rooms, highest floor first, by the contract that import-linter checks."""
    contract = (ROOT / "pyproject.toml").read_text().split('type = "layers"\nlayers = [\n')[1].split("\n]")[0]
    rows = [re.findall(r"spark_kafka_sink\.(\w+)", line) for line in contract.splitlines()]
    widths = [max(len(name) for name in column if name) for column in zip_longest(*rows, fillvalue="")]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def test_the_drawing_of_the_rooms_is_that_of_the_contract() -> None:
    drawing = PAGE.split("## Layers\n")[1].split("```text\n")[1].split("```")[0]
    assert drawing == floors(), f"write:\n{floors()}"


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


CACHES = {
    "client/versions.py": {"software_version"},
    "formats/avro.py": {"record_writer"},
    "formats/pieces.py": {"constant"},
    "formats/time_zones.py": {"_changes", "_zone"},
    "protocol/codecs.py": {"_uuid"},
    "protocol/headers.py": {"_end_of_request_header"},
    "protocol/message.py": {"_codecs"},
    "protocol/messages/__init__.py": {"request_type", "response_type"},
    "protocol/struct_codec.py": {"_codecs"},
    "records/checksum.py": {"_table"},
    "records/compression.py": {"_lz4_frame", "_snappy", "_zstd"},
    "records/fields.py": {"constant_fields", "encode_varint"},
    "topic_names.py": {"is_topic_name"},
}
"""What these keep follows from what they are asked with, and never changes: texts, codecs, zones, versions."""


def memories(path: Path) -> list[str]:
    """Names at the top of a module that change while the process lives.

    Collections and instances in lower case, `global` names, counters, functions with a cache, and instances of a class
    of this file that may change.
    """
    tree = ast.parse(path.read_text())
    changing = {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not _is_frozen(node)}
    found = [name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
            if _changes(name, node.value, changing):
                found.append(name)
        if isinstance(node, ast.FunctionDef) and any(_is_cache(each) for each in node.decorator_list):
            found.append(node.name)
    return found


def _changes(name: str, value: ast.expr, changing: set[str]) -> bool:
    made_by = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.Dict | ast.List | ast.Set) or made_by in ("set", "dict", "list", "deque", "defaultdict"):
        return not name.isupper() and not name.startswith("__")
    if name.islower() and made_by.lstrip("_")[:1].isupper():
        return True
    return made_by in {"count", "itertools.count", *changing}


def _is_cache(decorator: ast.expr) -> bool:
    return re.match(r"(functools\.)?(lru_)?cache\b", ast.unparse(decorator)) is not None


def _is_frozen(node: ast.ClassDef) -> bool:
    words = " ".join(ast.unparse(each) for each in (*node.decorator_list, *node.bases))
    return "frozen=True" in words or "NamedTuple" in words or "Enum" in words


def test_each_kind_of_memory_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "class Pool: ...\nclass Row(NamedTuple): ...\n_known = {}\n_kept = Clients()\n"
        "_said: set[str] = set()\nNUMBERS = count(1)\n"
        "POOL = Pool()\nROW = Row()\nTABLE = {}\nX = 1\n@lru_cache(16)\ndef client(): ...\n@cache\ndef codec(): ...\n"
        "def f():\n    global times\n"
    )
    assert sorted(memories(path)) == ["NUMBERS", "POOL", "_kept", "_known", "_said", "client", "codec", "times"]


def test_the_page_lists_what_a_process_remembers() -> None:
    section = PAGE.split("## What a process remembers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_/]+\.py)` ([^|]+) \|", section, re.MULTILINE)
    listed = {path: set(re.findall(r"`(\w+)`", names)) for path, names in rows}
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name: set(memories(path)) for name, path in files.items()}
    assert {name: names - found[name] for name, names in CACHES.items() if names - found[name]} == {}
    found = {name: names - CACHES.get(name, set()) for name, names in found.items()}
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
