"""OffsetStore: the committed offsets of consumer groups, and the offsets pending in open transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_kafka_sink.protocol import error_codes

TopicPartition = tuple[str, int]

MAX_METADATA_CHARACTERS = 4096
"""Kafka's default for offset.metadata.max.bytes."""

MAX_OFFSETS = 100_000
"""Maximum number of stored offsets, in all groups together."""


@dataclass(frozen=True)
class CommittedOffset:
    """An offset, with the leader epoch and metadata that were committed along with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class OffsetStore:
    """Offsets by group and topic-partition. Guarded by the cluster's lock.

    Groups have no members here: the embedded broker does not assign partitions to consumers, so clients must choose
    their partitions themselves.
    """

    def __init__(self) -> None:
        self.committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[tuple[int, str], dict[TopicPartition, CommittedOffset]] = {}
        """Offsets of open transactions, by producer id and group."""
        self._offset_count = 0

    def find_commit_error_code(self, group: str, topic_partition: TopicPartition, metadata: str | None) -> int:
        """Return 0 if the offset can be committed, else the error code."""
        if len(metadata or "") > MAX_METADATA_CHARACTERS:
            return error_codes.OFFSET_METADATA_TOO_LARGE
        if topic_partition in self.committed.get(group, {}):
            return 0
        return error_codes.POLICY_VIOLATION if self._offset_count >= MAX_OFFSETS else 0

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store committed offsets. They replace the previous offsets of the same partitions."""
        self._store(self.committed.setdefault(group, {}), offsets)

    def commit_in_transaction(
        self, producer_id: int, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Store offsets that become committed when the producer's transaction commits."""
        self._store(self._pending.setdefault((producer_id, group), {}), offsets)

    def end_transaction(self, producer_id: int, group: str, *, commit: bool) -> None:
        """Commit or discard the offsets that the producer's transaction contains for this group."""
        pending = self._pending.pop((producer_id, group), {})
        self._offset_count -= len(pending)
        if commit:  # self.commit() counts these offsets again
            self.commit(group, pending)

    def delete_topic(self, topic: str) -> None:
        """Delete the committed and pending offsets of a topic, in all groups."""
        for offsets in (*self.committed.values(), *self._pending.values()):
            deleted_partitions = [topic_partition for topic_partition in offsets if topic_partition[0] == topic]
            for topic_partition in deleted_partitions:
                del offsets[topic_partition]
            self._offset_count -= len(deleted_partitions)

    def _store(
        self, stored_offsets: dict[TopicPartition, CommittedOffset], offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Add offsets to one group's stored offsets, and count the new topic-partitions."""
        previous_count = len(stored_offsets)
        stored_offsets.update(offsets)
        self._offset_count += len(stored_offsets) - previous_count

    def get(self, group: str, topic_partition: TopicPartition) -> CommittedOffset | None:
        return self.committed.get(group, {}).get(topic_partition)

    def list_partitions(self, group: str) -> list[TopicPartition]:
        return sorted(self.committed.get(group, {}))

    def has_pending(self, group: str, topic_partition: TopicPartition) -> bool:
        """Return whether an open transaction contains an offset for this partition and group."""
        return any(
            pending_group == group and topic_partition in offsets
            for (_, pending_group), offsets in self._pending.items()
        )
