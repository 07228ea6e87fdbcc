"""RequestQueue: requests that have been read and not yet handled (Kafka's RequestChannel)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


class RequestQueue(Generic[RequestT]):
    """A bounded first-in, first-out queue. Thread-safe."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._lock = threading.Lock()
        self._not_full = threading.Condition(self._lock)
        self._not_empty = threading.Condition(self._lock)
        self._requests: deque[RequestT] = deque()
        self._is_closed = False

    def put(self, request: RequestT) -> bool:
        """Append the request, waiting while the queue is full. Return False if the queue is closed."""
        with self._lock:
            while len(self._requests) >= self._max_requests and not self._is_closed:
                self._not_full.wait()
            if self._is_closed:
                return False
            self._requests.append(request)
            self._not_empty.notify()
            return True

    def take(self) -> RequestT | None:
        """Remove and return the oldest request, waiting if there is none.

        Return None if the queue is closed and empty.
        """
        with self._lock:
            while not self._requests and not self._is_closed:
                self._not_empty.wait()
            if not self._requests:
                return None
            self._not_full.notify()
            return self._requests.popleft()

    def close(self) -> None:
        """Reject further requests. Those already in the queue can still be taken."""
        with self._lock:
            self._is_closed = True
            self._not_full.notify_all()
            self._not_empty.notify_all()
