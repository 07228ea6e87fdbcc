"""OpenTransaction: the partitions, offsets and progress of one transaction, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.transactions.states import Operation
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata


@dataclass
class GroupOffsets:
    """Offsets of a consumer group that are not yet part of the transaction."""

    group_metadata: GroupMetadata
    offsets: dict[TopicPartition, OffsetAndMetadata]
    operation: Operation
    is_group_added: bool = False
    """Whether brokers have added the group to the transaction (version 1)."""


@dataclass
class OpenTransaction:
    """A transaction's contents and progress.

    Each flag changes from its default at most once, and never back. Once `is_end_sent` is set, nothing can be added to
    the transaction, and only the coordinator knows its outcome.
    """

    version: int
    """The transaction protocol version: 2 for KIP-890, else 1.

    In version 1, partitions and groups are added by requests of their own. In version 2, a partition or group is
    added by its first batch or its first offsets.
    """
    number: int = 0
    """Sequential number of the transaction within the producer. After waiting, a call compares this with the open
    transaction's number to find out whether its own transaction has ended."""
    added_partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions of the transaction: batches for them may be sent."""
    partitions_to_add: set[TopicPartition] = field(default_factory=set)
    """Partitions that must be added before a batch for them may be sent (version 1)."""
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    """Topic ids by topic name, as of the transaction's first acknowledged records for the topic."""
    unwritten_offsets: list[GroupOffsets] = field(default_factory=list)
    """Offsets that brokers have not written yet, in the order of the calls. Only the first entry is being sent."""
    is_started: bool = False
    """Whether brokers know of the transaction. If they do, it must be ended with EndTxn."""
    started_ms: float | None = None
    """Monotonic time at which the sender noticed the start. In version 1, the coordinator's timeout is already running
    by then; in version 2, it starts when the first request arrives."""
    is_in_doubt: bool = False
    """Whether a request that adds a partition or a group may have been executed even though the producer received no
    successful response."""
    needs_new_epoch: bool = False
    """Whether the transaction may leave gaps in the sequence numbers. If so, a new epoch must follow it."""
    is_end_sent: bool = False
    """Whether EndTxn was sent. From then on, no record may follow, and the coordinator decides the outcome."""
    accepts_records: bool = True
    """Whether records and offsets may still be added. False once the transaction is being prepared."""

    def is_empty(self, *, aborting: bool) -> bool:
        """Return whether the transaction can end without a request: no broker knows of it, and nothing is left to add.

        `aborting`: whether the transaction is being aborted, in which case nothing more is added to it.
        """
        has_pending_additions = not aborting and bool(self.partitions_to_add or self.unwritten_offsets)
        return not (self.is_started or self.is_in_doubt or has_pending_additions)

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that brokers have added partitions to the transaction."""
        self.added_partitions.update(partitions)
        self.partitions_to_add -= self.added_partitions
        self.is_started = True

    def mark_group_added(self) -> None:
        """Record that brokers have added the first group to the transaction."""
        self.is_started = True
        self.unwritten_offsets[0].is_group_added = True

    def remove_written_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the offsets of the first group that brokers have written. The remaining offsets are sent again."""
        for partition in partitions:
            self.unwritten_offsets[0].offsets.pop(partition, None)
        if not self.unwritten_offsets[0].offsets:
            self.unwritten_offsets.pop(0).operation.finish()

    def fail_offsets(self, error: KafkaSinkError) -> None:
        """Fail the operations of all offsets that brokers have not written."""
        for group_offsets in self.unwritten_offsets:
            group_offsets.operation.finish(error)
