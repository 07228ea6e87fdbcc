"""RequestPurgatory: requests that wait for a time or a change, such as a Fetch without enough bytes.

Named after Kafka's DelayedOperationPurgatory. A waiting request occupies no thread: it is an entry in a heap
ordered by deadline. An entry that also waits for a change becomes due as soon as the cluster has changed.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]


class RequestPurgatory:
    """Tasks that wait for a deadline or a change. Thread-safe, but only one thread may call `get`."""

    def __init__(self, *, now: Callable[[], float], change_count: Callable[[], int]) -> None:
        """`now` returns the time in milliseconds, `change_count` the number of changes of the cluster so far."""
        self._now = now
        self._change_count = change_count
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._due: deque[Task] = deque()
        self._delayed: list[tuple[float, int, Task]] = []
        """Heap of (deadline, entry number, task)."""
        self._watching: dict[int, tuple[int, Task]] = {}
        """Entries of `_delayed` that wait for a change as well: entry number -> (change count, task)."""
        self._entry_number = 0
        self._closed = False

    def put(self, deadline_ms: float, task: Task, change_count: int | None = None) -> None:
        """Add a task that is due at `deadline_ms`.

        With a `change_count`, the task is due earlier if the cluster's change count differs from it.
        """
        with self._lock:
            self._entry_number += 1
            heapq.heappush(self._delayed, (deadline_ms, self._entry_number, task))
            if change_count is not None:
                self._watching[self._entry_number] = (change_count, task)
                # The cluster may have changed since the caller read its change count.
                self._release_changed()
            self._work.notify()

    def release_on_change(self) -> None:
        """Make the tasks due that wait for a change, if the cluster has changed."""
        if self._watching:
            with self._lock:
                self._release_changed()

    def get(self, timeout_ms: float) -> Task | None:
        """Wait for a task that is due and remove it. Return None after the timeout or when the purgatory is closed."""
        timeout_at_ms = self._now() + timeout_ms
        with self._lock:
            while not self._closed:
                now = self._now()
                self._release_expired(now)
                if self._due:
                    return self._due.popleft()
                wake_at_ms = min(timeout_at_ms, self._delayed[0][0]) if self._delayed else timeout_at_ms
                if now >= timeout_at_ms:
                    return None
                self._work.wait(max(0.0, wake_at_ms - now) / 1000)
            return None

    @property
    def count(self) -> int:
        """Number of tasks that are not due yet."""
        return len(self._delayed)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Wake the thread that waits in `get`. Tasks that are left are not executed."""
        with self._lock:
            self._closed = True
            self._work.notify()

    def _release_expired(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, number, task = heapq.heappop(self._delayed)
            self._watching.pop(number, None)
            self._due.append(task)

    def _release_changed(self) -> None:
        current = self._change_count()
        released = {number for number, (known, _) in self._watching.items() if known != current}
        if released:
            self._due.extend(self._watching.pop(number)[1] for number in sorted(released))
            self._delayed = [entry for entry in self._delayed if entry[1] not in released]
            heapq.heapify(self._delayed)
            self._work.notify()
