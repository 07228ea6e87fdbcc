"""Subreaper: runs a command and waits for all of its descendants (`python -m tests.runner.subreaper COMMAND...`).

A test that kills a driver orphans the driver's JVM, and the JVM its Python workers. The kernel makes this process their
parent, and it waits for them as well. So a caller that waits for this process gets the CPU time of all descendants, and
none of them is left when this part of the tests has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from integration.support.processes import command_line, descendants

_PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 30.0
"""How long descendants may run after the command has ended, before they are killed."""
_POLL_SECONDS = 0.1


def run(command: Sequence[str]) -> int:
    """Run a command, wait for its descendants, and return its exit status."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command)
    status: int | None = None
    while status is None:
        pid, code = os.wait()
        if pid == process.pid:
            status = process.returncode = os.waitstatus_to_exitcode(code)
    _wait_for_descendants()
    return status


def _wait_for_descendants() -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                _kill_descendants()
            time.sleep(_POLL_SECONDS)


def _kill_descendants() -> None:
    for pid in descendants(os.getpid()):
        print("Killed a process that did not end:", *command_line(pid)[:3], file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    status = run(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)
