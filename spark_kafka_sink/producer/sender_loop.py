"""SenderLoop: the interface of an object that runs the sender, and through which calling threads wait for the sender.

Producers use SenderThread (sending/sender_thread.py). Tests use implementations without a thread, whose methods run the
sender in the calling thread until the awaited event occurs.
"""

from __future__ import annotations

from typing import Protocol

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.sending.sender import Sender


class SenderLoop(Protocol):
    """Runs one sender and lets other threads wait for it."""

    def start(self, sender: Sender, name: str) -> None:
        """Start running the sender. `name` is the name of its thread."""

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        """Wait for metadata that is newer than `last_version`. Raise MetadataTimeoutError after `timeout_ms`."""

    def wait(self, event: OneTimeEvent, timeout_ms: float | None) -> bool:
        """Wait for an event that the sender sets. Return whether the event was set in time.

        The caller must wake the sender first, which may otherwise sleep for a long time.
        """

    def join(self, timeout_ms: float | None) -> bool:
        """Wait until the sender has ended. Return whether the sender ended in time."""

    def is_current(self) -> bool:
        """Return whether this is the thread that runs the sender, as it is in a callback."""
