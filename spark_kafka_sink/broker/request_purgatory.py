"""RequestPurgatory: requests waiting for a deadline or a change, such as a Fetch without enough bytes.

Named after Kafka's DelayedOperationPurgatory. A waiting request occupies no thread; it is only an entry in a heap
ordered by deadline. An entry that also waits for a change becomes due as soon as the cluster changes.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

Task = Callable[[], None]


class _DelayedTask(NamedTuple):
    """An entry of the heap. Entries with the same deadline are ordered by their numbers, which are unique."""

    deadline_ms: float
    number: int
    task: Task
    change_count: int | None
    """The task is also due once the cluster's change count differs from this one. None: it waits for its deadline."""


class RequestPurgatory:
    """Tasks waiting for a deadline or a cluster change. Thread-safe, but only one thread may call `take`."""

    def __init__(self, *, get_now_ms: Callable[[], float], get_change_count: Callable[[], int]) -> None:
        """`get_change_count`: returns the cluster's change count."""
        self._get_now_ms = get_now_ms
        self._get_change_count = get_change_count
        self._lock = threading.Lock()
        self._task_condition = threading.Condition(self._lock)
        self._due_tasks: deque[Task] = deque()
        self._delayed_tasks: list[_DelayedTask] = []  # a heap
        self._tasks_awaiting_change: dict[int, _DelayedTask] = {}
        """The entries of `_delayed_tasks` that also wait for a change, by their numbers."""
        self._last_number = 0
        self._is_closed = False

    def put(self, deadline_ms: float, task: Task, change_count: int | None = None) -> None:
        """Add a task that is due at `deadline_ms`.

        `change_count`: if it is not None, the task is also due once the cluster's change count differs from it.
        """
        with self._lock:
            self._last_number += 1
            entry = _DelayedTask(deadline_ms, self._last_number, task, change_count)
            heapq.heappush(self._delayed_tasks, entry)
            if change_count is not None:
                self._tasks_awaiting_change[entry.number] = entry
                # The cluster may have changed since the caller read its change count.
                self._release_changed()
            self._task_condition.notify()

    def release_on_change(self) -> None:
        """If the cluster has changed, release all tasks that wait for a change."""
        # Handlers call this after every request, so look for such tasks before taking the lock.
        if self._tasks_awaiting_change:
            with self._lock:
                self._release_changed()

    def take(self, timeout_ms: float) -> Task | None:
        """Wait for a task to become due, remove it and return it. Return None on timeout or once closed."""
        timeout_at_ms = self._get_now_ms() + timeout_ms
        with self._lock:
            while not self._is_closed:
                now_ms = self._get_now_ms()
                self._release_expired(now_ms)
                if self._due_tasks:
                    return self._due_tasks.popleft()
                if now_ms >= timeout_at_ms:
                    return None
                wake_at_ms = timeout_at_ms
                if self._delayed_tasks:
                    wake_at_ms = min(wake_at_ms, self._delayed_tasks[0].deadline_ms)
                self._task_condition.wait(max(0.0, wake_at_ms - now_ms) / 1000)
            return None

    @property
    def count(self) -> int:
        """Number of tasks that are not due yet."""
        return len(self._delayed_tasks)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Wake the thread that waits in `take`. The remaining tasks never run."""
        with self._lock:
            self._is_closed = True
            self._task_condition.notify()

    def _release_expired(self, now_ms: float) -> None:
        """Release the tasks whose deadlines have passed, which makes them due. The caller holds `_lock`."""
        while self._delayed_tasks and self._delayed_tasks[0].deadline_ms <= now_ms:
            expired_entry = heapq.heappop(self._delayed_tasks)
            self._tasks_awaiting_change.pop(expired_entry.number, None)
            self._due_tasks.append(expired_entry.task)

    def _release_changed(self) -> None:
        """Release the tasks whose change counts are outdated, oldest first. The caller holds `_lock`."""
        current_count = self._get_change_count()
        due_numbers = {
            entry.number for entry in self._tasks_awaiting_change.values() if entry.change_count != current_count
        }
        if due_numbers:
            for number in sorted(due_numbers):
                self._due_tasks.append(self._tasks_awaiting_change.pop(number).task)
            self._delayed_tasks = [entry for entry in self._delayed_tasks if entry.number not in due_numbers]
            heapq.heapify(self._delayed_tasks)
            self._task_condition.notify()
