"""Leases: keyed clients that outlive their users, so that the next user need not connect and log in again.

- A client that is leased belongs to the thread that leased it; another user with the same key gets one of its own.
- A client whose user ended with any exception is discarded at once: responses may be on their way to it for which no
  caller waits any more.
- A client that was not used for `idle_seconds` is closed by a thread that lives only while a client is idle.
- At most `max_idle` clients are idle: one more closes the least recently used.
- A forked child starts without clients and with a lock of its own: threads and sockets of its parent's clients are not
  the child's, and another thread of the parent may have held the lock when it forked.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

CLIENT_IDLE_SECONDS = 540.0
"""How long a client of a driver stays idle: as long as its connections do, by default (connections.max.idle.ms)."""

_NEVER = float("inf")

ClientT = TypeVar("ClientT")


@dataclass(frozen=True)
class _Idle(Generic[ClientT]):
    client: ClientT
    key: Hashable
    until: float


class Leases(Generic[ClientT]):
    """Any thread. `_idle` is guarded by `_changed`; a client is in it or leased, never both."""

    def __init__(
        self,
        close: Callable[[ClientT], object],
        *,
        max_idle: int,
        discard: Callable[[ClientT], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`discard`: close a client whose user ended with an exception; `close` by default."""
        self._close = close
        self._discard = close if discard is None else discard
        self._max_idle = max_idle
        self._clock = clock
        self._reset()
        _reset_after_fork(weakref.ref(self))

    def _reset(self) -> None:
        """Forget the idle clients without taking the lock."""
        self._changed = threading.Condition()
        self._idle: list[_Idle[ClientT]] = []
        self._evictor: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of idle clients."""
        with self._changed:
            return len(self._idle)

    @contextlib.contextmanager
    def lease(self, key: Hashable, make: Callable[[], ClientT], idle_seconds: float) -> Iterator[ClientT]:
        """Yield the client with this key that was used last, or a new one. `idle_seconds`: infinity for no limit."""
        client = self._take(key) or make()
        try:
            yield client
        except BaseException:  # GeneratorExit and KeyboardInterrupt included: a task that was killed
            self._discard(client)
            raise
        self._put_back(_Idle(client, key, self._clock() + idle_seconds))

    def evict(self, now: float) -> None:
        """Close the clients whose idle time is over."""
        with self._changed:
            expired = [idle for idle in self._idle if idle.until <= now]
            self._idle = [idle for idle in self._idle if idle.until > now]
        self._close_all(expired)

    def close(self) -> None:
        """Close all idle clients."""
        self.evict(_NEVER)

    def _take(self, key: Hashable) -> ClientT | None:
        with self._changed:
            # The connections of the one that was used last are the most likely to be open.
            for position in reversed(range(len(self._idle))):
                if self._idle[position].key == key:
                    return self._idle.pop(position).client
        return None

    def _put_back(self, idle: _Idle[ClientT]) -> None:
        with self._changed:
            self._idle.append(idle)
            surplus = self._idle[: -self._max_idle]  # the least recently used: each was appended after its use
            del self._idle[: -self._max_idle]
            if idle.until < _NEVER and (self._evictor is None or not self._evictor.is_alive()):
                self._evictor = threading.Thread(target=self._evict_until_empty, name="pykafka-leases", daemon=True)
                self._evictor.start()
            self._changed.notify()
        self._close_all(surplus)

    def _evict_until_empty(self) -> None:
        while True:
            self.evict(self._clock())
            with self._changed:
                next_until = min((idle.until for idle in self._idle), default=_NEVER)
                if next_until == _NEVER:
                    # Under the lock, so that the next thread that puts a client back sees that a thread is needed.
                    self._evictor = None
                    return
                self._changed.wait(max(0.0, next_until - self._clock()))

    def _close_all(self, clients: list[_Idle[ClientT]]) -> None:
        for idle in clients:
            self._close(idle.client)


def _reset_after_fork(reference: weakref.ref[Leases[ClientT]]) -> None:
    """Reset the leases in forked children. The registration cannot be undone, so it must not keep them alive."""

    def reset() -> None:
        leases = reference()
        if leases is not None:
            leases._reset()

    os.register_at_fork(after_in_child=reset)
