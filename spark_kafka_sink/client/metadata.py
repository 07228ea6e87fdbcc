"""Metadata: the topics in use, the cluster's latest snapshot, and the schedule of metadata updates.

User threads add topics and wait until their metadata arrives. The sender thread requests metadata when
`time_to_next_update_ms` reaches zero, and applies the responses. The snapshot is immutable and can be read without a
lock. `_lock` guards updates of all other state, and `_update_condition` is notified of every applied response.

An update is due when:

- A topic was added. This update is partial: it requests only the new topics, so its cost does not depend on the number
  of known topics.
- A full update was requested, or the last full update is metadata.max.age.ms old.

An update also waits until the backoff after the last attempt has ended (metadata_backoff.py). A new topic skips the
backoff. A request with `reset_backoff` skips it only if the last attempt succeeded.

A fatal error, such as rejected credentials or a broker that is too old, fails all current waits, and any later wait
fails immediately. It does not affect the schedule: the sender keeps retrying, and the error is cleared as soon as a
response can be applied.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff, lock_timeout_seconds
from spark_kafka_sink.client.bootstrap import resolve_bootstrap_nodes
from spark_kafka_sink.client.client_request import ConnectionLoss
from spark_kafka_sink.client.cluster import (
    ClusterSnapshot,
    Node,
    PartitionInfo,
    build_bootstrap_snapshot,
    replace_partitions,
)
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata_backoff import MetadataBackoff
from spark_kafka_sink.client.metadata_merge import Epochs, KnownEpoch, LeaderHint, is_other_topic, merge_response
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import (
    IllegalStateError,
    InvalidRecordError,
    KafkaSinkError,
    MetadataTimeoutError,
    ProducerClosedError,
)
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.codecs import MAX_STRING_BYTES, is_encodable_string
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

MAX_REPORTED_ADDRESSES = 16
"""The maximum number of failed addresses in an error message. The latest failures are kept."""

FINAL_TOPIC_ERRORS = frozenset({error_codes.INVALID_TOPIC_EXCEPTION, error_codes.TOPIC_AUTHORIZATION_FAILED})
"""Topic errors for which waiting does not help."""

UNREACHABLE_REMEDY = "Check the host and port, that a broker listens there, and that no firewall blocks the connection."
"""The remedy if the peer had not responded. The reason says if the listener may expect another protocol."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetadataQuery:
    """The contents of a metadata request, which `Metadata.update` needs again to apply the response."""

    topics: tuple[str, ...]
    is_partial: bool
    """Whether the query covers only the new topics, rather than all topics in use."""
    new_topics_version: int
    """The version of the set of new topics. Topics that are added later need a new query."""
    allow_auto_topic_creation: bool

    def build_request(self) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in self.topics],
            allow_auto_topic_creation=self.allow_auto_topic_creation,
        )


class Metadata:
    """The topics in use, the cluster's latest snapshot, and the schedule of metadata updates. Thread-safe.

    `nodes`: the bootstrap nodes, which are the snapshot's only nodes until the first response.
    `allow_auto_topic_creation`: whether a request for a missing topic lets the broker create it.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        config: ClientConfig,
        *,
        system: System,
        rng: Random | None = None,
        allow_auto_topic_creation: bool = True,
    ) -> None:
        self.snapshot: ClusterSnapshot = build_bootstrap_snapshot(nodes)
        """The latest snapshot. It is replaced on updates but never modified."""
        self._bootstrap_nodes = tuple(nodes)
        self._max_age_ms = config.metadata_max_age_ms
        self._max_idle_ms = config.metadata_max_idle_ms
        retry_backoff = ExponentialBackoff(
            config.retry_backoff_ms, config.retry_backoff_max_ms, rng if rng is not None else Random()
        )
        self._backoff = MetadataBackoff(retry_backoff)
        self._system = system
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._lock = threading.RLock()
        self._update_condition = threading.Condition(self._lock)
        self._topic_expiry_ms: dict[str, float] = {}  # topic in use -> when it expires unless it is used again
        self._new_topics: set[str] = set()  # topics that have not been in any response yet
        self._new_topics_version = 0  # incremented when a new topic is added
        self._epochs: Epochs = {}
        self._update_version = 0  # number of responses applied so far
        self._is_full_update_requested = True
        self._is_partial_update_requested = False
        self._last_full_update_ms = -math.inf  # -inf if there was none
        self._fatal_error: KafkaSinkError | None = None
        self._address_failures: dict[str, ConnectionLoss] = {}  # by address, since the last response
        self._omitted_topics: set[str] = set()  # topics that were requested last time but missing from the response
        self._response_problem = ""  # why the last response could not be applied; empty if it could
        self._node_failures: dict[int, ConnectionLoss] = {}  # by node id, until the node connects again
        self._is_closed = False

    # --- topics and waiting (any thread)

    @property
    def version(self) -> int:
        """The number of responses applied so far."""
        return self._update_version

    def age_ms(self, now_ms: float) -> float:
        """Return the milliseconds since the last full update; nan if there was none."""
        return now_ms - self._last_full_update_ms if self._last_full_update_ms > -math.inf else math.nan

    @property
    def topics(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._topic_expiry_ms)

    def contains_topic(self, topic: str) -> bool:
        with self._lock:
            return topic in self._topic_expiry_ms

    def add_topic(self, topic: str, now_ms: float) -> None:
        """Record that the topic is in use, so that its metadata is kept for metadata.max.idle.ms from now.

        A new topic makes an update due at once. Raise InvalidRecordError if the name cannot be encoded.
        """
        _check_topic_name(topic)
        with self._lock:
            is_new = topic not in self._topic_expiry_ms
            self._topic_expiry_ms[topic] = now_ms + self._max_idle_ms
            if is_new:
                self._new_topics.add(topic)
                self._new_topics_version += 1
                self._is_partial_update_requested = True
                self._backoff = self._backoff.skip()

    def request_update(self, *, reset_backoff: bool = False) -> int:
        """Request a full update. Return the current version; the update will have a higher one.

        `reset_backoff`: True if there is a new reason for the update, which is then due at once, unless the last
        attempt failed. False if the caller may only be repeating its request, because the last response contained
        nothing new.
        """
        with self._lock:
            self._is_full_update_requested = True
            if reset_backoff:
                has_failed = self._backoff.failure_count > 0
                self._backoff = self._backoff.restart() if has_failed else self._backoff.skip()
            return self._update_version

    def request_update_for_topic(self, topic: str) -> int:
        """Request an update after the backoff, because the last response did not contain what the caller needs.

        Return the current version; the update will have a higher one.
        """
        with self._lock:
            if topic not in self._new_topics:
                return self.request_update()
            self._is_partial_update_requested = True
            return self._update_version

    def await_update(self, last_version: int, timeout_ms: float) -> None:
        """Wait for a metadata update newer than `last_version`.

        The update may cover only topics that other callers have requested, so the caller may have to wait again.

        Raise MetadataTimeoutError after `timeout_ms`, ProducerClosedError after `close`, or the client's fatal error,
        if there is one.
        """
        deadline_ms = self._system.now() + timeout_ms
        with self._lock:
            while True:
                if self._is_closed:
                    raise ProducerClosedError(
                        "The client was closed while this call waited for metadata."
                    ) from self._fatal_error
                self.raise_if_fatal()
                if self._update_version > last_version:
                    return
                remaining_ms = deadline_ms - self._system.now()
                if remaining_ms <= 0:
                    cause = self._describe_connection_failures()
                    raise MetadataTimeoutError(f"no metadata from any broker within {timeout_ms:.0f} ms. {cause}")
                self._update_condition.wait(lock_timeout_seconds(remaining_ms))

    def raise_if_fatal(self) -> None:
        """Raise the fatal error, if there is one."""
        error = self._fatal_error
        if error is not None:
            raise error.with_traceback(None)  # drop the traceback, which would grow with each raise

    def topic_error(self, topic: str) -> KafkaSinkError | None:
        """Return the topic's error in the latest response about the topic, or None."""
        info = self.snapshot.topics.get(topic)
        if info is None or info.error_code == error_codes.NONE:
            return None
        return build_broker_error(info.error_code, destination=format_partition(topic))

    def raise_for_topic(self, topic: str) -> None:
        """Raise the topic's error in the latest response if it is one for which waiting does not help."""
        info = self.snapshot.topics.get(topic)
        if info is not None and info.error_code in FINAL_TOPIC_ERRORS:
            raise build_broker_error(info.error_code, destination=format_partition(topic))

    @property
    def has_connection_failures(self) -> bool:
        """Whether a connection has failed since a response was last applied."""
        return bool(self._address_failures)

    def describe_connection_failures(self) -> str:
        """Describe why metadata could not be updated.

        The description lists the connections that have failed since a response was last applied. If there are none, it
        says why the latest response could not be applied.
        """
        with self._lock:
            return self._describe_connection_failures()

    def describe_missing_metadata(self, topic: str) -> str:
        """Explain why there is no metadata for the topic, not even an error."""
        with self._lock:
            if topic in self._omitted_topics:
                return "Brokers responded, but their response does not contain this topic."
            return self._describe_connection_failures()

    def connection_failure(self, node_id: int) -> ConnectionLoss | None:
        """Return why the last connection to the node failed, even if other brokers have responded since."""
        return self._node_failures.get(node_id)

    # --- updates (sender thread)

    def time_to_next_update_ms(self, now_ms: float) -> float:
        """Return the milliseconds until the next update is due, and restart the backoff once the metadata expires.

        This is called several times per request, so it reads the fields without the lock. A stale value is harmless: a
        thread that requests an update wakes up the client afterwards, and the client then calls this method again.
        """
        until_expiry_ms = max(self._last_full_update_ms + self._max_age_ms - now_ms, 0.0)
        if until_expiry_ms == 0 and self._backoff.unchanged_response_count:
            self._restart_backoff_after_expiry()
        is_requested = self._is_full_update_requested or self._is_partial_update_requested
        until_due_ms = 0.0 if is_requested else until_expiry_ms
        until_backoff_ends_ms = self._backoff.ends_at_ms - now_ms
        return max(until_due_ms, until_backoff_ends_ms)

    def _restart_backoff_after_expiry(self) -> None:
        """Restart the backoff, because the metadata has reached metadata.max.age.ms.

        Earlier responses that contained nothing new must not delay the update that is now due.
        """
        with self._lock:
            self._backoff = self._backoff.restart()

    def build_query(self, now_ms: float) -> MetadataQuery:
        """Build a partial query for the new topics, unless a full update has been requested or has become due."""
        with self._lock:
            expires_at_ms = self._last_full_update_ms + self._max_age_ms
            is_partial = not self._is_full_update_requested and now_ms < expires_at_ms
            topics = self._new_topics if is_partial else self._topic_expiry_ms
            return MetadataQuery(tuple(topics), is_partial, self._new_topics_version, self._allow_auto_topic_creation)

    def update(self, query: MetadataQuery, response: MetadataResponse, version: int, now_ms: float) -> None:
        """Apply the response to a query and wake up waiting threads."""
        with self._lock:
            if self._is_closed:
                raise IllegalStateError("a metadata response after close()")
            self._complete_requests(query, response, now_ms)
            # Remove idle topics before the merge, because the merge drops the state of topics that are not in use.
            self._remove_idle_topics(now_ms)
            has_changes = self._apply_response(query, response, version)
            self._backoff = self._backoff.after_response(now_ms, has_changes=has_changes)
            if self._is_partial_update_requested:  # topics were added after the request had been built
                self._backoff = self._backoff.skip()
            self._clear_errors()
            self._update_version += 1
            self._update_condition.notify_all()

    def record_update_failure(self, now_ms: float, problem: str = "") -> None:
        """Record that an update failed, and back off.

        `problem`: why the response cannot be applied; empty if there was no response.
        """
        with self._lock:
            self._response_problem = problem or self._response_problem
            self._backoff = self._backoff.after_failure(now_ms)

    def update_leaders(self, hints: Iterable[LeaderHint], nodes: Iterable[Node]) -> set[tuple[str, int]]:
        """Apply each hint that has a newer leader epoch than the known one, if its leader is a known node.

        `hints`: at most one per partition, because each hint is compared with the epoch known before this call.
        `nodes`: nodes to add to the known ones.

        Return the changed (topic, partition) pairs.
        """
        with self._lock:
            snapshot = self.snapshot
            known_nodes = {**snapshot.nodes, **{node.id: node for node in nodes}}
            usable_hints = [hint for hint in hints if hint.leader_id in known_nodes]
            candidates = [self._build_updated_partition(snapshot, hint) for hint in usable_hints]
            changed_partitions = [partition for partition in candidates if partition is not None]
            if not changed_partitions:
                return set()
            topics = dict(snapshot.topics)
            for partition in changed_partitions:
                topic = topics[partition.topic]
                topics[partition.topic] = replace_partitions(topic, [partition])
                assert partition.leader_epoch is not None  # taken from the hint
                self._epochs[partition.topic, partition.index] = KnownEpoch(topic.topic_id, partition.leader_epoch)
            self.snapshot = replace(snapshot, nodes=known_nodes, topics=topics)
            return {(partition.topic, partition.index) for partition in changed_partitions}

    def bootstrap(self, nodes: Sequence[Node]) -> None:
        """Set the bootstrap servers once their names have been resolved, and make the next update due at once."""
        with self._lock:
            self._bootstrap_nodes = tuple(nodes)
            self.snapshot = build_bootstrap_snapshot(nodes)
            self._response_problem = ""
            self._backoff = self._backoff.reset()

    def rebootstrap(self) -> None:
        """Replace the known brokers with the bootstrap servers. Keep the epochs and the topics in use."""
        with self._lock:
            if not self.snapshot.is_bootstrap:
                _log.info("Bootstrapped again from %s", [*map(str, self._bootstrap_nodes)])
            self.snapshot = build_bootstrap_snapshot(self._bootstrap_nodes)
            self._is_full_update_requested = True

    def set_fatal_error(self, error: KafkaSinkError) -> None:
        """Fail all current and later waits with this error, until a response can be applied."""
        with self._lock:
            self._fatal_error = error
            self._update_condition.notify_all()

    def record_connection_failure(self, node_id: int, address: str, loss: ConnectionLoss) -> None:
        """Record why a connection failed, for error messages."""
        with self._lock:
            self._node_failures[node_id] = loss
            self._address_failures.pop(address, None)  # the dict is ordered by the time of each address's last failure
            self._address_failures[address] = loss
            if len(self._address_failures) > MAX_REPORTED_ADDRESSES:
                del self._address_failures[next(iter(self._address_failures))]

    def clear_connection_failure(self, node_id: int) -> None:
        """Forget the node's last connection failure."""
        with self._lock:
            self._node_failures.pop(node_id, None)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._update_condition.notify_all()

    # --- helpers (with _lock held)

    def _complete_requests(self, query: MetadataQuery, response: MetadataResponse, now_ms: float) -> None:
        """Clear the requests for updates that this response fulfills, and record the topics that it omits."""
        response_topics = {topic.name for topic in response.topics if topic.name is not None}
        self._new_topics -= response_topics
        self._omitted_topics = (self._omitted_topics | set(query.topics)) - response_topics
        # Topics that were added after the query was built need a new query. Topics that the response has omitted do
        # not make an update due: their callers request one after a backoff.
        has_newer_topics = query.new_topics_version < self._new_topics_version
        self._is_partial_update_requested = bool(self._new_topics) and has_newer_topics
        if not query.is_partial:
            self._is_full_update_requested = False
            self._last_full_update_ms = now_ms

    def _apply_response(self, query: MetadataQuery, response: MetadataResponse, version: int) -> bool:
        """Replace the snapshot and the epochs. Return whether the response contained anything new."""
        result = merge_response(
            self.snapshot,
            self._epochs,
            response,
            version=version,
            is_partial=query.is_partial,
            is_in_use=self._topic_expiry_ms.__contains__,
        )
        if result.snapshot.cluster_id != self.snapshot.cluster_id:
            _log.info("Cluster id: %s", result.snapshot.cluster_id)
        self.snapshot = result.snapshot
        self._epochs = result.epochs
        self._is_full_update_requested |= result.needs_refresh
        return result.has_changes

    def _clear_errors(self) -> None:
        """Forget errors, because an applied response proves that the client can use the cluster."""
        self._fatal_error = None
        self._response_problem = ""
        self._address_failures.clear()
        self._node_failures = {
            node_id: loss for node_id, loss in self._node_failures.items() if node_id in self.snapshot.nodes
        }

    def _remove_idle_topics(self, now_ms: float) -> None:
        """Drop the topics that have not been used for metadata.max.idle.ms, except new topics."""
        idle_topics = [
            name
            for name, expiry_ms in self._topic_expiry_ms.items()
            if expiry_ms <= now_ms and name not in self._new_topics
        ]
        for topic in idle_topics:
            _log.debug("Removed topic %s from the metadata: unused for metadata.max.idle.ms", topic)
            del self._topic_expiry_ms[topic]
        self._omitted_topics &= self._topic_expiry_ms.keys()

    def _build_updated_partition(self, snapshot: ClusterSnapshot, hint: LeaderHint) -> PartitionInfo | None:
        """Return the partition with the hint's leader.

        Return None if the partition is unknown, or if the hint has no leader or no newer epoch than the known one. Also
        return None if the topic was recreated since the request that the hint belongs to, because its epochs have
        started again.
        """
        known_partition = snapshot.partition(hint.topic, hint.partition)
        if known_partition is None or hint.leader_id < 0 or hint.leader_epoch < 0:
            return None
        if hint.topic_id is not None and is_other_topic(hint.topic_id, snapshot.topics[hint.topic].topic_id):
            return None
        known_epoch = self._epochs.get((hint.topic, hint.partition))
        if known_epoch is not None and hint.leader_epoch <= known_epoch.epoch:
            return None
        return replace(known_partition, leader=hint.leader_id, leader_epoch=hint.leader_epoch)

    def _describe_connection_failures(self) -> str:
        if not self._address_failures:
            return self._response_problem or "No broker has responded, and no connection has failed either."
        failures = "; ".join(f"{address}: {loss.detail}" for address, loss in self._address_failures.items())
        remedies = dict.fromkeys(loss.suggest_remedy(UNREACHABLE_REMEDY) for loss in self._address_failures.values())
        return f"Tried: {failures.rstrip('.')}. {' '.join(remedies)}"


def _check_topic_name(topic: str) -> None:
    """Raise InvalidRecordError if the name cannot be encoded. Brokers validate all other names.

    A name that cannot be encoded would make every metadata request fail, including requests about other topics.
    """
    if not is_encodable_string(topic):
        raise InvalidRecordError(
            f"topic {topic[:40]!a}: a topic name must be text of at most {MAX_STRING_BYTES} bytes in UTF-8"
        )


def create_metadata(
    config: ClientConfig, *, system: System, rng: Random | None = None, allow_auto_topic_creation: bool = True
) -> Metadata:
    """Create Metadata whose snapshot contains the bootstrap servers.

    Raise ConfigurationError if no bootstrap server's name can be resolved. If bootstrap.resolve.timeout.ms is set, the
    names are not resolved yet, and the snapshot has no nodes.
    """
    nodes: tuple[Node, ...] = ()
    if not config.bootstrap_resolve_timeout_ms:
        nodes = resolve_bootstrap_nodes(config.bootstrap_servers, config.client_dns_lookup, system)
    return Metadata(nodes, config, system=system, rng=rng, allow_auto_topic_creation=allow_auto_topic_creation)
