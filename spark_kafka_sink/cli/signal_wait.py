"""Waiting for SIGINT or SIGTERM, with a guaranteed exit of the process."""

from __future__ import annotations

import faulthandler
import select
import signal
import socket
import sys
from types import TracebackType

MAX_SHUTDOWN_SECONDS = 10.0
"""The time that a process has for an orderly shutdown."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalWait:
    """A context manager of the main thread that waits for a signal.

    `wait` detects the first signal without a Python handler and without a lock, because the interpreter writes to a
    socket in the context of the signal. After `limit_shutdown`, a second signal ends the process by its default action.
    If the `with` block does not end within MAX_SHUTDOWN_SECONDS, a thread that needs no lock of the interpreter dumps
    the tracebacks of all threads and ends the process.
    """

    def __enter__(self) -> SignalWait:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        # The wakeup socket must exist before the handlers. The byte of a signal that is handled earlier would be lost,
        # and the wait would never end.
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._writer.fileno())
        self._previous_handlers = [signal.signal(number, _do_nothing) for number in _SIGNALS]
        return self

    def wait(self, seconds: float) -> bool:
        """Wait for a signal. Return whether one has arrived."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def limit_shutdown(self) -> None:
        """Start the time limit of the shutdown, and let a second signal end the process."""
        faulthandler.dump_traceback_later(MAX_SHUTDOWN_SECONDS, exit=True, file=sys.__stderr__ or 2)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in zip(_SIGNALS, self._previous_handlers, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        self._reader.close()
        self._writer.close()


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal. The byte that the interpreter writes to the socket is enough."""
