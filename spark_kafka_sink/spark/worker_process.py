"""What a Python process that Spark has started does so that small writes end sooner. It touches no record.

**Fewer objects to look at.** After each task, each planning and each commit pyspark's daemon runs a full
`gc.collect()`. numpy, pyarrow, pandas and pyspark have 75,000 to 95,000 objects that never become garbage, and to look
at them takes 25 to 50 ms of CPU. `look_at_less` hides from the collector what is there.

- It does so a few times only: pandas comes at the end of a first task, and what else is alive just then is hidden, too.
- A user's code may have left something there that becomes garbage later. So after many times all is shown again, for
  one collection, and hidden anew.
- Where workers are not reused, and in processes that Spark has not started, it does nothing.

**No wait for an acknowledgement.** The JVM writes what a task is to do, and then its first rows, in small pieces.
Nagle's algorithm holds back the second until the first is acknowledged, and this end delays that for up to 40 ms, in
case it has an answer to send with it. `acknowledge_at_once` has Linux send it now. A Unix socket has no such wait.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from collections.abc import Iterable

FREEZES_PER_CYCLE = 3
CALLS_PER_CYCLE = 200

_IS_REUSED = "SPARK_REUSE_WORKER"
"""Where this is set, pyspark's daemon collects garbage after a task; else it ends the process."""
_HAS_UNIX_SOCKET = "PYTHON_UNIX_DOMAIN_ENABLED"

_times = 0


def forget() -> None:
    """For tests: as in a new process."""
    global _times
    _times = 0


def freeze_gc() -> None:
    """Called when Spark begins to use this process again: what was garbage then has just been collected."""
    global _times
    if _IS_REUSED not in os.environ:
        return
    _times = _times % CALLS_PER_CYCLE + 1
    if _times <= FREEZES_PER_CYCLE:
        gc.freeze()
    elif _times == CALLS_PER_CYCLE:
        gc.unfreeze()


def disable_delayed_ack() -> None:
    """Called at the beginning of a task, which has its command by now and waits for its rows."""
    if not hasattr(socket, "TCP_QUICKACK") or os.environ.get(_HAS_UNIX_SOCKET, "false").lower() == "true":
        return
    # With a default timeout, socket.socket(fileno=...) would make pyspark's connection non-blocking.
    if socket.getdefaulttimeout() is not None:
        return
    with contextlib.suppress(OSError):  # a machine may have no /proc
        set_first_quickack(sorted(map(int, os.listdir("/proc/self/fd"))))


def set_first_quickack(descriptors: Iterable[int]) -> None:
    """Set TCP_QUICKACK on the first TCP connection within this machine. Linux ends it by itself with this end's answer.

    A worker is born with its connection to the JVM; those of users and of producers come later.
    """
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # not connected, or closed by another thread meanwhile
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _acknowledged(descriptor):
                return


def _acknowledged(descriptor: int) -> bool:
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return False
        if connection.getsockname()[0] != connection.getpeername()[0]:
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return True
    finally:
        connection.detach()
