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
    """The offsets of one send_offsets_to_transaction() call that brokers have not written yet."""

    group_metadata: GroupMetadata
    """The consumer group to which the offsets belong."""
    offsets: dict[TopicPartition, OffsetAndMetadata]
    """The offsets that are not written yet, by partition."""
    operation: Operation
    """The call's operation, which is finished once all offsets are written."""
    is_group_added: bool = False
    """Whether brokers have added the group to the transaction (version 1)."""


@dataclass
class OpenTransaction:
    """A transaction's contents and progress.

    Each flag changes from its default at most once, and never back. Once `is_end_sent` is set, nothing can be added to
    the transaction, and only the coordinator knows its outcome.
    """

    version: int
    """The transaction protocol version: 2 with KIP-890, otherwise 1.

    In version 1, the producer adds partitions and groups with requests of their own. In version 2, brokers add a
    partition with its first batch, and a group with its first offsets.
    """
    number: int = 0
    """Sequential number of the transaction within the producer. A call that has waited compares the number of its own
    transaction with that of the open one, to find out whether its own transaction has ended."""
    added_partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions of the transaction. Batches for these partitions may be sent."""
    partitions_to_add: set[TopicPartition] = field(default_factory=set)
    """Partitions that must be added before a batch for them may be sent (version 1)."""
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    """The id of each topic, by topic name, when the topic's first records in the transaction were acknowledged."""
    unwritten_offsets: list[GroupOffsets] = field(default_factory=list)
    """Offsets that brokers have not written yet, in the order of the calls. Only the first entry is being sent."""
    is_started: bool = False
    """Whether brokers know of the transaction. If they do, it must be ended with a request (EndTxn)."""
    started_ms: float | None = None
    """Monotonic time at which the sender noticed that `is_started` was set; None before that.

    In version 1, the coordinator's timeout is already running by then. In version 2, the timeout starts when the first
    request arrives."""
    is_in_doubt: bool = False
    """Whether a request that adds a partition or a group may have been executed, although the producer received no
    successful response to it."""
    needs_new_epoch: bool = False
    """Whether sequence numbers may be missing because a batch failed. The next transaction then needs a new epoch."""
    is_end_sent: bool = False
    """Whether EndTxn, the request that ends the transaction, was sent."""
    accepts_records: bool = True
    """Whether records and offsets may still be added. False once the transaction is being prepared."""

    def can_end_without_request(self, *, is_aborting: bool) -> bool:
        """Return whether no broker knows of the transaction, and nothing remains to be added to it.

        `is_aborting`: whether the transaction is being aborted. Nothing more is then added to it.
        """
        has_pending_additions = not is_aborting and bool(self.partitions_to_add or self.unwritten_offsets)
        return not (self.is_started or self.is_in_doubt or has_pending_additions)

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that brokers have added partitions to the transaction."""
        self.added_partitions.update(partitions)
        self.partitions_to_add -= self.added_partitions
        self.is_started = True

    def mark_group_added(self) -> None:
        """Record that brokers have added the group of the first unwritten offsets to the transaction."""
        self.is_started = True
        self.unwritten_offsets[0].is_group_added = True

    def remove_written_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the offsets that brokers have written from the first unwritten offsets.

        Finish the operation of the call if none of its offsets remain. Otherwise the remaining offsets are sent again.
        """
        for partition in partitions:
            self.unwritten_offsets[0].offsets.pop(partition, None)
        if not self.unwritten_offsets[0].offsets:
            self.unwritten_offsets.pop(0).operation.finish()

    def fail_offsets(self, error: KafkaSinkError) -> None:
        """Fail the operations of all calls whose offsets brokers have not written."""
        for group_offsets in self.unwritten_offsets:
            group_offsets.operation.finish(error)
