"""RebootstrapPolicy: decides when the client returns to the bootstrap servers.

All known brokers may be gone, because they were replaced or because their names now resolve to different hosts. Only
the bootstrap servers can help then (KIP-899). The client returns to them if:

- no known broker can be reached,
- an update has been due without a response for metadata.recovery.rebootstrap.trigger.ms, or
- a broker demands it (KIP-1102).

The policy decides the last two cases. The client itself notices the first one, when it looks for a broker.
"""

from __future__ import annotations

from spark_kafka_sink.client.config import REBOOTSTRAP, ClientConfig


class RebootstrapPolicy:
    """Decides whether the client must return to the bootstrap servers. Only the sender thread may use it."""

    def __init__(self, config: ClientConfig) -> None:
        self.is_allowed = config.metadata_recovery_strategy == REBOOTSTRAP
        """Whether metadata.recovery.strategy lets the client rebootstrap."""
        self._trigger_ms = config.metadata_recovery_rebootstrap_trigger_ms
        self._due_since_ms: float | None = None  # when the pending update became due; None if none is pending
        self._is_demanded = False

    def record_due_update(self, now_ms: float) -> None:
        """Record that an update is due, and when it became due."""
        if self._due_since_ms is None:
            self._due_since_ms = now_ms

    def record_update(self) -> None:
        """Record that a response was applied, which makes a rebootstrap unnecessary."""
        self._due_since_ms = None
        self._is_demanded = False

    def record_demand(self) -> None:
        """Record that a broker demands a rebootstrap."""
        self._is_demanded = True

    def record_rebootstrap(self, now_ms: float) -> None:
        """Record that the client has returned to the bootstrap servers, and restart the wait for an update."""
        self._due_since_ms = now_ms
        self._is_demanded = False

    def needs_rebootstrap(self, now_ms: float) -> bool:
        """Return whether an update is overdue or a broker demands a rebootstrap, and the client may rebootstrap."""
        if not self.is_allowed:
            return False
        is_overdue = self._due_since_ms is not None and now_ms - self._due_since_ms > self._trigger_ms
        return is_overdue or self._is_demanded
