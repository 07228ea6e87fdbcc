"""RequestPurgatory: tasks are due at their deadline or after a change, and waiting threads are woken."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_kafka_sink.broker.request_purgatory import RequestPurgatory
from tests.waiting import eventually

DAY_MS = 86_400_000.0


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0
        self.change_count = 0

    def new_purgatory(self) -> RequestPurgatory:
        return RequestPurgatory(get_now_ms=lambda: self.now_ms, get_change_count=lambda: self.change_count)


def new_task() -> Callable[[], None]:
    return lambda: None


def record_waits(monkeypatch: pytest.MonkeyPatch, purgatory: RequestPurgatory) -> list[float | None]:
    """Record the timeouts, in seconds, with which a thread waits in `get`."""
    seconds: list[float | None] = []
    wait = purgatory._task_condition.wait

    def recorded_wait(timeout: float | None = None) -> bool:
        seconds.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(purgatory._task_condition, "wait", recorded_wait)
    return seconds


def test_close_wakes_waiting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    purgatory = Clock().new_purgatory()
    seconds = record_waits(monkeypatch, purgatory)
    thread = threading.Thread(target=purgatory.take, args=(DAY_MS,), daemon=True)
    thread.start()
    assert eventually(lambda: seconds == [DAY_MS / 1000])
    purgatory.close()
    thread.join()
    assert purgatory.is_closed
    assert purgatory.take(0) is None


@pytest.mark.parametrize("reason", ["a task", "a change"])
def test_task_due_earlier_wakes_waiting_thread(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    clock = Clock()
    purgatory, expected, results = clock.new_purgatory(), new_task(), list[object]()
    purgatory.put(DAY_MS, expected if reason == "a change" else new_task(), change_count=0)
    seconds = record_waits(monkeypatch, purgatory)
    thread = threading.Thread(target=lambda: results.append(purgatory.take(DAY_MS)), daemon=True)
    thread.start()
    assert eventually(lambda: len(seconds) == 1)
    if reason == "a change":
        clock.change_count = 1
        purgatory.release_on_change()
    else:
        purgatory.put(0, expected)
    thread.join()
    assert results == [expected]


def test_returns_tasks_in_order_of_deadlines() -> None:
    clock = Clock()
    purgatory, first, second = clock.new_purgatory(), new_task(), new_task()
    purgatory.put(6, second)
    purgatory.put(5, first)
    assert purgatory.take(0) is None
    assert purgatory.count == 2
    clock.now_ms = 6
    assert [purgatory.take(0), purgatory.take(0), purgatory.take(0)] == [first, second, None]
    assert purgatory.count == 0


def test_change_releases_only_tasks_with_older_change_count() -> None:
    clock = Clock()
    purgatory, timed_task, watching_task = clock.new_purgatory(), new_task(), new_task()
    purgatory.put(1000, timed_task)
    purgatory.put(1000, watching_task, change_count=0)
    purgatory.release_on_change()
    assert purgatory.take(0) is None
    clock.change_count = 1
    purgatory.release_on_change()
    assert [purgatory.take(0), purgatory.take(0), purgatory.count] == [watching_task, None, 1]


def test_releases_task_that_missed_a_change_before_put() -> None:
    clock = Clock()
    purgatory, watching_task = clock.new_purgatory(), new_task()
    clock.change_count = 1
    purgatory.put(1000, watching_task, change_count=0)
    assert purgatory.take(0) is watching_task


def test_change_after_deadline_does_not_repeat_task() -> None:
    clock = Clock()
    purgatory, watching_task = clock.new_purgatory(), new_task()
    purgatory.put(10, watching_task, change_count=0)
    clock.now_ms = 10
    assert purgatory.take(0) is watching_task
    clock.change_count = 1
    purgatory.release_on_change()
    assert purgatory.take(0) is None


def test_waits_until_next_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    purgatory, delayed_task, waits = clock.new_purgatory(), new_task(), list[float]()
    purgatory.put(40, delayed_task)

    def wait(_: threading.Condition, seconds: float) -> None:
        waits.append(seconds)
        clock.now_ms += 1000 * seconds

    monkeypatch.setattr(threading.Condition, "wait", wait)
    assert purgatory.take(1000) is delayed_task
    assert waits == [0.04]
