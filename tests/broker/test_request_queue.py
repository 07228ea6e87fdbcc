"""RequestQueue: the bounded queue between processors and handler threads."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.broker.request_queue import RequestQueue
from tests.waiting import eventually


class PutThread(threading.Thread):
    """A thread that puts a request. `waits` is set when it waits for room, `accepted` is the result of `put`."""

    def __init__(self, queue: RequestQueue[str], request: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(daemon=True)
        self.waits = threading.Event()
        self.accepted: bool | None = None
        self._queue, self._request = queue, request
        wait = queue._not_full.wait

        def recorded_wait() -> bool:
            self.waits.set()
            return wait()

        monkeypatch.setattr(queue._not_full, "wait", recorded_wait)

    def run(self) -> None:
        self.accepted = self._queue.put(self._request)


def full_queue() -> RequestQueue[str]:
    queue: RequestQueue[str] = RequestQueue(2)
    assert queue.put("first")
    assert queue.put("second")
    return queue


def test_takes_requests_in_order_of_arrival() -> None:
    queue = full_queue()
    assert [queue.take(), queue.take()] == ["first", "second"]


def test_put_waits_for_room_when_full(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = full_queue()
    thread = PutThread(queue, "third", monkeypatch)
    thread.start()
    assert eventually(thread.waits.is_set)
    assert thread.accepted is None
    assert [queue.take(), queue.take(), queue.take()] == ["first", "second", "third"]
    thread.join()
    assert thread.accepted is True


def test_close_rejects_a_put_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = full_queue()
    thread = PutThread(queue, "third", monkeypatch)
    thread.start()
    assert eventually(thread.waits.is_set)
    queue.close()
    thread.join()
    assert thread.accepted is False


def test_close_leaves_queued_requests_to_take() -> None:
    queue = full_queue()
    queue.close()
    assert not queue.put("third")
    assert [queue.take(), queue.take(), queue.take()] == ["first", "second", None]


def test_close_wakes_every_thread_that_waits_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: RequestQueue[str] = RequestQueue(1)
    taken: list[str | None] = []
    waiting: list[int] = []
    wait = queue._not_empty.wait

    def recorded_wait() -> bool:
        waiting.append(1)
        return wait()

    monkeypatch.setattr(queue._not_empty, "wait", recorded_wait)
    threads = [threading.Thread(target=lambda: taken.append(queue.take()), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(waiting) == 2)
    queue.close()
    for thread in threads:
        thread.join()
    assert taken == [None, None]
