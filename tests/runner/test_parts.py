"""The parts of `make test` contain all tests, and a failed part is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runner import parts
from tests.runner.parts import Part, format_table, run


def python_part(name: str, code: str, *predecessors: str) -> Part:
    return Part(name, [sys.executable, "-c", code], predecessors)


def test_every_integration_file_belongs_to_one_part() -> None:
    file_names = [file for files in parts.FILES.values() for file in files]
    assert len(file_names) == len(set(file_names))
    assert [file for file in file_names if not (parts.ROOT / "integration" / file).exists()] == []
    (remaining_part,) = (part for part in parts.list_parts() if part.name == parts.REMAINING_PART)
    assert set(remaining_part.command) >= {"integration", *(f"--ignore=integration/{file}" for file in file_names)}


def test_smoke_tests_on_other_versions_of_pyspark_exist() -> None:
    for line in (parts.ROOT / "tests" / "spark" / "smoke_tests.txt").read_text().splitlines():
        file, _, name = line.partition("::")
        assert f"def {name}(" in (parts.ROOT / file).read_text() or not name, line


def test_runs_every_part_and_prints_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    results = run([python_part(name, f"print('{name} here')") for name in "abc"], max_concurrent=2)
    assert sorted((result.part.name, result.status) for result in results) == [("a", 0), ("b", 0), ("c", 0)]
    assert sorted(capfd.readouterr().out.split("\n\n")[:-1]) == [f"=== {name}\n{name} here" for name in "abc"]


def test_starts_part_after_its_predecessors(tmp_path: Path) -> None:
    created = tmp_path / "created"
    first = python_part("first", f"open({str(created)!r}, 'w')")
    second = python_part("second", f"open({str(created)!r})", "first")
    assert [result.status for result in run([second, first], max_concurrent=4)] == [0, 0]


def test_failed_part_fails_only_its_successors(tmp_path: Path) -> None:
    created = tmp_path / "created"
    results = run(
        [
            python_part("bad", "raise SystemExit(3)"),
            python_part("needs it", f"open({str(created)!r}, 'w')", "bad"),
            python_part("other", "pass"),
        ],
        max_concurrent=1,
    )
    assert {result.part.name: result.status for result in results} == {"bad": 3, "needs it": 1, "other": 0}
    assert not created.exists()
    rows = format_table(results, 1.0).splitlines()
    assert sorted(row.split()[0] for row in rows if "FAILED" in row) == ["bad", "needs"]
