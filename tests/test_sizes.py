"""`tests.sizes` finds files and functions that are too long, and unneeded exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sizes import FOLDERS, MAX_FILE_LINES, find_errors


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    return tmp_path


def build_function(lines: int, docstring: str = "") -> str:
    body = [*docstring.splitlines(), *["    x = 1"] * (lines - 1)]
    return "\n".join(["def long():", *body, ""])


def test_accepts_file_and_function_of_maximum_length(root: Path) -> None:
    (root / "tests" / "a.py").write_text("x = 1\n" * MAX_FILE_LINES)
    (root / "tests" / "b.py").write_text(build_function(50))
    assert find_errors(root, {}) == []


def test_finds_longer_file_in_every_folder(root: Path) -> None:
    for folder in FOLDERS:
        (root / folder / "deep").mkdir()
        (root / folder / "deep" / "a.py").write_text("x = 1\n" * (MAX_FILE_LINES + 1))
    assert find_errors(root, {}) == [f"{folder}/deep/a.py has {MAX_FILE_LINES + 1} lines" for folder in FOLDERS]


def test_finds_longer_function_without_counting_docstring(root: Path) -> None:
    (root / "tests" / "a.py").write_text(build_function(51))
    (root / "tests" / "b.py").write_text(build_function(50, '    """One.\n\n    Two.\n    """'))
    (root / "tests" / "c.py").write_text("class Some:\n    async " + build_function(51).replace("\n", "\n    "))
    assert find_errors(root, {}) == ["tests/a.py: long has 51 lines", "tests/c.py: long has 51 lines"]


def test_reports_exception_that_is_not_needed(root: Path) -> None:
    exceptions = {"tests/a.py: long": "a reason", "tests/b.py": "a reason"}
    (root / "tests" / "a.py").write_text(build_function(51))
    assert find_errors(root, exceptions) == ["tests/b.py is short enough: remove its exception"]
