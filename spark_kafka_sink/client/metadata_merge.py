"""Merge of a Metadata response and the previous cluster snapshot into a new snapshot. The previous one is not modified.

Brokers learn of a new leader one after another, so a response may be older than the snapshot. As long as the topic id
stays the same, a partition keeps its previous state if the response has a lower leader epoch. A topic that was deleted
and recreated has a new id, and its epochs are not compared with those of the deleted topic.

A topic with a retriable error, for example during a leader election, keeps its known partitions. A topic that does not
exist, is not authorized or has an invalid name loses them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from spark_kafka_sink.client.cluster import NO_TOPIC_ID, ClusterSnapshot, Node, PartitionInfo, TopicInfo
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

MIN_VERSION_WITH_RELIABLE_EPOCHS = 9
"""The first Metadata version with reliable leader epochs. Older brokers may return a stale leader with a new epoch
(KAFKA-9212)."""

MAX_PARTITIONS = 1_000_000
"""Partition indices must be below this limit, which bounds the size of arrays with one element per index.

Even a whole cluster has fewer partitions.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """A partition's current leader, as reported by a broker that is no longer the leader (KIP-951)."""

    topic: str
    topic_id: UUID | None
    """The id of the topic that the broker no longer leads; None if it is unknown."""
    partition: int
    leader_id: int
    leader_epoch: int


class KnownEpoch(NamedTuple):
    """The latest known leader epoch of a partition, with the topic's id."""

    topic_id: UUID
    epoch: int


Epochs = dict[tuple[str, int], KnownEpoch]
"""Known epochs by topic name and partition index."""


@dataclass(frozen=True)
class MergeResult:
    """The new snapshot and epochs, and whether a further metadata update is needed."""

    snapshot: ClusterSnapshot
    epochs: Epochs = field(default_factory=dict)
    has_changes: bool = False
    """Whether a partition of the response is new, has a different epoch, or has no epoch to compare."""
    needs_refresh: bool = False
    """Whether a topic or partition has an error that requires a further update."""


def merge_response(
    old_snapshot: ClusterSnapshot,
    known_epochs: Mapping[tuple[str, int], KnownEpoch],
    response: MetadataResponse,
    *,
    version: int,
    is_partial: bool,
    is_in_use: Callable[[str], bool],
) -> MergeResult:
    """Build a new snapshot from the old one and a metadata response.

    `version`: the version of the response.
    `is_partial`: True if the response covers only new topics. Known topics that are still in use are then carried over.
    `is_in_use`: returns whether a topic is still in use.
    """
    merge = _Merge(old_snapshot, known_epochs, version)
    topics: dict[str, TopicInfo] = {}
    if is_partial:
        topics = {name: topic for name, topic in old_snapshot.topics.items() if is_in_use(name)}
    for topic in response.topics:
        name = topic.name
        if name is None:  # only possible in responses to requests that name topics by id
            continue
        topics.pop(name, None)
        if is_in_use(name):
            topics[name] = merge.merge_topic(name, topic)
    snapshot = ClusterSnapshot(
        nodes={
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
        },
        topics=topics,
        controller_id=response.controller_id if response.controller_id >= 0 else None,
        cluster_id=None if response.cluster_id is None else sanitize(response.cluster_id),
    )
    epochs = {(name, index): epoch for (name, index), epoch in merge.epochs.items() if is_in_use(name)}
    return MergeResult(snapshot, epochs, merge.has_changes, merge.needs_refresh)


class _Merge:
    """Merges the topics of one response, one after another, and collects the epochs and flags of the MergeResult."""

    def __init__(
        self, old_snapshot: ClusterSnapshot, known_epochs: Mapping[tuple[str, int], KnownEpoch], version: int
    ) -> None:
        self.epochs: Epochs = dict(known_epochs)
        self.has_changes = False
        self.needs_refresh = False
        self._old_snapshot = old_snapshot
        self._version = version

    def merge_topic(self, name: str, topic: MetadataResponseTopic) -> TopicInfo:
        """Return the topic's new state, which depends on its old one if the response has an error for the topic."""
        known_topic = self._old_snapshot.topics.get(name)
        error = lookup_error_code(topic.error_code)
        if error.requires_metadata_refresh:
            self.needs_refresh = True
        if topic.error_code == error_codes.NONE:
            partitions = tuple(
                self._merge_partition(name, topic.topic_id, partition)
                for partition in _select_valid_partitions(name, topic)
            )
            return TopicInfo(name, topic.topic_id, error_codes.NONE, partitions, is_internal=topic.is_internal)
        is_new_error = known_topic is None or known_topic.error_code != topic.error_code
        level = logging.WARNING if is_new_error else logging.DEBUG
        _log.log(level, "Metadata of topic %s: %s. %s", name, error.name, error.advice)
        # Keep the known partitions during a transient error, unless the topic may have been deleted.
        may_be_deleted = topic.error_code in error_codes.UNKNOWN_TOPIC_ERRORS
        if known_topic is not None and error.retriable and not may_be_deleted:
            return replace(known_topic, error_code=topic.error_code)
        return TopicInfo(name, topic.topic_id, topic.error_code)

    def _merge_partition(self, name: str, topic_id: UUID, partition: MetadataResponsePartition) -> PartitionInfo:
        """Return the partition from the response, or the old one if the response has a lower leader epoch."""
        if lookup_error_code(partition.error_code).requires_metadata_refresh:
            self.needs_refresh = True
        new_partition = _build_partition_info(name, partition, self._version)
        key = name, new_partition.index
        leader_epoch = new_partition.leader_epoch
        if leader_epoch is None:
            # The broker is old or sent no epoch, so there is nothing to compare later responses with.
            self.epochs.pop(key, None)
            self.has_changes = True
            return new_partition
        known_epoch = self.epochs.get(key)
        if known_epoch is not None and topic_id == NO_TOPIC_ID:
            topic_id = known_epoch.topic_id  # a broker that is not upgraded yet sends no ids
        elif known_epoch is not None and topic_id != known_epoch.topic_id:
            # The topic was recreated, so its epochs have started again. If it had no id before, the brokers have been
            # upgraded since, and the topic may have been recreated as well.
            known_epoch = None
        if known_epoch is not None and leader_epoch < known_epoch.epoch:
            old_partition = self._old_snapshot.partition(name, new_partition.index)
            if old_partition is not None:
                # The broker that sent the response does not know the current leader yet, and names a previous one.
                _log.debug("%s-%d: epoch %d is older than %d", *key, leader_epoch, known_epoch.epoch)
                return old_partition
        if known_epoch is None or leader_epoch != known_epoch.epoch:
            self.has_changes = True
        self.epochs[key] = KnownEpoch(topic_id, leader_epoch)
        return new_partition


def _select_valid_partitions(name: str, topic: MetadataResponseTopic) -> list[MetadataResponsePartition]:
    """Return the topic's partitions sorted by index. Drop duplicates and out-of-range indices."""
    partitions_by_index = {partition.partition_index: partition for partition in topic.partitions}
    valid_indices = [index for index in sorted(partitions_by_index) if 0 <= index < MAX_PARTITIONS]
    invalid_count = len(partitions_by_index) - len(valid_indices)
    if invalid_count:
        _log.warning("Metadata of topic %s: ignored %d partitions out of range", name, invalid_count)
    return [partitions_by_index[index] for index in valid_indices]


def is_other_topic(known_id: UUID, new_id: UUID) -> bool:
    """Return whether the topic was deleted and recreated under the same name.

    Brokers older than Kafka 2.8 send no topic ids, so with such brokers a topic always counts as the same.
    """
    return NO_TOPIC_ID not in (known_id, new_id) and known_id != new_id


def _build_partition_info(name: str, partition: MetadataResponsePartition, version: int) -> PartitionInfo:
    """Convert a partition of a response. Replace the protocol's -1, and epochs that are not reliable, with None."""
    has_reliable_epoch = version >= MIN_VERSION_WITH_RELIABLE_EPOCHS and partition.leader_epoch >= 0
    return PartitionInfo(
        name,
        partition.partition_index,
        partition.leader_id if partition.leader_id >= 0 else None,
        partition.leader_epoch if has_reliable_epoch else None,
        tuple(partition.replica_nodes),
        partition.error_code,
    )
