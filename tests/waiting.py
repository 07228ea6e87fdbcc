"""How tests wait for what other threads and processes do.

A limit is there so that a failure ends, not so that a slow machine fails: only a failure waits for PATIENCE_SECONDS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 600.0
ANSWER_SECONDS = 60
"""After which a client of another project asks again: a server of another project may lose a request."""
PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.2
"""A look may go through all processes of the machine, or read a topic: looks come less often the longer one waits."""


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold; other threads get all the time that they need."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause, seconds = threading.Event(), PAUSE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        pause.wait(seconds)
        seconds = min(1.2 * seconds, LONGEST_PAUSE_SECONDS)
    return True


def wait_until(holds: Callable[[], bool], complaint: Callable[[], str] = lambda: "it did not happen") -> None:
    assert eventually(holds), complaint()
