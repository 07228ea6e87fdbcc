"""The request for metadata that is under way, which brokers have it, and when the known brokers are given up.

A suspended broker takes the request and does not answer. The client does not wait until request.timeout.ms: after a
second without a sign of life it sends the same request to another broker, and the first answer counts. Each further
broker is asked after twice the time, which stays so long until answers are quick again: a cluster that is slow is not
asked twice.

Every known broker may be gone: all were replaced, or a name now leads elsewhere. Then only the configured addresses can
help (KIP-899). The client goes back to them when no known broker can be tried, when no answer came for
metadata.recovery.rebootstrap.trigger.ms although one was wanted, and when a broker demands it (KIP-1102).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from spark_kafka_sink.client.config import REBOOTSTRAP, ClientConfig
from spark_kafka_sink.client.metadata import Metadata, MetadataQuery
from spark_kafka_sink.client.node_choice import SUSPICIOUS_MS
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse

_log = logging.getLogger(__name__)


class MetadataFetch:
    """Sender thread only."""

    def __init__(self, metadata: Metadata, config: ClientConfig) -> None:
        self._metadata = metadata
        self._may_rebootstrap = config.metadata_recovery_strategy == REBOOTSTRAP
        self._trigger_ms = config.metadata_recovery_rebootstrap_trigger_ms
        self._query: MetadataQuery | None = None
        self._asked: dict[int, float] = {}  # who owes an answer to it, and since when; the last one at the end
        self._patience_ms = SUSPICIOUS_MS
        self._wanted_since_ms = math.inf
        """Since when an answer is wanted and has not come; -inf: a broker has sent us away."""

    def is_due(self, now: float) -> bool:
        return self._query is None and self._metadata.time_to_next_update(now) <= 0

    def wait_ms(self, now: float, heard_ms: Mapping[int, float]) -> float:
        """How long nothing is to be done, as far as is known now. `heard_ms`: the nodes' last signs of life."""
        if not self._asked:
            return self._metadata.time_to_next_update(now)
        node_id, since_ms = next(reversed(self._asked.items()))
        return max(since_ms, heard_ms.get(node_id, since_ms)) + self._patience_ms - now

    def has_asked(self, node_id: int) -> bool:
        """Does the node owe an answer to the question that is under way?"""
        return node_id in self._asked

    def wanted(self, now: float) -> None:
        """An update is due, and the client is looking for a broker that can answer."""
        self._wanted_since_ms = min(self._wanted_since_ms, now)

    def ask(self, node_id: int, now: float) -> MetadataQuery:
        """The request for this node: a new one, or the one that the other nodes have not answered."""
        if self._query is None:
            self._query = self._metadata.new_query(now)
        if self._asked:  # those say nothing, and are given up after request.timeout.ms: this does not grow much further
            self._patience_ms *= 2
        self._asked[node_id] = now
        return self._query

    def answered(self, node_id: int, query: MetadataQuery, answer: MetadataResponse, version: int, now: float) -> None:
        """Take the answer to this question, unless another node was quicker."""
        if query is not self._query:
            return
        if now - self._asked[node_id] < SUSPICIOUS_MS:
            self._patience_ms = SUSPICIOUS_MS
        self._end()
        if answer.error_code == error_codes.REBOOTSTRAP_REQUIRED:
            self.demand_rebootstrap()
            self._metadata.update_failed(now, "A broker answered that its clients must begin again elsewhere.")
        elif answer.error_code != error_codes.NONE:
            name = error_code(answer.error_code).name
            _log.warning("Metadata was refused with %s", name)
            self._metadata.update_failed(now, f"A broker answered, but refused metadata with {name}.")
        elif not answer.brokers:
            # A broker that is starting up knows no other broker yet.
            self._metadata.update_failed(now, "A broker answered, but its answer names no broker.")
        else:
            self._metadata.update(query, answer, version, now)
            self._wanted_since_ms = math.inf

    def lost(self, node_id: int, query: MetadataQuery, now: float) -> None:
        """This node will not answer the question. Others that were asked may."""
        if query is self._query:
            del self._asked[node_id]
            if not self._asked:
                self._end()
                self._metadata.update_failed(now)

    def refused(self, now: float, fatal: KafkaSinkError) -> None:
        """The question could not be sent at all."""
        self._end()
        self._metadata.update_failed(now)
        self._metadata.fatal_error(fatal)

    def _end(self) -> None:
        self._query = None
        self._asked.clear()

    def disconnected(self, now: float, fatal: KafkaSinkError | None = None) -> None:
        """Some connection is lost: perhaps what we know is out of date."""
        if self.is_due(now):
            # The lost node may have been asked. Without a pause the next one would be tried in a tight loop.
            self._metadata.update_failed(now)
        if fatal is not None:
            self._metadata.fatal_error(fatal)
        self._metadata.request_update()

    def demand_rebootstrap(self) -> None:
        self._wanted_since_ms = -math.inf

    def needs_rebootstrap(self, now: float) -> bool:
        return self._may_rebootstrap and now - self._wanted_since_ms > self._trigger_ms

    def rebootstrap(self, now: float) -> bool:
        """Back to the configured addresses, if that is allowed."""
        if self._may_rebootstrap:
            self._metadata.rebootstrap()
            self._wanted_since_ms = now
        return self._may_rebootstrap
