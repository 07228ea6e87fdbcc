"""RequestPace: which requests about transactions are in flight, and how long the next waits after a failure."""

from __future__ import annotations

from typing import Any

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.coordinators import KnownCoordinators
from spark_kafka_sink.producer.transactions.transaction_request import TransactionRequest
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import error_code

_COMPLETING_PAUSE_MS = 20.0
_DOUBLINGS_MAX = 10


def completing_pause_ms(failures: int) -> float:
    """The pause while the transaction before is still being completed, which takes a moment only."""
    return _COMPLETING_PAUSE_MS * 2.0 ** min(failures, _DOUBLINGS_MAX)


class RequestPace:
    """Guarded by the lock of who asks; `trouble` is read without it."""

    def __init__(self, backoff: ExponentialBackoff, known: KnownCoordinators) -> None:
        self._backoff = backoff
        self.known = known
        self._in_flight: set[TransactionRequest[Any]] = set()
        self.trouble = ""
        """Why the last request has failed; empty if it has not."""
        self._failures = 0
        self._retry_ms = 0.0

    @property
    def in_flight(self) -> bool:
        """A request waits for its answer."""
        return bool(self._in_flight)

    def pauses(self, now: float) -> bool:
        return now < self._retry_ms

    def pause_left_ms(self, now: float) -> float:
        return self._retry_ms - now if now < self._retry_ms else float("inf")

    def node(self, request: TransactionRequest[Any]) -> Node | None:
        """Which node to ask. None: any broker can answer, or the coordinator is not known."""
        return None if request.any_broker_answers else self.known.get(request.coordinator)

    def forget(self, request: TransactionRequest[Any]) -> None:
        """The node that was asked is not the coordinator any more, or cannot be reached."""
        if not request.any_broker_answers:
            for name in request.ids:
                self.known.pop(request.coordinator._replace(key=name), None)

    def sent(self, request: TransactionRequest[Any]) -> None:
        self._in_flight.add(request)

    def answered(self, request: TransactionRequest[Any]) -> None:
        self._in_flight.discard(request)

    def succeeded(self, request: TransactionRequest[Any]) -> None:
        self._failures = 0
        if not request.any_broker_answers:  # to have found it again is no success yet
            self.trouble = ""

    def lost(self, request: TransactionRequest[Any], now: float, why: str) -> None:
        """There was no answer, or the node cannot be asked at all."""
        self.answered(request)
        self.forget(request)
        self._pause(now, why)

    def pause(self, now: float, code: int) -> None:
        """A broker has refused the request for now."""
        self._pause(now, error_code(code).name, code)

    def _pause(self, now: float, why: str, code: int = codes.NONE) -> None:
        self.trouble = why
        pause_ms = self._backoff.after(self._failures)
        if code == codes.CONCURRENT_TRANSACTIONS:
            pause_ms = min(pause_ms, completing_pause_ms(self._failures))
        self._retry_ms = now + pause_ms
        self._failures += 1
