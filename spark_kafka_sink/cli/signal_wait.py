"""SignalWait: waits for SIGINT or SIGTERM, and then guarantees that the process exits."""

from __future__ import annotations

import faulthandler
import select
import signal
import socket
import sys
from types import TracebackType

MAX_SHUTDOWN_SECONDS = 10.0
"""The longest time that an orderly shutdown may take."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalWait:
    """A context manager that waits for a signal. It can only be used in the main thread.

    `wait` detects the first signal without running Python code or taking a lock, because the interpreter's C handler
    writes a byte to a socket.

    After `limit_shutdown`, a second signal ends the process by its default action. If the `with` block does not end
    within MAX_SHUTDOWN_SECONDS after `limit_shutdown`, the tracebacks of all threads are dumped and the process ends,
    even if a thread never releases the interpreter lock.
    """

    def __enter__(self) -> SignalWait:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        # The wakeup socket must be set before the handlers. Otherwise, a signal that arrives between them would be
        # handled without writing its byte, and the wait would never end.
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._writer.fileno())
        self._previous_handlers = [signal.signal(number, _do_nothing) for number in _SIGNALS]
        return self

    def wait(self, seconds: float) -> bool:
        """Wait for a signal for up to `seconds`. Return whether one has arrived."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def limit_shutdown(self) -> None:
        """Start the time limit for the shutdown, and let a second signal end the process."""
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
    """Handle a signal by ignoring it, because the interpreter already writes a byte to the wakeup socket."""
