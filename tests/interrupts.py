"""Handling of SIGINT in processes that tests start."""

from __future__ import annotations

import signal


def restore_sigint() -> None:
    """Restore the default handler of SIGINT if the signal is ignored.

    A shell ignores SIGINT in background jobs, and all their children inherit that. Without this function, tests that
    interrupt a command would wait forever in such a job.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
