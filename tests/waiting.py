"""Helpers that wait for other threads and processes.

The timeout only ends tests that fail. It is long enough that no test fails because of a slow machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WAIT_TIMEOUT_SECONDS = 600.0
REQUEST_TIMEOUT_SECONDS = 60
"""Request timeout for other projects' clients, which retry then, because other projects' servers may lose requests."""
MIN_PAUSE_SECONDS = 0.01
MAX_PAUSE_SECONDS = 0.2
"""Limits of the pause between two checks. It grows, because a check may be expensive, such as listing all processes."""


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds. Return False after WAIT_TIMEOUT_SECONDS."""
    deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
    never_set, pause_seconds = threading.Event(), MIN_PAUSE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        never_set.wait(pause_seconds)
        pause_seconds = min(1.2 * pause_seconds, MAX_PAUSE_SECONDS)
    return True


def wait_until(
    condition: Callable[[], bool], describe_failure: Callable[[], str] = lambda: "the condition did not become true"
) -> None:
    """Wait until a condition holds. Fail with the text of `describe_failure` after WAIT_TIMEOUT_SECONDS."""
    assert eventually(condition), describe_failure()
