"""IdleClients: a cache of unleased clients, so that the next user of one need not connect and authenticate again.

- While a client is leased, it is not in the cache, and belongs to the thread that leased it. A second user with the
  same key gets a different client.
- If the code that uses a client raises an exception, the client is discarded, because responses that nobody waits for
  may still be in flight.
- A background thread closes clients that have been idle for `idle_seconds`. It runs only while there is a client that
  can expire.
- At most `max_idle` idle clients are kept. If there are more, the least recently used one is closed.
- A forked child process starts with an empty cache and a new lock. The threads and sockets of the parent's clients do
  not work in the child, and another thread of the parent may have held the lock during the fork.
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
"""The time for which a driver's client may be idle. Equal to the default of connections.max.idle.ms."""

_NEVER = float("inf")

ClientT = TypeVar("ClientT")


@dataclass(frozen=True)
class _IdleClient(Generic[ClientT]):
    """A client that is not leased."""

    client: ClientT
    key: Hashable
    expires_at_s: float
    """When to close the client, in seconds on the cache's clock."""


class IdleClients(Generic[ClientT]):
    """A cache of clients that are not leased, by key. Thread-safe.

    `_condition` guards `_idle_clients`. A client is either in this list or leased.
    """

    def __init__(
        self,
        close: Callable[[ClientT], object],
        *,
        max_idle: int,
        discard: Callable[[ClientT], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty cache.

        `close`: closes an idle client that has expired, or that exceeds `max_idle`.
        `discard`: closes a leased client after the code that uses it has raised an exception; defaults to `close`.
        """
        self._close = close
        self._discard = close if discard is None else discard
        self._max_idle = max_idle
        self._clock = clock
        self._reset()
        _reset_after_fork(weakref.ref(self))

    def _reset(self) -> None:
        """Empty the cache without taking the lock or closing any client."""
        self._condition = threading.Condition()
        self._idle_clients: list[_IdleClient[ClientT]] = []
        self._evictor: threading.Thread | None = None

    def __len__(self) -> int:
        """Return the number of idle clients."""
        with self._condition:
            return len(self._idle_clients)

    @contextlib.contextmanager
    def lease(self, key: Hashable, create_client: Callable[[], ClientT], idle_seconds: float) -> Iterator[ClientT]:
        """Yield the most recently used idle client with this key, or a new client if there is none.

        `idle_seconds`: how long the client may stay idle after this lease; inf for no limit.
        """
        client = self._take_most_recent(key) or create_client()
        try:
            yield client
        except BaseException:  # including the GeneratorExit and KeyboardInterrupt that end killed tasks
            self._discard(client)
            raise
        self._put_back(_IdleClient(client, key, self._clock() + idle_seconds))

    def evict(self, now_s: float) -> None:
        """Close the clients that have been idle for too long. `now_s`: the current time of `clock`, in seconds."""
        with self._condition:
            expired_clients = [idle_client for idle_client in self._idle_clients if idle_client.expires_at_s <= now_s]
            self._idle_clients = [idle_client for idle_client in self._idle_clients if idle_client.expires_at_s > now_s]
        self._close_all(expired_clients)

    def close(self) -> None:
        """Close all idle clients."""
        self.evict(_NEVER)  # includes the clients that never expire

    def _take_most_recent(self, key: Hashable) -> ClientT | None:
        """Remove the most recently used idle client with this key, and return it. Return None if there is none."""
        with self._condition:
            # The most recently used client comes last. Its connections are the most likely to be still open.
            for index in reversed(range(len(self._idle_clients))):
                if self._idle_clients[index].key == key:
                    return self._idle_clients.pop(index).client
        return None

    def _put_back(self, idle_client: _IdleClient[ClientT]) -> None:
        """Add a client to the cache, close the clients beyond `max_idle`, and make sure that the evictor is running."""
        with self._condition:
            self._idle_clients.append(idle_client)
            surplus_clients = self._idle_clients[: -self._max_idle]  # the least recently used clients come first
            del self._idle_clients[: -self._max_idle]
            is_evictor_running = self._evictor is not None and self._evictor.is_alive()
            if idle_client.expires_at_s < _NEVER and not is_evictor_running:
                self._evictor = threading.Thread(
                    target=self._evict_until_empty, name="pykafka-idle-clients", daemon=True
                )
                self._evictor.start()
            self._condition.notify()
        self._close_all(surplus_clients)

    def _evict_until_empty(self) -> None:
        """Close clients as they expire, until no idle client can expire. Runs in the evictor thread."""
        while True:
            self.evict(self._clock())
            with self._condition:
                next_expiry_s = min((idle_client.expires_at_s for idle_client in self._idle_clients), default=_NEVER)
                if next_expiry_s == _NEVER:
                    # Clear this while the lock is held, so that the next `_put_back` starts a new thread.
                    self._evictor = None
                    return
                self._condition.wait(max(0.0, next_expiry_s - self._clock()))

    def _close_all(self, idle_clients: list[_IdleClient[ClientT]]) -> None:
        for idle_client in idle_clients:
            self._close(idle_client.client)


def _reset_after_fork(idle_clients_reference: weakref.ref[IdleClients[ClientT]]) -> None:
    """Reset the cache in each child process that this process forks.

    The fork hook holds only a weak reference to the cache. Python cannot unregister a hook, so a strong reference would
    keep the cache alive forever.
    """

    def reset() -> None:
        idle_clients = idle_clients_reference()
        if idle_clients is not None:
            idle_clients._reset()

    os.register_at_fork(after_in_child=reset)
