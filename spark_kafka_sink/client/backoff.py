"""Exponential backoff with jitter, for reconnects, connection setup timeouts, metadata updates and retries.

    backoff(n) = min(maximum, min(maximum, initial * 2^n) * a random factor between 0.8 and 1.2)

Without the jitter, a thousand tasks that lose the same broker would all reconnect at the same moment.
"""

from __future__ import annotations

import threading
from random import Random

JITTER = 0.2
"""The maximum deviation of a backoff from its computed value, as a fraction of that value."""


class ExponentialBackoff:
    """A backoff that doubles with each consecutive failure, up to a maximum, with random jitter.

    The caller counts the failures, and supplies the random number generator, which makes tests repeatable.
    """

    def __init__(self, initial_ms: float, maximum_ms: float, rng: Random) -> None:
        self._initial_ms = min(initial_ms, maximum_ms)
        self._maximum_ms = maximum_ms
        self._rng = rng

    def compute_delay_ms(self, failure_count: int) -> float:
        """Return the backoff in milliseconds after this many consecutive failures; 0 gives the initial backoff."""
        if self._initial_ms >= self._maximum_ms:
            return self._maximum_ms
        # The exponent is limited so that the float cannot overflow. 2^60 ms is long enough for any backoff.
        doublings = min(failure_count, 60)
        backoff_ms = min(self._initial_ms * 2.0**doublings, self._maximum_ms)
        return min(backoff_ms * self._rng.uniform(1 - JITTER, 1 + JITTER), self._maximum_ms)


class SharedRetryBackoff:
    """Gives the same retry time to all batches that fail at the same moment and have failed equally often.

    If each batch drew its own jitter, the batches of a rejected request would come due a few milliseconds apart, and
    each would be sent in a request of its own. Not thread-safe.
    """

    def __init__(self, backoff: ExponentialBackoff) -> None:
        self._backoff = backoff
        self._backoff_ms = 0.0
        self._backoff_key: tuple[float, int] | None = None
        """The time and the number of failures that `_backoff_ms` was drawn for; None before the first draw."""

    def next_attempt_ms(self, now_ms: float, failure_count: int) -> float:
        """Return the time of the next attempt, in milliseconds on the same clock as `now_ms`."""
        key = (now_ms, failure_count)
        if self._backoff_key != key:
            self._backoff_key = key
            self._backoff_ms = self._backoff.compute_delay_ms(failure_count)
        return now_ms + self._backoff_ms


def lock_timeout_seconds(timeout_ms: float) -> float:
    """Convert milliseconds to a lock or thread timeout in seconds.

    A lock raises OverflowError for a timeout above threading.TIMEOUT_MAX, so longer timeouts are reduced to this
    maximum. A negative timeout becomes 0.
    """
    return min(max(0.0, timeout_ms) / 1000, threading.TIMEOUT_MAX)
