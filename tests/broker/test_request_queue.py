"""The queue between processors and handlers: bounded for new requests, and no request waits in it for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker.request_queue import RequestQueue
from tests.waiting import eventually

A_DAY_MS = 86_400_000.0


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0
        self.progress = 0
        self.waits: list[float | None] = []
        """Of the threads that wait now: for how many seconds for work, or None for room."""

    def queue(self, requests_max: int = 2) -> RequestQueue:
        clock = self

        class Watched(threading.Condition):
            def wait(self, timeout: float | None = None) -> bool:
                clock.waits.append(timeout)
                try:
                    return super().wait(timeout)
                finally:
                    clock.waits.remove(timeout)

        with patch.object(threading, "Condition", Watched):
            return RequestQueue(requests_max, now=lambda: self.now_ms, progress=lambda: self.progress)


def task() -> Callable[[], None]:
    return lambda: None


def put_in_threads(clock: Clock, queue: RequestQueue, *requests: Callable[[], None]) -> list[threading.Thread]:
    """Returns when the threads wait for room."""
    threads = [threading.Thread(target=queue.put, args=(request,), daemon=True) for request in requests]
    for thread in threads:
        thread.start()
    assert eventually(lambda: clock.waits == [None] * len(threads))
    return threads


def test_a_full_queue_makes_its_caller_wait_until_one_request_is_taken() -> None:
    clock, tasks = Clock(), [task() for _ in range(3)]
    queue = clock.queue(2)
    for each in tasks[:2]:
        queue.put(each)
    (waiting,) = put_in_threads(clock, queue, tasks[2])
    assert queue.get(0) is tasks[0]
    waiting.join()
    assert [queue.get(0), queue.get(0), queue.get(0)] == [tasks[1], tasks[2], None]


def test_each_request_that_is_taken_makes_room_for_one() -> None:
    clock, tasks = Clock(), [task() for _ in range(3)]
    queue = clock.queue(1)
    queue.put(tasks[0])
    threads = put_in_threads(clock, queue, *tasks[1:])
    taken: list[object] = []

    def took_one() -> bool:
        each = queue.get(0)
        if each is not None:
            taken.append(each)
        return each is not None

    assert all(eventually(took_one) for _ in tasks)
    for thread in threads:
        thread.join()
    assert taken[0] is tasks[0]
    assert set(taken) == set(tasks)


def test_the_end_of_the_queue_frees_those_who_wait_for_room_and_those_who_wait_for_work() -> None:
    clock = Clock()
    queue = clock.queue(1)
    idle = threading.Thread(target=queue.get, args=(A_DAY_MS,), daemon=True)
    idle.start()
    assert eventually(lambda: clock.waits == [A_DAY_MS / 1000])
    queue.close()
    idle.join()
    full = clock.queue(1)
    full.put(task())
    (waiting,) = put_in_threads(clock, full, task())
    full.close()
    waiting.join()
    assert full.closed
    assert full.get(0) is None


def test_tasks_of_later_are_not_held_up_by_a_full_queue_and_come_first() -> None:
    clock = Clock()
    queue, first, later = clock.queue(1), task(), task()
    queue.put(first)
    queue.put_at(5, later)
    assert queue.waiting == 1
    clock.now_ms = 5
    assert [queue.get(0), queue.get(0)] == [later, first]
    assert queue.waiting == 0


def test_progress_makes_due_only_what_waits_for_it_and_does_not_know_it_yet() -> None:
    clock = Clock()
    queue, timed, parked = clock.queue(), task(), task()
    queue.put_at(1000, timed)
    queue.put_at(1000, parked, progress=0)
    queue.note_progress()
    assert queue.get(0) is None
    clock.progress = 1
    queue.note_progress()
    assert [queue.get(0), queue.get(0), queue.waiting] == [parked, None, 1]


def test_progress_between_the_look_and_the_wait_is_not_missed() -> None:
    clock = Clock()
    queue, parked = clock.queue(), task()
    clock.progress = 1
    queue.put_at(1000, parked, progress=0)
    assert queue.get(0) is parked


def test_a_task_whose_time_has_come_is_done_once_also_if_there_is_progress_later() -> None:
    clock = Clock()
    queue, parked = clock.queue(), task()
    queue.put_at(10, parked, progress=0)
    clock.now_ms = 10
    assert queue.get(0) is parked
    clock.progress = 1
    queue.note_progress()
    assert queue.get(0) is None


def test_a_handler_that_leaves_something_behind_wakes_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, woken = Clock().queue(), list[int]()
    queue.put(task())
    queue.put(task())
    monkeypatch.setattr(queue._work, "notify", lambda: woken.append(len(queue._requests)))
    for _ in range(2):
        assert queue.get(0) is not None
    assert woken == [1]


def test_a_handler_that_waits_for_work_wakes_up_when_the_next_task_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    queue, later, waits = clock.queue(), task(), list[float]()
    queue.put_at(40, later)

    def wait(_: threading.Condition, seconds: float) -> None:
        waits.append(seconds)
        clock.now_ms += 1000 * seconds

    monkeypatch.setattr(threading.Condition, "wait", wait)
    assert queue.get(1000) is later
    assert waits == [0.04]
