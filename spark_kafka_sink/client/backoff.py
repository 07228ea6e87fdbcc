"""How long to wait: exponential backoff with jitter, for reconnecting, connection set-up timeouts, metadata refreshes
and retries; and a limit in milliseconds as Python's locks take it.

    backoff(n) = initial * 2^n, at most maximum, times a random factor between 0.8 and 1.2, again at most maximum

The jitter keeps a thousand tasks that lost the same broker at the same moment from coming back at the same moment.
"""

from __future__ import annotations

import threading
from random import Random

JITTER = 0.2


class ExponentialBackoff:
    """Nothing here changes but the random numbers, which are the caller's so that tests can repeat them."""

    def __init__(self, initial_ms: float, maximum_ms: float, random: Random) -> None:
        self._initial_ms = min(initial_ms, maximum_ms)
        self._maximum_ms = maximum_ms
        self._random = random

    def after(self, failures: int) -> float:
        """Milliseconds to wait after this many failures in a row; 0 failures give the initial wait."""
        if self._initial_ms >= self._maximum_ms:
            return self._maximum_ms
        # 2^60 is more than any maximum, and less than what a float cannot hold.
        wait_ms = min(self._initial_ms * 2.0 ** min(failures, 60), self._maximum_ms)
        return min(wait_ms * self._random.uniform(1 - JITTER, 1 + JITTER), self._maximum_ms)


class SharedBackoff:
    """One wait for all that fails at one moment, as often in a row. Used by one thread at a time.

    So the batches of a request that was refused go into one request again, and not, milliseconds apart, each into one
    of its own.
    """

    def __init__(self, backoff: ExponentialBackoff) -> None:
        self._backoff = backoff
        self._of: tuple[float, int] | None = None
        self._wait_ms = 0.0

    def until(self, now: float, failures: int) -> float:
        """When it may be tried again."""
        if self._of != (now, failures):
            self._of, self._wait_ms = (now, failures), self._backoff.after(failures)
        return now + self._wait_ms


def wait_seconds(timeout_ms: float) -> float:
    """A limit in milliseconds as locks and threads take it: they refuse 292 years and more."""
    return min(max(0.0, timeout_ms) / 1000, threading.TIMEOUT_MAX)
