from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from spark_kafka_sink.exactly_once import steps
from tests.waiting import wait_until


def test_nothing_stops_without_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(steps.FOLDER, raising=False)
    for step in steps.STEPS:
        steps.before(step)
        steps.after(step)


def test_a_process_stops_where_it_was_asked_to_until_the_file_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(steps.FOLDER, str(tmp_path))
    (tmp_path / "stop before decide").touch()
    stopped = tmp_path / "stopped before decide"
    passed: list[str] = []

    def run() -> None:
        steps.after(steps.WRITE)
        passed.append("after write")
        steps.before(steps.DECIDE)
        passed.append("before decide")

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: stopped.exists() and stopped.read_text() != "")
    assert stopped.read_text() == str(os.getpid())
    assert passed == ["after write"]
    stopped.unlink()
    thread.join()
    assert passed == ["after write", "before decide"]
    steps.before(steps.DECIDE)  # once only


def test_several_processes_may_be_stopped_each_at_a_place_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(steps.FOLDER, str(tmp_path))
    places = [f"{when} {step}" for step in steps.STEPS for when in ("before", "after")]
    for place in places:
        (tmp_path / f"stop {place}").touch()
    threads = [
        threading.Thread(target=reached, args=(step,))
        for step in steps.STEPS
        for reached in (steps.before, steps.after)
    ]
    for thread in threads:
        thread.start()
    for place in places:
        stopped = tmp_path / f"stopped {place}"
        wait_until(lambda stopped=stopped: stopped.exists() and stopped.read_text() != "")  # type: ignore[misc]
        stopped.unlink()
    for thread in threads:
        thread.join()
