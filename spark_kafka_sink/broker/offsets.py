"""Committed offsets of consumer groups: those that hold, and those that wait for the end of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class CommittedOffset:
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class GroupOffsets:
    """Guarded by the cluster's lock. Groups have no members here: whoever asks for partitions has assigned them."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[tuple[int, str], dict[TopicPartition, CommittedOffset]] = {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.committed.setdefault(group, {}).update(offsets)

    def commit_in_transaction(
        self, producer_id: int, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        self._pending.setdefault((producer_id, group), {}).update(offsets)

    def end_transaction(self, producer_id: int, group: str, *, commit: bool) -> None:
        pending = self._pending.pop((producer_id, group), {})
        if commit:
            self.commit(group, pending)

    def get(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self.committed.get(group, {}).get(partition)

    def all_of(self, group: str) -> list[TopicPartition]:
        return sorted(self.committed.get(group, {}))

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        return any(name == group and partition in offsets for (_, name), offsets in self._pending.items())
