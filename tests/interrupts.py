"""Ctrl-C reaches what tests start, also where the run itself is in the background."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """A shell lets the jobs that it runs in the background ignore SIGINT, and all their children inherit that.

    Tests that interrupt a command would then wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
