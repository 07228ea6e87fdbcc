"""Waiting for other threads and processes.

The timeout only ends tests that fail. It is so long that no test fails because the machine is slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 600.0
ANSWER_SECONDS = 60
"""Time after which clients of other projects send a request again, because servers of other projects may lose one."""
PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.2
"""The pause between two checks grows to this, because a check may be expensive, such as listing all processes."""


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds. Return False after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause, seconds = threading.Event(), PAUSE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(seconds)
        seconds = min(1.2 * seconds, MAX_PAUSE_SECONDS)
    return True


def wait_until(
    condition: Callable[[], bool], describe_failure: Callable[[], str] = lambda: "the condition did not become true"
) -> None:
    """Wait until a condition holds. Fails with `describe_failure()` after PATIENCE_SECONDS."""
    assert eventually(condition), describe_failure()
