"""Requests that wait: each is due at its time, or by progress, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_kafka_sink.broker.request_purgatory import RequestPurgatory
from tests.waiting import eventually

A_DAY_MS = 86_400_000.0


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0
        self.change_count = 0

    def waiting(self) -> RequestPurgatory:
        return RequestPurgatory(now=lambda: self.now_ms, change_count=lambda: self.change_count)


def task() -> Callable[[], None]:
    return lambda: None


def in_wait(monkeypatch: pytest.MonkeyPatch, waiting: RequestPurgatory) -> list[float | None]:
    """For how many seconds its thread waits, in turn."""
    seconds: list[float | None] = []
    wait = waiting._work.wait

    def watched(timeout: float | None = None) -> bool:
        seconds.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(waiting._work, "wait", watched)
    return seconds


def test_close_wakes_waiting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Clock().waiting()
    seconds = in_wait(monkeypatch, waiting)
    thread = threading.Thread(target=waiting.get, args=(A_DAY_MS,), daemon=True)
    thread.start()
    assert eventually(lambda: seconds == [A_DAY_MS / 1000])
    waiting.close()
    thread.join()
    assert waiting.is_closed
    assert waiting.get(0) is None


@pytest.mark.parametrize("by", ["a task", "progress"])
def test_task_due_earlier_wakes_waiting_thread(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    clock = Clock()
    waiting, sooner, got = clock.waiting(), task(), list[object]()
    waiting.put(A_DAY_MS, sooner if by == "progress" else task(), change_count=0)
    seconds = in_wait(monkeypatch, waiting)
    thread = threading.Thread(target=lambda: got.append(waiting.get(A_DAY_MS)), daemon=True)
    thread.start()
    assert eventually(lambda: len(seconds) == 1)
    if by == "progress":
        clock.change_count = 1
        waiting.release_on_change()
    else:
        waiting.put(0, sooner)
    thread.join()
    assert got == [sooner]


def test_returns_tasks_in_order_of_deadlines() -> None:
    clock = Clock()
    waiting, first, second = clock.waiting(), task(), task()
    waiting.put(6, second)
    waiting.put(5, first)
    assert waiting.get(0) is None
    assert waiting.count == 2
    clock.now_ms = 6
    assert [waiting.get(0), waiting.get(0), waiting.get(0)] == [first, second, None]
    assert waiting.count == 0


def test_change_releases_only_tasks_with_older_change_count() -> None:
    clock = Clock()
    waiting, timed, parked = clock.waiting(), task(), task()
    waiting.put(1000, timed)
    waiting.put(1000, parked, change_count=0)
    waiting.release_on_change()
    assert waiting.get(0) is None
    clock.change_count = 1
    waiting.release_on_change()
    assert [waiting.get(0), waiting.get(0), waiting.count] == [parked, None, 1]


def test_releases_task_that_missed_a_change_before_put() -> None:
    clock = Clock()
    waiting, parked = clock.waiting(), task()
    clock.change_count = 1
    waiting.put(1000, parked, change_count=0)
    assert waiting.get(0) is parked


def test_change_after_deadline_does_not_repeat_task() -> None:
    clock = Clock()
    waiting, parked = clock.waiting(), task()
    waiting.put(10, parked, change_count=0)
    clock.now_ms = 10
    assert waiting.get(0) is parked
    clock.change_count = 1
    waiting.release_on_change()
    assert waiting.get(0) is None


def test_waits_until_next_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    waiting, later, waits = clock.waiting(), task(), list[float]()
    waiting.put(40, later)

    def wait(_: threading.Condition, seconds: float) -> None:
        waits.append(seconds)
        clock.now_ms += 1000 * seconds

    monkeypatch.setattr(threading.Condition, "wait", wait)
    assert waiting.get(1000) is later
    assert waits == [0.04]
