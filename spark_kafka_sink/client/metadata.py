"""Metadata: which topics are wanted, what is known of them, and when to ask again.

Two threads meet here. A user's thread says which topics it writes to and waits until they are known; the sender thread
asks brokers when `time_to_next_update` says so, and hands the answers in. What is known is one immutable snapshot, read
without a lock; everything else is guarded by _lock, and `_changed` is notified of every answer.

When to ask. At once for a new topic, and then only for the new ones (a partial update, cheap however many topics there
are). Otherwise when asked to, or when the last full update is metadata.max.age.ms old; but never sooner than
retry.backoff.ms after the last attempt, and exponentially later while attempts fail, or while answers have nothing new
although the last one was not enough for a caller.

A fatal error (credentials that no broker takes, a broker that is too old) ends every wait at once, also those that
begin later, until an answer comes after all: the sender goes on trying in its own time.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff, wait_seconds
from spark_kafka_sink.client.bootstrap import bootstrap_nodes
from spark_kafka_sink.client.cluster import ClusterSnapshot, Node, PartitionInfo, bootstrap_snapshot, with_partitions
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata_merge import Epochs, LeaderHint, SeenEpoch, merge_answer
from spark_kafka_sink.errors import (
    IllegalStateError,
    InvalidRecordError,
    KafkaSinkError,
    MetadataTimeoutError,
    ProducerClosedError,
)
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.codecs import STRING_BYTES_MAX, is_writable
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.words import placed

ADDRESSES_REMEMBERED = 16
"""At most this many of the addresses that could not be reached are named in an error: the latest ones."""

FINAL_TOPIC_ERRORS = frozenset({error_codes.INVALID_TOPIC_EXCEPTION, error_codes.TOPIC_AUTHORIZATION_FAILED})
"""To wait for such a topic is of no use."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetadataQuery:
    """One request for metadata, and what its answer will settle."""

    topics: tuple[str, ...]
    partial: bool
    new_topics_seen: int
    allow_auto_topic_creation: bool

    def request(self) -> MetadataRequest:
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in self.topics],
            allow_auto_topic_creation=self.allow_auto_topic_creation,
        )


class Metadata:
    def __init__(
        self,
        nodes: Sequence[Node],
        config: ClientConfig,
        *,
        system: System,
        random: Random | None = None,
        allow_auto_topic_creation: bool = True,
    ) -> None:
        self.snapshot: ClusterSnapshot = bootstrap_snapshot(nodes)
        """The latest; replaced as a whole."""
        self._bootstrap_nodes = tuple(nodes)
        self._max_age_ms = config.metadata_max_age_ms
        self._max_idle_ms = config.metadata_max_idle_ms
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms, config.retry_backoff_max_ms, random if random is not None else Random()
        )
        self._system = system
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._topics: dict[str, float] = {}  # the wanted ones, and when each is forgotten unless it is used again
        self._new_topics: set[str] = set()  # those that are in no answer yet
        self._new_topics_seen = 0  # grows with each call that adds to them
        self._epochs: Epochs = {}
        self._version = 0
        self._wants_full = True
        self._wants_partial = False
        self._failures = 0
        self._uneventful = 0
        self._last_attempt_ms = -math.inf
        self._last_full_ms = -math.inf
        self._pause_ms = 0.0
        self._fatal: KafkaSinkError | None = None
        self._unreachable: dict[str, str] = {}
        self._left_out: set[str] = set()  # topics that the last answer about them did not mention
        self._useless_answer = ""  # what was wrong with the last answer, if that one was about no topic at all
        self._lost_nodes: dict[int, str] = {}
        self._closed = False

    # --- for those who need a topic (any thread)

    @property
    def version(self) -> int:
        """Grows with every answer."""
        return self._version

    def age_ms(self, now: float) -> float:
        """Since the last answer about everything; nan if there was none."""
        return now - self._last_full_ms if self._last_full_ms > -math.inf else math.nan

    @property
    def topics(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._topics)

    def contains_topic(self, topic: str) -> bool:
        with self._lock:
            return topic in self._topics

    def add_topic(self, topic: str, now: float) -> None:
        """The topic is in use: keep what is known of it for another metadata.max.idle.ms."""
        _check_name(topic)
        with self._lock:
            known = topic in self._topics
            self._topics[topic] = now + self._max_idle_ms
            if not known:
                self._new_topics.add(topic)
                self._new_topics_seen += 1
                self._wants_partial = True
                self._no_pause()

    def request_update(self, *, reset_backoff: bool = False) -> int:
        """Ask again for everything. Returns the version that the answer will exceed. `reset_backoff`: for something
        new, not because the last answer did not help. It is asked at once then, if the last attempt had an answer."""
        with self._lock:
            self._wants_full = True
            if reset_backoff and not self._failures:
                self._no_pause()
            elif reset_backoff:
                self._uneventful = 0
                self._set_pause()
            return self._version

    def request_update_for_topic(self, topic: str) -> int:
        """Ask again, after a pause: the last answer did not help. Returns the version that the answer will exceed."""
        with self._lock:
            if topic not in self._new_topics:
                return self.request_update()
            self._wants_partial = True
            return self._version

    def await_update(self, last_version: int, timeout_ms: float) -> None:
        """Wait for an answer after `last_version`, which need not be about the topic that the caller has in mind."""
        deadline_ms = self._system.now() + timeout_ms
        with self._lock:
            while True:
                if self._closed:
                    raise ProducerClosedError("closed while waiting for metadata") from self._fatal
                self.raise_if_fatal()
                if self._version > last_version:
                    return
                remaining_ms = deadline_ms - self._system.now()
                if remaining_ms <= 0:
                    raise MetadataTimeoutError(
                        f"no metadata from any broker within {timeout_ms:.0f} ms. {self._unreachable_words()}"
                    )
                self._changed.wait(wait_seconds(remaining_ms))

    def raise_if_fatal(self) -> None:
        """Raise what makes it useless to go on, if there is such a thing."""
        fatal = self._fatal
        if fatal is not None:
            raise fatal.with_traceback(None)

    def topic_error(self, topic: str) -> KafkaSinkError | None:
        """Why the topic's partitions are not known, by the last answer about it."""
        info = self.snapshot.topics.get(topic)
        if info is None or info.error_code == error_codes.NONE:
            return None
        return broker_error(info.error_code, placed(topic))

    def raise_for_topic(self, topic: str) -> None:
        """Raise if the last answer gave an error for the topic that waiting does not mend."""
        info = self.snapshot.topics.get(topic)
        if info is not None and info.error_code in FINAL_TOPIC_ERRORS:
            raise broker_error(info.error_code, placed(topic))

    @property
    def has_unreachable(self) -> bool:
        """Has a connection failed since the last answer?"""
        return bool(self._unreachable)

    def unreachable_words(self) -> str:
        """Which addresses were tried since the last answer, and what became of it."""
        with self._lock:
            return self._unreachable_words()

    def unknown_words(self, topic: str) -> str:
        """Why nothing is known of a topic, not even an error: what was answered, or why there was no answer."""
        with self._lock:
            if topic in self._left_out:
                return "Brokers answered, but their answer leaves this topic out."
            return self._unreachable_words()

    def why_unreachable(self, node_id: int) -> str | None:
        """Why the last attempt to reach a broker failed, however often other brokers have answered since."""
        return self._lost_nodes.get(node_id)

    # --- for the network client (sender thread)

    def time_to_next_update(self, now: float) -> float:
        """Milliseconds until the next update is due.

        Without the lock, since each request calls this several times: a thread that wants an update wakes the client
        afterwards.
        """
        to_expiry_ms = max(self._last_full_ms + self._max_age_ms - now, 0.0)
        if to_expiry_ms == 0 and self._uneventful:
            # A refresh after metadata.max.age.ms does not mean that the last answer was not enough.
            with self._lock:
                self._uneventful = 0
                self._set_pause()
        wanted = self._wants_full or self._wants_partial
        return max(0.0 if wanted else to_expiry_ms, self._last_attempt_ms + self._pause_ms - now)

    def new_query(self, now: float) -> MetadataQuery:
        with self._lock:
            partial = not self._wants_full and self._last_full_ms + self._max_age_ms > now
            topics = self._new_topics if partial else self._topics
            return MetadataQuery(tuple(topics), partial, self._new_topics_seen, self._allow_auto_topic_creation)

    def update(self, query: MetadataQuery, answer: MetadataResponse, version: int, now: float) -> None:
        with self._lock:
            if self._closed:
                raise IllegalStateError("an answer about metadata after the end")
            answered = {topic.name for topic in answer.topics if topic.name is not None}
            self._new_topics -= answered
            self._left_out = (self._left_out - answered) | (set(query.topics) - answered)
            self._useless_answer = ""
            self._wants_partial = bool(self._new_topics) and query.new_topics_seen < self._new_topics_seen
            if not query.partial:
                self._wants_full = False
                self._last_full_ms = now
            self._forget_idle_topics(now)
            self._left_out &= self._topics.keys()
            merged = merge_answer(
                self.snapshot,
                self._epochs,
                answer,
                version=version,
                partial=query.partial,
                retain=self._topics.__contains__,
            )
            if merged.snapshot.cluster_id != self.snapshot.cluster_id:
                _log.info("Cluster id: %s", merged.snapshot.cluster_id)
            self.snapshot = merged.snapshot
            self._epochs = merged.epochs
            self._wants_full |= merged.refresh_again
            self._uneventful = 0 if merged.progressed else self._uneventful + 1
            self._failures = 0
            self._last_attempt_ms = now
            self._set_pause()
            if self._wants_partial:  # topics that came after the question
                self._no_pause()
            self._fatal = None
            self._unreachable.clear()
            self._lost_nodes = {node: why for node, why in self._lost_nodes.items() if node in self.snapshot.nodes}
            self._version += 1
            self._changed.notify_all()

    def update_failed(self, now: float, answer: str = "") -> None:
        """No answer, or a useless one, which `answer` then describes: later again, and later each time."""
        with self._lock:
            self._useless_answer = answer or self._useless_answer
            self._last_attempt_ms = now
            self._failures += 1
            self._uneventful = 0
            self._set_pause()

    def update_leaders(self, hints: Iterable[LeaderHint], nodes: Iterable[Node]) -> set[tuple[str, int]]:
        """Take over what is newer than the snapshot and complete; returns the partitions that changed."""
        with self._lock:
            snapshot = self.snapshot
            known_nodes = {**snapshot.nodes, **{node.id: node for node in nodes}}
            changed = [
                partition
                for hint in hints
                if hint.leader_id in known_nodes and (partition := self._newer(snapshot, hint)) is not None
            ]
            if not changed:
                return set()
            topics = dict(snapshot.topics)
            for partition in changed:
                topic = topics[partition.topic]
                topics[partition.topic] = with_partitions(topic, [partition])
                assert partition.leader_epoch is not None
                self._epochs[partition.topic, partition.index] = SeenEpoch(topic.topic_id, partition.leader_epoch)
            self.snapshot = replace(snapshot, nodes=known_nodes, topics=topics)
            return {(partition.topic, partition.index) for partition in changed}

    def rebootstrap(self) -> None:
        """Forget the brokers and begin again with the configured addresses; epochs and topics are kept."""
        with self._lock:
            if not self.snapshot.is_bootstrap:
                _log.info("No known broker can be reached: beginning again with %s", [*map(str, self._bootstrap_nodes)])
            self.snapshot = bootstrap_snapshot(self._bootstrap_nodes)
            self._wants_full = True

    def fatal_error(self, error: KafkaSinkError) -> None:
        with self._lock:
            self._fatal = error
            self._changed.notify_all()

    def connection_failed(self, node_id: int, address: str, reason: str) -> None:
        with self._lock:
            self._lost_nodes[node_id] = reason
            self._unreachable.pop(address, None)
            self._unreachable[address] = reason
            if len(self._unreachable) > ADDRESSES_REMEMBERED:
                del self._unreachable[next(iter(self._unreachable))]

    def connected(self, node_id: int) -> None:
        with self._lock:
            self._lost_nodes.pop(node_id, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    # --- parts (with _lock held)

    def _no_pause(self) -> None:
        """Before a question about something new. Later ones about it keep the pause."""
        self._uneventful = 0
        self._last_attempt_ms = -math.inf
        self._set_pause()

    def _forget_idle_topics(self, now: float) -> None:
        idle = [name for name, expires in self._topics.items() if expires <= now and name not in self._new_topics]
        for topic in idle:
            _log.debug("Topic %s was not used for metadata.max.idle.ms: it is no longer refreshed", topic)
            del self._topics[topic]

    def _newer(self, snapshot: ClusterSnapshot, hint: LeaderHint) -> PartitionInfo | None:
        known = snapshot.partition(hint.topic, hint.partition)
        if known is None or hint.leader_id < 0 or hint.leader_epoch < 0:
            return None
        seen = self._epochs.get((hint.topic, hint.partition))
        if seen is not None and hint.leader_epoch <= seen.epoch:
            return None
        return replace(known, leader=hint.leader_id, leader_epoch=hint.leader_epoch)

    def _set_pause(self) -> None:
        # Drawn once per attempt, not per look: else the jitter would let the shortest of many draws win.
        after_failure_ms = self._backoff.after(max(self._failures - 1, 0))
        after_nothing_new_ms = self._backoff.after(self._uneventful - 1) if self._uneventful else 0.0
        self._pause_ms = max(after_failure_ms, after_nothing_new_ms)

    def _unreachable_words(self) -> str:
        if not self._unreachable:
            return self._useless_answer or "No broker has answered, and no connection has failed either."
        each = (
            reason if address in reason else f"{address}: {reason}" for address, reason in self._unreachable.items()
        )
        return "Tried: " + "; ".join(each)


def _check_name(topic: str) -> None:
    """Brokers judge a name that can be written into a request. A name that cannot would end every request for metadata,
    also about the other topics."""
    if not is_writable(topic):
        raise InvalidRecordError(
            f"topic {topic[:40]!a}: a topic's name must be text of at most {STRING_BYTES_MAX} bytes in UTF-8"
        )


def new_metadata(
    config: ClientConfig, *, system: System, random: Random | None = None, allow_auto_topic_creation: bool = True
) -> Metadata:
    """With the addresses of bootstrap.servers; ConfigurationError if none of them can be resolved."""
    nodes = bootstrap_nodes(config.bootstrap_servers, config.client_dns_lookup, system)
    return Metadata(nodes, config, system=system, random=random, allow_auto_topic_creation=allow_auto_topic_creation)
