"""WaitingRequests: requests whose answers are not due: a delay, a Fetch without enough bytes.

Waiting occupies no thread. It is an entry in a heap by time; one that waits for progress is made due as soon as the
cluster has made some.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]


class RequestPurgatory:
    """`now` and `progress` are asked for when they are needed. Any thread may call anything, one of them `get`."""

    def __init__(self, *, now: Callable[[], float], change_count: Callable[[], int]) -> None:
        self._now = now
        self._change_count = change_count
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._due: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []
        self._parked: dict[int, tuple[int, Task]] = {}
        """Entries of `_later` that wait for progress, too: number -> (the progress they know, task)."""
        self._number = 0
        self._closed = False

    def put(self, time_ms: float, task: Task, change_count: int | None = None) -> None:
        """Due at `time_ms`; if `progress` is given, as soon as the cluster's progress is another one, too."""
        with self._lock:
            self._number += 1
            heapq.heappush(self._later, (time_ms, self._number, task))
            if change_count is not None:
                self._parked[self._number] = (change_count, task)
                # Something may have happened since the caller looked.
                self._wake_parked()
            self._work.notify()

    def release_on_change(self) -> None:
        if self._parked:
            with self._lock:
                self._wake_parked()

    def get(self, timeout_ms: float) -> Task | None:
        """The next task that is due; None if there is none so far, or all is closed."""
        deadline_ms = self._now() + timeout_ms
        with self._lock:
            while not self._closed:
                now = self._now()
                self._take_due(now)
                if self._due:
                    return self._due.popleft()
                next_ms = min(deadline_ms, self._later[0][0]) if self._later else deadline_ms
                if now >= deadline_ms:
                    return None
                self._work.wait(max(0.0, next_ms - now) / 1000)
            return None

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._later)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._work.notify()

    def _take_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, number, task = heapq.heappop(self._later)
            self._parked.pop(number, None)
            self._due.append(task)

    def _wake_parked(self) -> None:
        current = self._change_count()
        woken = {number for number, (known, _) in self._parked.items() if known != current}
        if woken:
            self._due.extend(self._parked.pop(number)[1] for number in sorted(woken))
            self._later = [entry for entry in self._later if entry[1] not in woken]
            heapq.heapify(self._later)
            self._work.notify()
