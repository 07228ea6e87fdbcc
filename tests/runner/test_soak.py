"""`make soak` does not repeat a stage that has passed at the same commit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runner.parts import ROOT, Part
from tests.runner.soak import list_stages, run_stages


def python_stage(name: str, code: str) -> Part:
    return Part(name, [sys.executable, "-c", code])


def append_stage(name: str, file: Path) -> Part:
    return python_stage(name, f"open({str(file)!r}, 'a').write('{name} ')")


def test_every_stage_has_a_name_and_files_of_its_own() -> None:
    stages = list_stages(["4.2.1"])
    assert len({stage.name for stage in stages}) == len(stages)
    files = [argument for stage in stages for argument in stage.command if "/integration/" in argument]
    assert len(set(files)) == len(files)
    soak_files = [file for file in (ROOT / "integration").glob("test_*.py") if "SOAK" in file.read_text()]
    assert {str(file) for file in soak_files} <= set(files)


def test_later_run_skips_stages_that_passed_at_the_same_commit(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    failing = python_stage("failing", "raise SystemExit(3)")
    assert run_stages([append_stage("first", runs), failing, append_stage("last", runs)], tmp_path, lambda: "c1") == [
        "failing"
    ]
    assert runs.read_text() == "first last "

    assert run_stages([append_stage("first", runs), append_stage("failing", runs)], tmp_path, lambda: "c1") == []
    assert runs.read_text() == "first last failing "


@pytest.mark.parametrize("commit", ["c2", None], ids=["another commit", "uncommitted changes"])
def test_stage_is_repeated_at_another_commit_and_with_uncommitted_changes(tmp_path: Path, commit: str | None) -> None:
    runs = tmp_path / "runs"
    run_stages([append_stage("first", runs)], tmp_path, lambda: "c1")
    run_stages([append_stage("first", runs)], tmp_path, lambda: commit)
    assert runs.read_text() == "first first "


def test_stage_is_repeated_if_the_commit_changed_while_it_ran(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    commits = iter(["c1", "c2"])
    run_stages([append_stage("first", runs)], tmp_path, lambda: next(commits))
    run_stages([append_stage("first", runs)], tmp_path, lambda: "c1")
    assert runs.read_text() == "first first "


def test_stage_has_passed_at_the_commit_at_which_it_started(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    stages = [append_stage("first", runs), append_stage("last", runs)]
    commits = iter(["c1", "c1", "c2", "c2"])  # before and after each stage
    run_stages(stages, tmp_path, lambda: next(commits))
    run_stages(stages, tmp_path, lambda: "c2")
    assert runs.read_text() == "first last first "


def test_output_of_failed_stage_is_printed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_stages([python_stage("bad", "print('the cause'); raise SystemExit(3)")], tmp_path, lambda: "c1")
    assert "bad: FAILED (3) in" in (printed := capsys.readouterr().out)
    assert "the cause" in printed
    assert (tmp_path / "bad.log").read_text() == "the cause\n"
    assert not (tmp_path / "bad.passed").exists()


def test_failed_stage_prevents_its_successor_only(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    successor = Part("successor", append_stage("successor", runs).command, predecessors=("bad",))
    stages = [python_stage("bad", "raise SystemExit(3)"), successor, append_stage("last", runs)]
    assert run_stages(stages, tmp_path, lambda: "c1") == ["bad", "successor"]
    assert runs.read_text() == "last "
