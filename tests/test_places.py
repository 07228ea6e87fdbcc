"""Where tests live: a file that has a module's name lies where that module lies, all others among the scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = ("runner", "scenarios")
"""Tests of the test runner; tests of what many modules do together."""


def names_of(folder: Path) -> set[str]:
    """What test files of this folder may be named after: its modules, the folders in it, the folder itself."""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")} | {folder.name}


def misplaced(root: Path) -> Iterator[str]:
    """Test files with a module's name, or one that begins with it (test_sender_retries.py), are in their place."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        folder = path.parent.relative_to(root / "tests")
        if not folder.parts or folder.parts[-1] in ELSEWHERE:
            continue
        if not _is_named_after(path.stem.removeprefix("test_"), names_of(root / "spark_kafka_sink" / folder)):
            yield path.relative_to(root).as_posix()


def _is_named_after(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}_") for module in modules)


def test_each_test_file_is_named_after_its_module_or_lies_among_the_scenarios() -> None:
    assert list(misplaced(ROOT)) == []


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("a/test_module.py", False),
        ("a/test_module_that_waits.py", False),
        ("a/test_modules.py", True),
        ("a/test_rooms.py", True),
        ("a/test_room_and_all.py", False),
        ("a/test_a.py", False),
        ("a/room/test_module.py", True),
        ("a/scenarios/test_anything.py", False),
        ("runner/test_anything.py", False),
        ("test_pages.py", False),
    ],
)
def test_a_file_that_is_named_after_no_module_of_its_folder_is_found(tmp_path: Path, place: str, wrong: bool) -> None:
    for path in ("spark_kafka_sink/a/module.py", "spark_kafka_sink/a/room/__init__.py", f"tests/{place}"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert list(misplaced(tmp_path)) == ([f"tests/{place}"] if wrong else [])
