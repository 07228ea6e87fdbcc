"""RequestDispatcher: sends the requests of a request engine (engine.py) on a NetworkClient that other code polls."""

from __future__ import annotations

import math
from typing import Any, cast

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import DisconnectedError, UnsupportedVersionError
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.engine import POLL_INTERVAL_MS, Attempt, Call, RequestEngine

_CALL_AGAIN_NOW_MS = 0.0
_NO_FURTHER_CALL_MS = math.inf


class RequestDispatcher:
    """Sends requests on a client that the client's owner polls. Not thread-safe.

    The owner must pass the responses to `handle_response`.
    """

    def __init__(self, client: NetworkClient, engine: RequestEngine, timeout_ms: float | None = None) -> None:
        """`timeout_ms`: timeout of each request; defaults to request.timeout.ms."""
        self._client = client
        self._engine = engine
        self._timeout_ms = timeout_ms

    def compute_backoff_ms(self, previous_failure_count: int) -> float:
        """Return the backoff after a failure. `previous_failure_count`: how many consecutive failures preceded it."""
        return self._engine.compute_backoff_ms(previous_failure_count)

    def add(self, call: Call[Any]) -> None:
        self._engine.add(call)

    def remove(self, call: Call[Any]) -> None:
        """Remove a call. Responses to its requests in flight will be ignored."""
        self._engine.remove(call)

    def send_due(self, now_ms: float) -> float:
        """Send the due attempts whose nodes are ready. Return the time until the next call, in milliseconds."""
        delay_ms = _NO_FURTHER_CALL_MS
        for attempt in self._engine.find_due_attempts(now_ms):
            delay_ms = min(delay_ms, self._send(attempt, now_ms))
        return min(delay_ms, max(0.0, self._engine.next_due_ms(now_ms) - now_ms))

    def handle_response(self, response: ClientResponse) -> None:
        """Handle the response to a request that this object sent, or the request's failure."""
        attempt = cast("Attempt", response.request.tag)
        if response.message is not None:
            self._engine.handle_response(attempt, response.message, response.received_ms)
        else:
            error = response.version_error or DisconnectedError(response.reason)
            self._engine.handle_failure(attempt, error, response.received_ms)

    def _send(self, attempt: Attempt, now_ms: float) -> float:
        """Send an attempt if its node is ready. Fail it if the node is unreachable and no other node can handle it.

        Return the time in milliseconds after which `send_due` must be called again because of this attempt.
        """
        node, request, call = attempt.node, attempt.request, attempt.call
        if not self._client.ready(node, now_ms):
            return self._fail_or_wait(attempt, now_ms)
        try:
            version = self._client.latest_usable_version(node.id, request.api_key, request.versions)
            message = request.build_message(version)
        except UnsupportedVersionError as error:
            self._engine.handle_failure(attempt, error, now_ms)
            return _CALL_AGAIN_NOW_MS
        # Check this immediately before sending, because another thread may reject a record at any time. A transaction
        # with a rejected record must not be committed.
        if not attempt.is_lookup and not call.try_begin_sending(request):
            return _CALL_AGAIN_NOW_MS
        self._engine.mark_sent(attempt)
        self._client.send(
            self._client.new_client_request(
                node.id,
                message,
                now_ms,
                timeout_ms=self._timeout_ms,
                tag=attempt,
                versions=VersionRange(version, version),
            ),
            now_ms,
        )
        return _NO_FURTHER_CALL_MS

    def _fail_or_wait(self, attempt: Attempt, now_ms: float) -> float:
        """Fail an attempt if its node is unreachable and no other node can handle it. Return the time to wait."""
        node_id = attempt.node.id
        if not self._client.has_connection_failed(node_id) or attempt.is_for_any_node:
            return max(POLL_INTERVAL_MS, self._client.poll_delay_ms(node_id, now_ms))
        connection_loss = self._client.connection_losses.get(node_id)
        reason = "" if connection_loss is None else connection_loss.reason
        self._engine.handle_failure(attempt, DisconnectedError(reason), now_ms)
        return _CALL_AGAIN_NOW_MS
