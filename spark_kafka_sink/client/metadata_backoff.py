"""MetadataBackoff: how long the next metadata update has to wait after the last attempt.

The backoff starts at retry.backoff.ms, and grows exponentially while attempts fail or while responses bring nothing
new. These events change it:

| event                                              | failures | unchanged | wait before the next attempt   |
|----------------------------------------------------|----------|-----------|--------------------------------|
| `after_failure`: no response could be applied      | + 1      | 0         | grows with the failures        |
| `after_response`: a response was applied           | 0        | + 1 or 0  | grows with unchanged responses |
| `restart`: a new reason for the update             | kept     | 0         | grows with the failures        |
| `skip`: a reason not to wait, such as a new topic  | kept     | 0         | none                           |
| `reset`: the bootstrap servers have been resolved  | 0        | 0         | none                           |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from spark_kafka_sink.client.backoff import ExponentialBackoff


@dataclass(frozen=True)
class MetadataBackoff:
    """The attempts at a metadata update so far, and when the backoff after the last one ends.

    Immutable: each event returns a new object. A thread without the lock therefore never sees a mixture of two states.
    """

    backoff: ExponentialBackoff
    failure_count: int = 0
    """Number of consecutive failed updates."""
    unchanged_response_count: int = 0
    """Number of consecutive responses that contained nothing new."""
    last_attempt_ms: float = -math.inf
    """When the last attempt ended; -inf if the next one need not wait for it."""
    ends_at_ms: float = -math.inf
    """When the backoff ends. Its jitter is drawn only once: if each check drew a new one, the shortest would win."""

    def after_failure(self, now_ms: float) -> MetadataBackoff:
        failure_count = self.failure_count + 1
        return self._with_new_backoff(failure_count=failure_count, unchanged_response_count=0, last_attempt_ms=now_ms)

    def after_response(self, now_ms: float, *, has_changes: bool) -> MetadataBackoff:
        unchanged_response_count = 0 if has_changes else self.unchanged_response_count + 1
        return self._with_new_backoff(
            failure_count=0, unchanged_response_count=unchanged_response_count, last_attempt_ms=now_ms
        )

    def restart(self) -> MetadataBackoff:
        """Forget the responses that contained nothing new, so that only failed attempts lengthen the backoff."""
        return self._with_new_backoff(
            failure_count=self.failure_count, unchanged_response_count=0, last_attempt_ms=self.last_attempt_ms
        )

    def skip(self) -> MetadataBackoff:
        """Let the next update start without a backoff, because there is a new reason for it. Its retries back off."""
        return self._with_new_backoff(
            failure_count=self.failure_count, unchanged_response_count=0, last_attempt_ms=-math.inf
        )

    def reset(self) -> MetadataBackoff:
        """Forget all attempts."""
        return self._with_new_backoff(failure_count=0, unchanged_response_count=0, last_attempt_ms=-math.inf)

    def _with_new_backoff(
        self, *, failure_count: int, unchanged_response_count: int, last_attempt_ms: float
    ) -> MetadataBackoff:
        """Return the state with these values and a new backoff after the last attempt."""
        # If there was no failure, the next update still waits for the initial backoff.
        delay_ms = self.backoff.compute_delay_ms(max(failure_count - 1, 0))
        if unchanged_response_count:
            delay_ms = max(delay_ms, self.backoff.compute_delay_ms(unchanged_response_count - 1))
        return replace(
            self,
            failure_count=failure_count,
            unchanged_response_count=unchanged_response_count,
            last_attempt_ms=last_attempt_ms,
            ends_at_ms=last_attempt_ms + delay_ms,
        )
