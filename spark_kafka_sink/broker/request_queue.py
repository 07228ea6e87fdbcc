"""RequestQueue: what the handler threads have to do, now or later.

New requests are bounded: a processor that finds the queue full waits, reads nothing more, and so the clients wait. Work
on requests that were taken before is not: each channel has at most one request under way, for it is muted meanwhile.

Waiting (a delay, a Fetch without enough bytes) occupies no thread. It is an entry in a heap by time; one that waits for
progress is made due as soon as the cluster has made some.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable

Task = Callable[[], None]


class RequestQueue:
    """`now` and `progress` are asked for when they are needed. Any thread may call anything."""

    def __init__(self, requests_max: int, *, now: Callable[[], float], progress: Callable[[], int]) -> None:
        self._requests_max = requests_max
        self._now = now
        self._progress = progress
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Each task wakes one handler; one that leaves something behind, if only a time to wait for, wakes the next."""
        self._room = threading.Condition(self._lock)
        self._requests: deque[Task] = deque()
        self._ready: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []
        self._parked: dict[int, tuple[int, Task]] = {}
        """Entries of `_later` that wait for progress, too: number -> (the progress they know, task)."""
        self._number = 0
        self._closed = False

    def put(self, request: Task) -> None:
        """A new request; waits while the queue is full."""
        with self._lock:
            while len(self._requests) >= self._requests_max and not self._closed:
                self._room.wait()
            self._requests.append(request)
            self._work.notify()

    def put_at(self, time_ms: float, task: Task, progress: int | None = None) -> None:
        with self._lock:
            self._number += 1
            heapq.heappush(self._later, (time_ms, self._number, task))
            if progress is not None:
                self._parked[self._number] = (progress, task)
                # Something may have happened since the caller looked.
                self._wake_parked()
            self._work.notify()

    def note_progress(self) -> None:
        if self._parked:
            with self._lock:
                self._wake_parked()

    def get(self, timeout_ms: float) -> Task | None:
        """The next task; None if there is none so far, or the queue is closed."""
        deadline_ms = self._now() + timeout_ms
        with self._lock:
            while not self._closed:
                now = self._now()
                self._take_due(now)
                if self._ready or self._requests:
                    return self._next()
                next_ms = min(deadline_ms, self._later[0][0]) if self._later else deadline_ms
                if now >= deadline_ms:
                    return None
                self._work.wait(max(0.0, next_ms - now) / 1000)
            return None

    @property
    def waiting(self) -> int:
        """How many tasks wait for a time, or for progress."""
        return len(self._later)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._room.notify_all()

    def _next(self) -> Task:
        if self._ready:
            task = self._ready.popleft()
        else:
            task = self._requests.popleft()
            self._room.notify()
        if self._ready or self._requests or self._later:
            self._work.notify()
        return task

    def _take_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, number, task = heapq.heappop(self._later)
            self._parked.pop(number, None)
            self._ready.append(task)

    def _wake_parked(self) -> None:
        current = self._progress()
        woken = {number for number, (known, _) in self._parked.items() if known != current}
        if woken:
            self._ready.extend(self._parked.pop(number)[1] for number in sorted(woken))
            self._later = [entry for entry in self._later if entry[1] not in woken]
            heapq.heapify(self._later)
            self._work.notify(len(woken))
