"""The checker of sizes finds what is too long, and exceptions that are no longer needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sizes import FILE_LINES_MAX, FOLDERS, complaints


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    return tmp_path


def function_of(lines: int, docstring: str = "") -> str:
    body = [*docstring.splitlines(), *["    x = 1"] * (lines - 1)]
    return "\n".join(["def long():", *body, ""])


def test_the_longest_file_and_function_allowed_are_let_through(root: Path) -> None:
    (root / "tests" / "a.py").write_text("x = 1\n" * FILE_LINES_MAX)
    (root / "tests" / "b.py").write_text(function_of(50))
    assert complaints(root, {}) == []


def test_a_longer_file_is_found_in_every_folder(root: Path) -> None:
    for folder in FOLDERS:
        (root / folder / "deep").mkdir()
        (root / folder / "deep" / "a.py").write_text("x = 1\n" * (FILE_LINES_MAX + 1))
    assert complaints(root, {}) == [f"{folder}/deep/a.py has {FILE_LINES_MAX + 1} lines" for folder in FOLDERS]


def test_a_longer_function_is_found_and_its_docstring_does_not_count(root: Path) -> None:
    (root / "tests" / "a.py").write_text(function_of(51))
    (root / "tests" / "b.py").write_text(function_of(50, '    """One.\n\n    Two.\n    """'))
    (root / "tests" / "c.py").write_text("class Some:\n    async " + function_of(51).replace("\n", "\n    "))
    assert complaints(root, {}) == ["tests/a.py: long has 51 lines", "tests/c.py: long has 51 lines"]


def test_an_exception_counts_until_it_is_not_needed(root: Path) -> None:
    exceptions = {"tests/a.py: long": "a reason", "tests/b.py": "a reason"}
    (root / "tests" / "a.py").write_text(function_of(51))
    assert complaints(root, exceptions) == ["tests/b.py is short enough: remove its exception"]
