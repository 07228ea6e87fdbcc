"""Run a command and wait for everything that it has started: `python -m tests.runner.adopting COMMAND...`

A test that kills a driver leaves the driver's JVM, and that its Python workers, without a parent. The system gives them
to this process, which waits for them too: so a caller that waits for this process gets the CPU time of all of them, and
no process is left over when this part of the tests has ended.
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
"""What is left when the command has ended gets this time to end as well."""
_LOOK_SECONDS = 0.1


def run(command: Sequence[str]) -> int:
    """The status of the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command)
    status: int | None = None
    while status is None:
        pid, code = os.wait()
        if pid == process.pid:
            status = process.returncode = os.waitstatus_to_exitcode(code)
    _wait_for_the_others()
    return status


def _wait_for_the_others() -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                _kill_the_others()
            time.sleep(_LOOK_SECONDS)


def _kill_the_others() -> None:
    for pid in descendants(os.getpid()):
        print("left behind, and killed:", *command_line(pid)[:3], file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    status = run(sys.argv[1:])
    sys.exit(status if status >= 0 else 128 - status)
