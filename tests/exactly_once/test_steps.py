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
    (tmp_path / "stop-at").write_text("before decide\n")
    passed: list[str] = []

    def run() -> None:
        steps.after(steps.WRITE)
        passed.append("after write")
        steps.before(steps.DECIDE)
        passed.append("before decide")

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: (tmp_path / "stopped").exists() and (tmp_path / "stopped").read_text() != "before decide\n")
    assert (tmp_path / "stopped").read_text() == f"{os.getpid()} before decide\n"
    assert passed == ["after write"]
    (tmp_path / "stopped").unlink()
    thread.join()
    assert passed == ["after write", "before decide"]
    steps.before(steps.DECIDE)  # once only
