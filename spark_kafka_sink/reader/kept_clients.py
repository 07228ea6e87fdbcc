"""KeptClients: clients that outlive what they were made for, so that the next one need not connect and log in again.

A micro-batch asks a driver's client some questions, and to connect and to log in takes longer than these. So a client
goes back when its user has ended well, and the next user with the same configuration finds it connected. One whose user
ended with an error is closed: answers may be on their way to it for which no caller waits any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from spark_kafka_sink.client.config import ClientConfig

_IDLE_MAX = 4


class _Closable(Protocol):
    def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Closable)


class KeptClients(Generic[ClientT]):
    """Any thread may ask: each query of a driver has one of its own. What is lent belongs to the thread that asked.

    Who has one for a process calls `begin_anew` in a forked child, whose parent goes on with the connections.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[ClientConfig, ClientT]] = []  # guarded by _lock; the one used last at the end

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._idle = []

    @contextlib.contextmanager
    def lent(self, config: ClientConfig, make: Callable[[], ClientT]) -> Iterator[ClientT]:
        """A client for the time of the block: one with this configuration that was made before, or a new one."""
        client = self._take(config) or make()
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._put_back(config, client)

    def close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, client in idle:
            client.close()

    def _take(self, config: ClientConfig) -> ClientT | None:
        with self._lock:
            for position in reversed(range(len(self._idle))):
                if self._idle[position][0] == config:
                    return self._idle.pop(position)[1]
        return None

    def _put_back(self, config: ClientConfig, client: ClientT) -> None:
        with self._lock:
            self._idle.append((config, client))
            too_many = self._idle[:-_IDLE_MAX]
            del self._idle[:-_IDLE_MAX]
        for _, other in too_many:
            other.close()
