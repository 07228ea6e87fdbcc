"""What a Metadata answer changes: pure, from the old snapshot and the answer to the new snapshot.

Brokers learn of a new leader one after the other, so an answer may be older than what is known. Leader epochs decide:
for the same topic id, a partition never goes back to a smaller epoch, and the old state of that partition is kept. A
topic that was deleted and created again has a new id, and its epochs begin anew.

A topic with an error keeps the partitions that were known, if waiting can mend the error (a leader is being elected);
a topic that does not exist, may not be seen, or cannot exist, has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from spark_kafka_sink.client.cluster import NO_TOPIC_ID, ClusterSnapshot, Node, PartitionInfo, TopicInfo
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.words import cleaned

RELIABLE_EPOCHS_FROM_VERSION = 9
"""Brokers that do not speak this version may give an old leader together with a new epoch (KAFKA-9212)."""

PARTITIONS_MAX = 1_000_000
"""A whole cluster has fewer. Rows are counted in arrays as long as the highest number of a partition."""

_GONE = frozenset({error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """A broker that was asked in vain says who leads now (KIP-951)."""

    topic: str
    partition: int
    leader_id: int
    leader_epoch: int


class SeenEpoch(NamedTuple):
    """The highest leader epoch that was seen of a partition, and of which topic of that name."""

    topic_id: UUID
    epoch: int


Epochs = dict[tuple[str, int], SeenEpoch]


@dataclass
class Merged:
    """What merge_answer returns: the snapshot, all epochs seen, and what follows for the next refresh."""

    snapshot: ClusterSnapshot
    epochs: Epochs = field(default_factory=dict)
    progressed: bool = False
    """The answer had something that was not known."""
    refresh_again: bool = False
    """Some leader is unknown for now."""


def merge_answer(
    old: ClusterSnapshot,
    seen: Mapping[tuple[str, int], SeenEpoch],
    answer: MetadataResponse,
    *,
    version: int,
    partial: bool,
    retain: Callable[[str], bool],
) -> Merged:
    """`partial`: the answer is about some topics only, the others stay. `retain`: whether a topic is still wanted."""
    merged = Merged(old, dict(seen))
    topics = {} if not partial else {name: topic for name, topic in old.topics.items() if retain(name)}
    for answered in answer.topics:
        name = answered.name
        if name is None:
            continue
        topics.pop(name, None)
        if retain(name):
            topics[name] = _merge_topic(old, answered, version, merged)
    merged.epochs = {where: epoch for where, epoch in merged.epochs.items() if retain(where[0])}
    merged.snapshot = ClusterSnapshot(
        nodes={
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in answer.brokers
        },
        topics=topics,
        controller_id=answer.controller_id if answer.controller_id >= 0 else None,
        cluster_id=None if answer.cluster_id is None else cleaned(answer.cluster_id),
    )
    return merged


def _merge_topic(old: ClusterSnapshot, answered: MetadataResponseTopic, version: int, merged: Merged) -> TopicInfo:
    name = answered.name or ""
    known = old.topics.get(name)
    error = error_code(answered.error_code)
    if error.refreshes_metadata:
        merged.refresh_again = True
    if answered.error_code == error_codes.NONE:
        partitions = tuple(
            _merge_partition(old, answered, partition, version, merged) for partition in _believed(name, answered)
        )
        return TopicInfo(name, answered.topic_id, error_codes.NONE, partitions, answered.is_internal)
    news = known is None or known.error_code != answered.error_code
    _log.log(logging.WARNING if news else logging.DEBUG, "Metadata of topic %s: %s. %s", name, error.name, error.advice)
    if known is not None and error.retriable and answered.error_code not in _GONE:
        return TopicInfo(name, known.topic_id, answered.error_code, known.partitions, known.internal)
    return TopicInfo(name, answered.topic_id, answered.error_code)


def _believed(name: str, answered: MetadataResponseTopic) -> list[MetadataResponsePartition]:
    """Each partition once, by its number, without those that no topic has."""
    by_index = {partition.partition_index: partition for partition in answered.partitions}
    believed = [by_index[index] for index in sorted(by_index) if 0 <= index < PARTITIONS_MAX]
    if len(believed) < len(by_index):
        _log.warning("Metadata of topic %s: %d partitions have no possible number", name, len(by_index) - len(believed))
    return believed


def _merge_partition(
    old: ClusterSnapshot,
    topic: MetadataResponseTopic,
    answered: MetadataResponsePartition,
    version: int,
    merged: Merged,
) -> PartitionInfo:
    name = topic.name or ""
    if error_code(answered.error_code).refreshes_metadata:
        merged.refresh_again = True
    found = _partition_info(name, answered, version)
    where = name, found.index
    before = merged.epochs.get(where)
    if found.leader_epoch is None:
        # Of an old broker, or no leader is known: nothing to compare with later.
        merged.epochs.pop(where, None)
        merged.progressed = True
        return found
    if before is not None and not _is_other_topic(before.topic_id, topic.topic_id):
        if found.leader_epoch < before.epoch:
            kept = old.partition(name, found.index)
            if kept is not None:
                _log.debug("%s-%d: epoch %d is older than %d", name, found.index, found.leader_epoch, before.epoch)
                return kept
        merged.progressed |= found.leader_epoch != before.epoch
    else:
        merged.progressed = True
    seen = SeenEpoch(topic.topic_id, found.leader_epoch)
    if seen != before:
        merged.epochs[where] = seen
    return found


def _is_other_topic(before: UUID, now: UUID) -> bool:
    """Brokers before 2.8 give no ids; then the same name is taken for the same topic."""
    return NO_TOPIC_ID not in (before, now) and before != now


def _partition_info(name: str, answered: MetadataResponsePartition, version: int) -> PartitionInfo:
    reliable = version >= RELIABLE_EPOCHS_FROM_VERSION and answered.leader_epoch >= 0
    return PartitionInfo(
        name,
        answered.partition_index,
        answered.leader_id if answered.leader_id >= 0 else None,
        answered.leader_epoch if reliable else None,
        tuple(answered.replica_nodes),
        answered.error_code,
    )
