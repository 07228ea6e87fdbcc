"""PolledRequests: sends what the engine (pending.py) has due, over a NetworkClient that its owner polls."""

from __future__ import annotations

from typing import Any, cast

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.request import ClientResponse
from spark_kafka_sink.errors import DisconnectedError, UnsupportedVersionError
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.pending import POLL_INTERVAL_MS, Attempt, Call, PendingRequests


class PolledRequests:
    """Used by one thread, which polls the client and reports the responses."""

    def __init__(self, client: NetworkClient, pending: PendingRequests, timeout_ms: float | None = None) -> None:
        """`timeout_ms`: of each request; request.timeout.ms by default."""
        self._client = client
        self._pending = pending
        self._timeout_ms = timeout_ms

    def pause_ms(self, failures: int) -> float:
        """Return the pause after this many failures in a row."""
        return self._pending.pause_ms(failures)

    def add(self, call: Call[Any]) -> None:
        self._pending.add(call)

    def remove(self, call: Call[Any]) -> None:
        """Forget a call. What was sent for it is ignored when it ends."""
        self._pending.remove(call)

    def send_due(self, now: float) -> float:
        """Send what is due, as far as nodes can be used now. Return how long until this must be called again."""
        delay_ms = float("inf")
        for attempt in self._pending.due(now):
            delay_ms = min(delay_ms, self._send(attempt, now))
        return min(delay_ms, max(0.0, self._pending.next_due_ms(now) - now))

    def responded(self, response: ClientResponse) -> None:
        """Take the end of a request that this object sent."""
        attempt = cast("Attempt", response.request.tag)
        if response.message is not None:
            self._pending.responded(attempt, response.message, response.received_ms)
        else:
            error = response.version_error or DisconnectedError(response.reason)
            self._pending.failed(attempt, error, response.received_ms)

    def _send(self, attempt: Attempt, now: float) -> float:
        """Send an attempt if its node is ready. Return when to look again."""
        node, request, call = attempt.node, attempt.request, attempt.call
        if not self._client.ready(node, now):
            if self._client.connection_failed(node.id) and not attempt.is_for_any_node:
                loss = self._client.losses.get(node.id)
                self._pending.failed(attempt, DisconnectedError("" if loss is None else loss.reason), now)
                return 0.0
            return max(POLL_INTERVAL_MS, self._client.poll_delay(node.id, now))
        try:
            version = self._client.version_for(node.id, request.api_key, request.versions)
            message = request.message(version)
        except UnsupportedVersionError as error:
            self._pending.failed(attempt, error, now)
            return 0.0
        # Recorded before the bytes leave: another thread may reject a record at any moment.
        if not attempt.is_lookup and not call.may_send(request):
            return 0.0
        self._pending.sent(attempt)
        self._client.send(
            self._client.new_client_request(
                node.id,
                message,
                now,
                timeout_ms=self._timeout_ms,
                tag=attempt,
                versions=VersionRange(version, version),
            ),
            now,
        )
        return float("inf")
