"""Tuning of the Python processes that Spark starts, to shorten small writes. This does not affect records.

**Fewer objects for the garbage collector.** pyspark's daemon runs a full `gc.collect()` after each task, planning step
and commit. numpy, pyarrow, pandas and pyspark create 75,000 to 95,000 objects that never become garbage, and visiting
them takes 25 to 50 ms of CPU time. `update_gc_freeze` freezes the existing objects (`gc.freeze`), which hides them from
the collector. The function's calls are counted in rounds of CALLS_PER_ROUND:

- The first FREEZES_PER_ROUND calls freeze. One call is not enough, because pandas is imported only at the end of the
  first task. On the other hand, each call also freezes unrelated objects that happen to be alive.
- The last call unfreezes, because frozen objects that belong to a user's code may have become garbage. The daemon's
  next collection frees this garbage, before the first call of the next round freezes the other objects again.
- All calls in between do nothing.
- No call does anything if workers are not reused, or in a process that Spark did not start.

**No delayed acknowledgements.** The JVM sends a task's command and then its first rows in small segments. Nagle's
algorithm holds back the second segment until the first one is acknowledged. Linux delays this acknowledgement by up to
40 ms, in case the worker has a response to send with it. `disable_delayed_ack` makes Linux send it immediately. Unix
sockets have no such delay.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from collections.abc import Iterable

FREEZES_PER_ROUND = 3
"""Number of calls of `update_gc_freeze`, at the beginning of a round, that freeze objects."""
CALLS_PER_ROUND = 200
"""Number of calls of `update_gc_freeze` in a round.

The last call unfreezes all objects, so the next collection takes up to 50 ms. Spread over 200 calls, this is 0.25 ms.
"""

_REUSE_WORKER_VARIABLE = "SPARK_REUSE_WORKER"
"""The variable that makes pyspark's daemon keep a process after a task and collect its garbage."""
_UNIX_SOCKET_VARIABLE = "PYTHON_UNIX_DOMAIN_ENABLED"
"""The variable that makes the JVM and the worker communicate through a Unix socket instead of TCP."""

_calls_in_round = 0
"""Number of calls of `update_gc_freeze` in the current round."""


def reset_gc_freeze_round() -> None:
    """Begin a new round of `update_gc_freeze` (tests only)."""
    global _calls_in_round
    _calls_in_round = 0


def update_gc_freeze() -> None:
    """Freeze the live objects, unfreeze all objects or do nothing, depending on the number of calls in this round.

    The module's docstring describes a round. Our entry points call this function whenever Spark starts to use the
    process again. The daemon has just collected the garbage then, so hardly any of the frozen objects are garbage.
    """
    global _calls_in_round
    if _REUSE_WORKER_VARIABLE not in os.environ:
        return
    _calls_in_round = _calls_in_round % CALLS_PER_ROUND + 1
    if _calls_in_round <= FREEZES_PER_ROUND:
        gc.freeze()
    elif _calls_in_round == CALLS_PER_ROUND:
        gc.unfreeze()


def disable_delayed_ack() -> None:
    """Acknowledge the JVM's segments immediately. Call this when a task has its command and is waiting for its rows."""
    if not hasattr(socket, "TCP_QUICKACK") or os.environ.get(_UNIX_SOCKET_VARIABLE, "false").lower() == "true":
        return
    # If there is a default timeout, socket.socket(fileno=...) would make pyspark's connection non-blocking.
    if socket.getdefaulttimeout() is not None:
        return
    with contextlib.suppress(OSError):  # /proc may not exist
        set_first_quickack(sorted(map(int, os.listdir("/proc/self/fd"))))


def set_first_quickack(descriptors: Iterable[int]) -> None:
    """Set TCP_QUICKACK on the first descriptor that is a TCP connection within this machine.

    A worker opens its connection to the JVM first, so this connection has a lower descriptor than the connections of
    users and producers. Linux resets the option when the worker sends its response.
    """
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # not connected, or closed by another thread
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _try_to_set_quickack(descriptor):
                return


def _try_to_set_quickack(descriptor: int) -> bool:
    """Set TCP_QUICKACK if the socket is a TCP connection within this machine, and return whether it was set."""
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
