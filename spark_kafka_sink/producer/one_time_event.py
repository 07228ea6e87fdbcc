"""OneTimeEvent: an event for which a signal handler can wait, even if it has interrupted another wait for it."""

from __future__ import annotations

import threading
from contextlib import suppress

from spark_kafka_sink.client.backoff import lock_timeout_seconds


class OneTimeEvent:
    """An event that occurs at most once.

    In contrast to threading.Event, `wait` can also be called in a signal handler. A handler runs between any two
    instructions of the main thread. If that thread is in the method `wait` or `set` of a threading.Event, it may hold
    the event's lock, and a second wait by the handler would never return. A program whose handler calls close() while
    it commits a transaction waits twice for the same operation.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        """Locked until the event is set, and later only for a moment, by a thread that returns from `wait`."""
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all threads that wait for it. Do nothing if it is already set."""
        # Set the flag before releasing the lock, because `wait` reads the flag once it has acquired the lock.
        self._is_set = True
        self._release_lock()

    def wait(self, timeout_ms: float | None) -> bool:
        """Wait for the event. Return whether it is set. A timeout of None waits forever."""
        if self.is_set():  # do not wait for the lock, which an interrupted `wait` of this thread may hold
            return True
        try:
            self._lock.acquire(timeout=-1 if timeout_ms is None else lock_timeout_seconds(timeout_ms))
        finally:
            # Release the lock, so that other waiting threads return, too. Do not release it before the event is set,
            # because the next `wait` would then return immediately. After an interrupt, we cannot tell whether this
            # thread has acquired the lock, but the release is harmless either way (see `_release_lock`).
            if self.is_set():
                self._release_lock()
        return self.is_set()

    def _release_lock(self) -> None:
        """Release the lock, which wakes the next waiting thread. Do nothing if the lock is not held.

        In `wait`, a thread calls this even if `acquire` raised an exception, because an interrupt may occur after the
        lock was acquired and before `acquire` returns.
        """
        with suppress(RuntimeError):  # another thread has released the lock
            self._lock.release()
