"""SenderLoop: the interface for running the sender and for waiting for it in calling threads.

Producers use SenderThread (sending/sender_thread.py). Tests use implementations without a thread.
"""

from __future__ import annotations

import threading
from typing import Protocol

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.producer.sending.sender import Sender


class SenderLoop(Protocol):
    """Runs one sender and lets other threads wait for it."""

    def start(self, sender: Sender, name: str) -> None: ...

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        """Wait for newer metadata; see Metadata.await_update."""

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool:
        """Wait for an event that the sender sets. Return False after the timeout.

        The caller must have woken the sender.
        """

    def join(self, timeout_ms: float | None) -> bool:
        """Wait until the sender has ended. Return False after the timeout."""

    def is_current(self) -> bool:
        """Return whether the sender itself is calling, as it does through a callback."""
