"""The parts of `make test`: together they are all tests, and one that fails is neither lost nor run on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runner import parts
from tests.runner.parts import Part, run, table


def python(name: str, code: str, *after: str) -> Part:
    return Part(name, [sys.executable, "-c", code], after)


def test_each_file_of_integration_belongs_to_one_part() -> None:
    named = [file for files in parts.FILES.values() for file in files]
    assert len(named) == len(set(named))
    assert [file for file in named if not (parts.ROOT / "integration" / file).exists()] == []
    (rest,) = (part for part in parts.parts() if part.name == parts.REST)
    assert set(rest.command) >= {"integration", *(f"--ignore=integration/{file}" for file in named)}


def test_smoke_tests_on_the_oldest_pyspark_exist() -> None:
    for line in (parts.ROOT / "tests" / "spark" / "smoke_tests.txt").read_text().splitlines():
        file, _, name = line.partition("::")
        assert f"def {name}(" in (parts.ROOT / file).read_text() or not name, line


def test_every_part_is_run_and_what_it_says_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    ended = run([python(name, f"print('{name} here')") for name in "abc"], at_once=2)
    assert sorted((one.part.name, one.status) for one in ended) == [("a", 0), ("b", 0), ("c", 0)]
    assert sorted(capfd.readouterr().out.split("\n\n")[:-1]) == [f"=== {name}\n{name} here" for name in "abc"]


def test_a_part_begins_when_those_before_it_have_ended(tmp_path: Path) -> None:
    made = tmp_path / "made"
    first = python("first", f"open({str(made)!r}, 'w')")
    second = python("second", f"open({str(made)!r})", "first")
    assert [one.status for one in run([second, first], at_once=4)] == [0, 0]


def test_a_part_that_fails_fails_those_that_need_it_and_no_others(tmp_path: Path) -> None:
    made = tmp_path / "made"
    ended = run(
        [
            python("bad", "raise SystemExit(3)"),
            python("needs it", f"open({str(made)!r}, 'w')", "bad"),
            python("other", "pass"),
        ],
        at_once=1,
    )
    assert {one.part.name: one.status for one in ended} == {"bad": 3, "needs it": 1, "other": 0}
    assert not made.exists()
    rows = table(ended, 1.0).splitlines()
    assert sorted(row.split()[0] for row in rows if "FAILED" in row) == ["bad", "needs"]
