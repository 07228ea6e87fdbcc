"""Deadline: how long a thread waits for an attempt, and the pauses between its retries. Progress extends a deadline."""

from __future__ import annotations

from typing import Protocol

from spark_kafka_sink.errors import KafkaSinkError, MetadataTimeoutError, NetworkError

_FIRST_PAUSE_MS, _MAX_PAUSE_MS = 20.0, 1_000.0
_MAX_DOUBLINGS = 10


def pause_ms(failures: int) -> float:
    """Return the pause before a retry. `failures`: how often in a row the attempt had failed before."""
    return min(_FIRST_PAUSE_MS * 2.0 ** min(failures, _MAX_DOUBLINGS), _MAX_PAUSE_MS)


class _Client(Protocol):
    def now(self) -> float: ...
    def pause(self, pause_ms: float) -> None: ...
    def trouble(self) -> str: ...


class Deadline:
    """Used by one thread. `attempt`: what is attempted, for the error."""

    def __init__(self, client: _Client, attempt: str, timeout_ms: float) -> None:
        self._client = client
        self._attempt = attempt
        self._timeout_ms = timeout_ms
        self._since_ms = client.now()

    @property
    def at_ms(self) -> float:
        return self._since_ms + self._timeout_ms

    @property
    def waited_ms(self) -> float:
        """The time since the last progress."""
        return self._client.now() - self._since_ms

    def extend(self) -> None:
        """Note that there was progress."""
        self._since_ms = self._client.now()

    def check(self, failure: KafkaSinkError | None) -> None:
        """Raise if the deadline has passed. `failure`: why the last try has failed, if it has."""
        if self.waited_ms >= self._timeout_ms:
            text = f"{self._attempt}: nothing within {self._timeout_ms:.0f} ms. "
            text += f"The last failure: {failure}" if failure is not None else self._client.trouble()
            kind = NetworkError if isinstance(failure, NetworkError) else MetadataTimeoutError
            raise kind(text) from failure

    def wait(self, failure: KafkaSinkError | None, pause_ms: float) -> None:
        """Pause before the next try, unless the deadline has passed. `failure`: as for `check`."""
        self.check(failure)
        self._client.pause(pause_ms)
