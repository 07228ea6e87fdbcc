"""MetadataFetch: tracks the metadata request in flight and the brokers it was sent to.

A suspended broker accepts a request but never responds. Rather than wait for request.timeout.ms, the client sends the
same request to a second broker after one second, and uses whichever response arrives first. The wait doubles with each
further broker, and is reset when a broker responds quickly. Without the doubling, a slow cluster would get every
request twice.

If no known broker responds, the client may return to the bootstrap servers (rebootstrap_policy.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from spark_kafka_sink.client.bootstrap_lookup import BootstrapLookup
from spark_kafka_sink.client.client_request import ClientRequest
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata, MetadataQuery
from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS
from spark_kafka_sink.client.rebootstrap_policy import RebootstrapPolicy
from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

_log = logging.getLogger(__name__)


class MetadataFetch:
    """Tracks the metadata request in flight and applies its response. Only the sender thread may use it."""

    def __init__(self, metadata: Metadata, config: ClientConfig, system: System, wakeup: Callable[[], None]) -> None:
        """`wakeup`: called on the lookup's thread when a lookup of bootstrap.servers has finished."""
        self._metadata = metadata
        self._lookup = None if metadata.snapshot.nodes else BootstrapLookup(config, system, wakeup)
        self._rebootstrap_policy = RebootstrapPolicy(config)
        self._query: MetadataQuery | None = None  # the query in flight
        self._sent_ms_by_node: dict[int, float] = {}  # node id -> when the query was sent to it; oldest first
        self._resend_after_ms = UNRESPONSIVE_AFTER_MS

    def resolve_bootstrap_servers(self, now_ms: float) -> float:
        """Resolve bootstrap.servers if that has not been done yet. Return the milliseconds until the next call.

        Return 0 once the bootstrap servers are known. After bootstrap.resolve.timeout.ms, return inf, and fail all
        callers that wait for metadata.
        """
        if self._lookup is None:
            return 0.0
        try:
            nodes = self._lookup.try_resolve()
        except ConfigurationError as error:
            self._metadata.set_fatal_error(error)
            return math.inf
        if not nodes:
            self._metadata.record_update_failure(
                now_ms, f"No name in bootstrap.servers was resolved: {self._lookup.failure_text}"
            )
            return self._lookup.wait_ms()
        self._lookup = None
        self._metadata.bootstrap(nodes)
        return 0.0

    def is_due(self, now_ms: float) -> bool:
        """Return whether an update is due and no request for it is in flight."""
        return self._query is None and self._metadata.time_to_next_update_ms(now_ms) <= 0

    def wait_ms(self, now_ms: float, last_response_ms_by_node: Mapping[int, float]) -> float:
        """Return the milliseconds until the next request must be sent. The result is 0 or negative if it is due.

        `last_response_ms_by_node`: when each node last responded, by node id.
        """
        if not self._sent_ms_by_node:
            return self._metadata.time_to_next_update_ms(now_ms)
        newest_node_id, sent_ms = next(reversed(self._sent_ms_by_node.items()))
        unresponsive_since_ms = max(sent_ms, last_response_ms_by_node.get(newest_node_id, sent_ms))
        return unresponsive_since_ms + self._resend_after_ms - now_ms

    def is_awaiting_response(self, node_id: int) -> bool:
        """Return whether the current query was sent to this node."""
        return node_id in self._sent_ms_by_node

    def record_due_update(self, now_ms: float) -> None:
        """Record that an update is due and the client is looking for a broker to send it to."""
        self._rebootstrap_policy.record_due_update(now_ms)

    def start_query(self, node_id: int, now_ms: float) -> MetadataQuery:
        """Return the query to send to this node, and record that it is being sent.

        If other nodes have not responded to the current query yet, return that query; otherwise, create a new one.
        """
        if self._query is None:
            self._query = self._metadata.build_query(now_ms)
        if self._sent_ms_by_node:  # the wait stays bounded, because unresponsive nodes are disconnected
            self._resend_after_ms *= 2
        self._sent_ms_by_node[node_id] = now_ms
        return self._query

    def handle_response(
        self, node_id: int, query: MetadataQuery, response: MetadataResponse, version: int, now_ms: float
    ) -> None:
        """Handle the response to a query. Ignore the response if the query has already been answered or has ended."""
        if query is not self._query:
            return
        if now_ms - self._sent_ms_by_node[node_id] < UNRESPONSIVE_AFTER_MS:
            # Brokers respond quickly, so from now on, a late response means that a broker is unresponsive.
            self._resend_after_ms = UNRESPONSIVE_AFTER_MS
        self._end_query()
        if response.error_code == error_codes.REBOOTSTRAP_REQUIRED:
            self.request_rebootstrap()
            self._metadata.record_update_failure(
                now_ms, "A broker responded that clients must bootstrap again from bootstrap.servers."
            )
        elif response.error_code != error_codes.NONE:
            name = lookup_error_code(response.error_code).name
            _log.warning("A broker rejected a metadata request with %s", name)
            self._metadata.record_update_failure(now_ms, f"A broker rejected the metadata request with {name}.")
        elif not response.brokers:
            # A broker that is still starting up does not know any broker yet.
            self._metadata.record_update_failure(now_ms, "A broker responded, but its response contains no broker.")
        else:
            self._metadata.update(query, response, version, now_ms)
            self._rebootstrap_policy.record_update()

    def handle_lost_request(self, node_id: int, query: MetadataQuery, now_ms: float) -> None:
        """Record that this node will not respond to the query. Other nodes may still respond."""
        if query is self._query:
            del self._sent_ms_by_node[node_id]
            if not self._sent_ms_by_node:
                self._end_query()
                self._metadata.record_update_failure(now_ms)

    def fail(self, now_ms: float, error: KafkaSinkError) -> None:
        """Record that the query cannot be sent, and fail all callers that wait for metadata."""
        self._end_query()
        self._metadata.record_update_failure(now_ms)
        self._metadata.set_fatal_error(error)

    def _end_query(self) -> None:
        self._query = None
        self._sent_ms_by_node.clear()

    def handle_disconnection(self, now_ms: float, fatal_error: KafkaSinkError | None = None) -> None:
        """Request an update after the loss of a connection, because the metadata may be stale.

        `fatal_error`: the error to raise in all callers that wait for metadata; None if they should keep waiting.
        """
        if self.is_due(now_ms):
            # The client may have been about to send the query to the lost node. Without a backoff, it would try nodes
            # in a tight loop.
            self._metadata.record_update_failure(now_ms)
        if fatal_error is not None:
            self._metadata.set_fatal_error(fatal_error)
        self._metadata.request_update()

    def request_rebootstrap(self) -> None:
        """Make `needs_rebootstrap` return True from now on, if metadata.recovery.strategy allows a rebootstrap."""
        self._rebootstrap_policy.record_demand()

    def needs_rebootstrap(self, now_ms: float) -> bool:
        """Return whether an update is overdue or a broker demands a rebootstrap, and the client may rebootstrap."""
        return self._rebootstrap_policy.needs_rebootstrap(now_ms)

    def rebootstrap(self, now_ms: float) -> bool:
        """Go back to the bootstrap servers if metadata.recovery.strategy allows it. Return whether it does."""
        if self._rebootstrap_policy.is_allowed:
            self._metadata.rebootstrap()
            self._rebootstrap_policy.record_rebootstrap(now_ms)
        return self._rebootstrap_policy.is_allowed


def get_metadata_query(request: ClientRequest) -> MetadataQuery:
    """Return the query that the client's own metadata request was built from."""
    assert isinstance(request.tag, MetadataQuery)
    return request.tag
