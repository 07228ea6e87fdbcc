"""Deadline: the time limit of a blocking operation. The limit starts again each time the operation makes progress."""

from __future__ import annotations

from typing import Protocol

from spark_kafka_sink.errors import KafkaSinkError, MetadataTimeoutError, NetworkError

_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 20.0, 1_000.0
"""The pause after the first failure, and the longest pause."""
_MAX_DOUBLINGS = 10


def compute_pause_ms(previous_failure_count: int) -> float:
    """Compute the pause before a retry, which doubles with each consecutive failure, up to one second.

    `previous_failure_count`: the number of consecutive failures before the latest one.
    """
    return min(_FIRST_PAUSE_MS * 2.0 ** min(previous_failure_count, _MAX_DOUBLINGS), _MAX_PAUSE_MS)


class _Client(Protocol):
    """The methods of BlockingClient that a deadline calls."""

    def now(self) -> float: ...
    def pause(self, pause_ms: float) -> None: ...
    def describe_missing_response(self) -> str: ...


class Deadline:
    """The deadline of an operation, which moves when the operation makes progress. Not thread-safe."""

    def __init__(self, client: _Client, operation: str, timeout_ms: float) -> None:
        """`operation`: the name of the operation in error messages."""
        self._client = client
        self._operation = operation
        self._timeout_ms = timeout_ms
        self._last_progress_ms = client.now()

    @property
    def at_ms(self) -> float:
        """The time of the deadline, on the client's monotonic clock."""
        return self._last_progress_ms + self._timeout_ms

    @property
    def waited_ms(self) -> float:
        """The time since the last progress or, if there was none, since the deadline was created."""
        return self._client.now() - self._last_progress_ms

    def extend(self) -> None:
        """Restart the timeout after the operation has made progress."""
        self._last_progress_ms = self._client.now()

    def raise_if_expired(self, failure: KafkaSinkError | None) -> None:
        """Raise an error if the deadline has passed.

        The error is a NetworkError if `failure` is one; otherwise, it is a MetadataTimeoutError.

        `failure`: the operation's latest failure, or None if there was none.
        """
        if self.waited_ms >= self._timeout_ms:
            cause = f"Last failure: {failure}" if failure is not None else self._client.describe_missing_response()
            message = f"{self._operation}: timed out after {self._timeout_ms:.0f} ms. {cause}"
            error_type = NetworkError if isinstance(failure, NetworkError) else MetadataTimeoutError
            raise error_type(message) from failure

    def wait_or_raise(self, failure: KafkaSinkError | None, pause_ms: float) -> None:
        """Pause before the next attempt, or raise an error if the deadline has passed. See `raise_if_expired`."""
        self.raise_if_expired(failure)
        self._client.pause(pause_ms)
