"""Waiting for SIGINT or SIGTERM, and an end that comes in any case."""

from __future__ import annotations

import faulthandler
import select
import signal
import socket
import sys
from types import TracebackType

END_SECONDS_MAX = 10.0
"""What a process may take to end in good order."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalWait:
    """For the main thread, in a `with`.

    The first signal is noticed by `wait`. Neither a handler in Python nor a lock is needed for that: the interpreter
    writes to a socket in the signal's own context. After `end_in_time` a second signal ends the process by its default
    action; and if the `with` is not left within END_SECONDS_MAX, a thread that needs no lock of the interpreter writes
    down where all the others are, and ends the process.
    """

    def __enter__(self) -> SignalWait:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        # In this order: what is handled before there is a place for its byte would be lost, and the wait have no end.
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno())
        self._before = [signal.signal(number, _wait_notices) for number in _SIGNALS]
        return self

    def wait(self, seconds: float) -> bool:
        """Whether a signal has come."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def end_in_time(self) -> None:
        faulthandler.dump_traceback_later(END_SECONDS_MAX, exit=True, file=sys.__stderr__ or 2)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()


def _wait_notices(number: int, frame: object) -> None:
    """The signal's handler: what matters is the byte on the socket."""
