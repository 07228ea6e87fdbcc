"""SenderThread: runs the sender on a daemon thread, and ends the thread even if close() is never called.

The thread has a reference to the sender but not to the producer. So a producer that is no longer used is
garbage-collected, and its finalizer calls `abandon`, which makes the thread deliver the accepted records and end. The
thread is a daemon, so that a program can exit without close(). When the interpreter exits normally, `_deliver_at_exit`
waits up to `flush_at_exit` seconds for the remaining records.

SenderThread implements the SenderLoop protocol. Tests use an implementation without a thread instead
(tests/producer/virtual_time.py).
"""

from __future__ import annotations

import atexit
import os
import threading

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.sending.sender import Sender

_EXIT_GRACE_MS = 5_000.0
"""Maximum time that the interpreter's exit waits for user callbacks once the remaining records have failed."""


class SenderThread:
    """Runs one sender on a thread of its own. Methods without a docstring are documented in SenderLoop."""

    def __init__(self, system: System, flush_at_exit: float) -> None:
        """`flush_at_exit`: how many seconds the exit of the interpreter waits for the remaining records.

        Raise ConfigurationError if it is negative or not a number.
        """
        if not isinstance(flush_at_exit, int | float) or not flush_at_exit >= 0:
            raise ConfigurationError(f"flush_at_exit must be a number of seconds, 0 or more, not {flush_at_exit!r}.")
        self._system = system
        self._flush_at_exit_ms = flush_at_exit * 1000
        self._pid = os.getpid()
        self._sender: Sender | None = None
        self._thread: threading.Thread | None = None
        self._ended_event = OneTimeEvent()
        """Set when the sender has ended."""

    def start(self, sender: Sender, name: str) -> None:
        """Start the thread under this name. Call this once."""
        self._sender = sender
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        metadata.await_update(last_version, timeout_ms)

    def wait(self, event: OneTimeEvent, timeout_ms: float | None) -> bool:
        return event.wait(timeout_ms)

    def join(self, timeout_ms: float | None) -> bool:
        """Wait for the sender thread to end. Return whether it ended in time. A timeout of None waits forever.

        This waits for an event, not for the thread. Before Python 3.13, a KeyboardInterrupt during Thread.join() marks
        the thread as ended while it is still running (https://github.com/python/cpython/issues/90882). A later close(),
        or the exit of the interpreter, would then not wait for the remaining records.
        """
        assert self._thread is not None
        has_ended = self._ended_event.wait(timeout_ms)
        if has_ended:
            self._thread.join()  # takes no time, because the thread has only a few instructions left
        return has_ended

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        assert self._sender is not None
        _running_threads.add(self)
        try:
            self._sender.run()
        finally:
            _running_threads.discard(self)
            self._ended_event.set()

    # --- interpreter exit

    @property
    def has_work(self) -> bool:
        """Whether any records are neither acknowledged nor failed.

        Always False in a forked child, because only the parent process has the sender thread.
        """
        return self._pid == os.getpid() and self._sender is not None and self._sender.has_incomplete_rows

    def begin_exit(self) -> float:
        """Make the sender deliver the remaining records and end.

        Return the time, on the monotonic clock, at which `flush_at_exit` is over.
        """
        assert self._sender is not None
        self._sender.abandon(force=not self._flush_at_exit_ms)
        return self._system.now() + self._flush_at_exit_ms

    def end_exit(self, deadline_ms: float) -> None:
        """Wait until the deadline for the sender to end, then fail the remaining records."""
        assert self._sender is not None
        if not self.join(max(0.0, deadline_ms - self._system.now())):
            self._sender.initiate_close(force=True)
            self.join(_EXIT_GRACE_MS)


_running_threads: set[SenderThread] = set()
"""Instances whose thread is running. No lock is needed: adding and removing an item is atomic under the GIL."""


@atexit.register
def _deliver_at_exit() -> None:
    """Deliver the remaining records of all producers, or fail them after their `flush_at_exit`."""
    # Let all senders begin their exit before waiting for any of them, so that they deliver their records concurrently.
    deadlines = [(thread, thread.begin_exit()) for thread in list(_running_threads) if thread.has_work]
    for thread, deadline_ms in deadlines:
        thread.end_exit(deadline_ms)


def abandon(sender: Sender, pid: int) -> None:
    """Make the sender of a garbage-collected producer deliver the accepted records and end.

    Do nothing in a forked child, because only the parent process has the sender thread.

    `pid`: the process that created the producer.
    """
    if os.getpid() == pid:
        sender.abandon()
