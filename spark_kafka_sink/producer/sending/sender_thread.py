"""SenderThread: what runs the sender, and how callers wait for it.

The thread knows the sender, not the producer: a producer without references is collected, and its finalizer
ends the thread. It is a daemon, so that a program that forgets close() can still end. Tests run the sender without a
thread, by an object with the same methods (tests/producer/virtual_time.py).
"""

from __future__ import annotations

import threading
from typing import Protocol

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.producer.sending.sender import Sender


class SenderLoop(Protocol):
    """Who makes the sender run."""

    def start(self, sender: Sender, name: str) -> None: ...

    def wakeup(self, client: NetworkClient) -> None:
        """There may be something to send, or the caller is about to wait for memory."""

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        """As Metadata.await_update."""

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool: ...

    def join(self, timeout_ms: float | None) -> bool:
        """Wait for the sender's end; False if it has not come in time."""

    def is_current(self) -> bool:
        """Is the caller the sender itself, in a callback?"""


class SenderThread:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, sender: Sender, name: str) -> None:
        self._thread = threading.Thread(target=sender.run, name=name, daemon=True)
        self._thread.start()

    def wakeup(self, client: NetworkClient) -> None:
        client.wakeup()

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        metadata.await_update(last_version, timeout_ms)

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool:
        return event.wait(None if timeout_ms is None else max(0.0, timeout_ms) / 1000)

    def join(self, timeout_ms: float | None) -> bool:
        assert self._thread is not None
        self._thread.join(None if timeout_ms is None else max(0.0, timeout_ms) / 1000)
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread
