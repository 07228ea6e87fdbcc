"""Coordinators: which brokers coordinate, and when the next request may go to one of them.

One request is in flight at a time. After a failure the next one waits for a pause that grows.
"""

from __future__ import annotations

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.requests import CoordinatorKey, Kind, TransactionRequest
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import error_code

COMPLETING_PAUSE_MS = 20.0
"""The first pause while the transaction before is still being completed, which takes a moment only."""
KNOWN_MAX = 1_000


class Coordinators:
    """Guarded by the lock of the TransactionManager; `trouble` is read without it."""

    def __init__(self, backoff: ExponentialBackoff) -> None:
        self._backoff = backoff
        self._nodes: dict[CoordinatorKey, Node] = {}
        self.in_flight = False
        """True while a request waits for its answer."""
        self.trouble = ""
        """Why the last request has failed; empty if it has not."""
        self._failures = 0
        self._retry_ms = 0.0

    def may_be_asked(self, now: float) -> bool:
        return not self.in_flight and now >= self._retry_ms

    def pause_left_ms(self, now: float) -> float:
        return self._retry_ms - now if now < self._retry_ms else float("inf")

    def node(self, key: CoordinatorKey) -> Node | None:
        return self._nodes.get(key)

    def found(self, key: CoordinatorKey, node: Node) -> None:
        if len(self._nodes) >= KNOWN_MAX:
            self._nodes.clear()
        self._nodes[key] = node

    def forget(self, request: TransactionRequest) -> None:
        """The node that was asked is not the coordinator any more, or cannot be reached."""
        if request.kind is not Kind.FIND_COORDINATOR:
            self._nodes.pop(request.coordinator, None)

    def sent(self) -> None:
        self.in_flight = True

    def answered(self) -> None:
        self.in_flight = False

    def succeeded(self, request: TransactionRequest) -> None:
        self._failures = 0
        if request.kind is not Kind.FIND_COORDINATOR:  # to have found it again is no success yet
            self.trouble = ""

    def lost(self, request: TransactionRequest, now: float, why: str) -> None:
        """There was no answer, or the node cannot be asked at all."""
        self.answered()
        self.forget(request)
        self._pause(now, why)

    def pause(self, now: float, code: int) -> None:
        """A broker has refused the request for now."""
        self._pause(now, error_code(code).name, code)

    def _pause(self, now: float, why: str, code: int = codes.NONE) -> None:
        self.trouble = why
        pause_ms = self._backoff.after(self._failures)
        if code == codes.CONCURRENT_TRANSACTIONS:
            pause_ms = min(pause_ms, COMPLETING_PAUSE_MS * 2.0 ** min(self._failures, 10))
        self._retry_ms = now + pause_ms
        self._failures += 1
