"""SenderThread: the thread that runs the sender, how callers wait for it, and how it ends without close().

The thread knows the sender, not the producer: a producer without references is collected, and its finalizer lets the
thread deliver what was accepted and end. The thread is a daemon, so that a program that forgets close() can end. At the
interpreter's normal end `_deliver_at_exit` waits for what is left, at most `flush_at_exit` seconds. Tests run the
sender without a thread, by another SenderLoop (tests/producer/virtual_time.py).
"""

from __future__ import annotations

import atexit
import os
import threading

from spark_kafka_sink.client.backoff import lock_timeout_seconds
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.sending.sender import Sender

_END_MS = 5_000.0
"""At the program's end, what is too late is failed; the callbacks of its futures have this time."""


class SenderThread:
    def __init__(self, system: System, flush_at_exit: float) -> None:
        if not isinstance(flush_at_exit, int | float) or not flush_at_exit >= 0:
            raise ConfigurationError(f"flush_at_exit is {flush_at_exit!r}, but must be a number of seconds, 0 or more.")
        self._system = system
        self._flush_at_exit_ms = flush_at_exit * 1000
        self._pid = os.getpid()
        self._sender: Sender | None = None
        self._thread: threading.Thread | None = None

    def start(self, sender: Sender, name: str) -> None:
        self._sender = sender
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        metadata.await_update(last_version, timeout_ms)

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool:
        return event.wait(None if timeout_ms is None else lock_timeout_seconds(timeout_ms))

    def join(self, timeout_ms: float | None) -> bool:
        assert self._thread is not None
        self._thread.join(None if timeout_ms is None else lock_timeout_seconds(timeout_ms))
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        assert self._sender is not None
        _running.add(self)
        try:
            self._sender.run()
        finally:
            _running.discard(self)

    # --- at the interpreter's end

    @property
    def has_work(self) -> bool:
        """Are there records without an outcome? A forked child has none: the thread is its parent's."""
        return self._pid == os.getpid() and self._sender is not None and self._sender.has_incomplete

    def begin_exit(self) -> float:
        """Let the sender deliver what it has, and end. Returns until when that may take."""
        assert self._sender is not None
        self._sender.abandon(force=not self._flush_at_exit_ms)
        return self._system.now() + self._flush_at_exit_ms

    def end_exit(self, deadline_ms: float) -> None:
        """Wait for the sender's end until then, and fail what is left after that."""
        assert self._sender is not None
        if not self.join(max(0.0, deadline_ms - self._system.now())):
            self._sender.initiate_close(force=True)
            self.join(_END_MS)


_running: set[SenderThread] = set()
"""Those whose thread runs. Each adds and removes itself, which is one step under the interpreter's lock."""


@atexit.register
def _deliver_at_exit() -> None:
    """All producers share the time: each begins before any is waited for."""
    begun = [(thread, thread.begin_exit()) for thread in list(_running) if thread.has_work]
    for thread, deadline_ms in begun:
        thread.end_exit(deadline_ms)


def abandon(sender: Sender, pid: int) -> None:
    """The garbage collector has the producer: end its thread, unless it is that of a forked child's parent."""
    if os.getpid() == pid:
        sender.abandon()
