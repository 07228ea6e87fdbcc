"""What is known of a transaction while it is open."""

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
    """Offsets that are on their way into the transaction."""

    group: GroupMetadata
    offsets: dict[TopicPartition, OffsetAndMetadata]
    operation: Operation
    added: bool = False
    """Brokers have added the group to the transaction (version 1)."""


@dataclass
class OpenTransaction:
    version: int
    number: int = 0
    """Counts the transactions of the producer: a call that waits knows by it whether its transaction has ended."""
    partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions of the transaction: batches for them may be sent."""
    waiting: set[TopicPartition] = field(default_factory=set)
    """Partitions that must be added before a batch for them may be sent (version 1)."""
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    """The ids under which topics had records of the transaction acknowledged."""
    groups: list[GroupOffsets] = field(default_factory=list)
    started: bool = False
    """Brokers know of the transaction, so it must be ended there."""
    started_ms: float | None = None
    """When the sender first saw that it has started; no earlier than the coordinator's own start of the timeout."""
    in_doubt: bool = False
    """It is not known of a request that adds a partition or a group whether it was carried out."""
    needs_new_epoch: bool = False
    """Sequences may have gaps when the transaction is over."""
    end_sent: bool = False
    accepts_records: bool = True
    """False while it is prepared: all that was sent before is on its way, and nothing may follow."""

    def is_empty(self, *, aborting: bool) -> bool:
        """Brokers know nothing of the transaction, and nothing will join it before the end."""
        joining = not aborting and bool(self.waiting or self.groups)
        return not (self.started or self.in_doubt or joining)

    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions.update(partitions)
        self.waiting -= self.partitions
        self.started = True

    def group_added(self) -> None:
        self.started = True
        self.groups[0].added = True

    def offsets_written(self, partitions: Iterable[TopicPartition]) -> None:
        """Offsets of the first group. Those that are not written are sent once more."""
        for partition in partitions:
            self.groups[0].offsets.pop(partition, None)
        if not self.groups[0].offsets:
            self.groups.pop(0).operation.finish()

    def fail_offsets(self, error: KafkaSinkError) -> None:
        for each in self.groups:
            each.operation.finish(error)
