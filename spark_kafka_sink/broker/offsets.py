"""Committed offsets of consumer groups: those that hold, and those that wait for the end of a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_kafka_sink.protocol import error_codes

TopicPartition = tuple[str, int]

METADATA_CHARACTERS_MAX = 4096
"""Brokers' own default of offset.metadata.max.bytes."""

OFFSETS_MAX = 100_000
"""At most this many offsets are kept, of all groups together."""


@dataclass(frozen=True)
class CommittedOffset:
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class OffsetStore:
    """Guarded by the cluster's lock. Groups have no members here: a client assigns itself what it asks for."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[tuple[int, str], dict[TopicPartition, CommittedOffset]] = {}
        self._held = 0

    def fault(self, group: str, partition: TopicPartition, metadata: str | None) -> int:
        """The error for an offset that cannot be committed, 0 for one that can be."""
        if len(metadata or "") > METADATA_CHARACTERS_MAX:
            return error_codes.OFFSET_METADATA_TOO_LARGE
        if partition in self.committed.get(group, {}):
            return 0
        return error_codes.POLICY_VIOLATION if self._held >= OFFSETS_MAX else 0

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._take(self.committed.setdefault(group, {}), offsets)

    def commit_in_transaction(
        self, producer_id: int, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        self._take(self._pending.setdefault((producer_id, group), {}), offsets)

    def end_transaction(self, producer_id: int, group: str, *, commit: bool) -> None:
        pending = self._pending.pop((producer_id, group), {})
        self._held -= len(pending)
        if commit:
            self.commit(group, pending)

    def _take(
        self, known: dict[TopicPartition, CommittedOffset], offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        before = len(known)
        known.update(offsets)
        self._held += len(known) - before

    def get(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        return self.committed.get(group, {}).get(partition)

    def all_of(self, group: str) -> list[TopicPartition]:
        return sorted(self.committed.get(group, {}))

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        return any(name == group and partition in offsets for (_, name), offsets in self._pending.items())
