"""The stops of the kill loops: a process waits before or after the requested step."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite
from tests.exactly_once import protocol_steps
from tests.waiting import wait_until


def test_process_stops_at_step_until_the_file_is_deleted(tmp_path: Path) -> None:
    stops = protocol_steps.Stops(tmp_path)
    (tmp_path / "stop before decide").touch()
    stopped = tmp_path / "stopped before decide"
    passed: list[str] = []

    def run() -> None:
        stops.after(protocol_steps.WRITE)
        passed.append("after write")
        stops.before(protocol_steps.DECIDE)
        passed.append("before decide")

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: stopped.exists() and stopped.read_text() != "")
    assert stopped.read_text() == str(os.getpid())
    assert passed == ["after write"]
    stopped.unlink()
    thread.join()
    assert passed == ["after write", "before decide"]
    stops.before(protocol_steps.DECIDE)  # once only


class _Noted(protocol_steps.Stops):
    """Records the points that are reached, and stops at none."""

    places: tuple[str, ...] = ()

    def _reached(self, place: str) -> None:
        _Noted.places += (place,)


def test_each_step_stops_before_and_after_its_method(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_Noted, "places", ())
    monkeypatch.setattr(protocol_steps, "Stops", _Noted)
    called: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def transaction(*arguments: Any) -> Iterator[None]:
        called.append(arguments)
        yield

    for owner, name, _ in protocol_steps.METHODS:
        assert callable(getattr(owner, name))  # a method that exists in the package
        monkeypatch.setattr(owner, name, lambda *arguments: called.append(arguments))
    monkeypatch.setattr(ExactlyOnceWrite, "transaction", transaction)
    protocol_steps.install_stops(tmp_path, monkeypatch.setattr)
    for owner, name, _ in protocol_steps.METHODS:
        getattr(owner, name)("self", name)
    with ExactlyOnceWrite.transaction("self", "transaction"):  # type: ignore[call-arg, arg-type]
        assert _Noted.places[-1] == "before write"
    assert [name for _, name in called] == [*(name for _, name, _ in protocol_steps.METHODS), "transaction"]
    reached = [step for _, _, step in protocol_steps.METHODS] + [protocol_steps.WRITE]
    assert set(reached) == set(protocol_steps.STEPS)
    assert list(_Noted.places) == [f"{when} {step}" for step in reached for when in ("before", "after")]
