"""SenderLoop: who makes the sender run, and how the threads of callers wait for it.

SenderThread is the one of production (sending/sender_thread.py); tests have others, without a thread.
"""

from __future__ import annotations

import threading
from typing import Protocol

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.producer.sending.sender import Sender


class SenderLoop(Protocol):
    def start(self, sender: Sender, name: str) -> None: ...

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        """Wait like Metadata.await_update."""

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool:
        """Wait for what the sender does; False if it has not come in time. The caller has woken the sender."""

    def join(self, timeout_ms: float | None) -> bool:
        """Wait for the sender's end; False if it has not come in time."""

    def is_current(self) -> bool:
        """Is the caller the sender itself, in a callback?"""
