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
    """The offsets that one send_offsets_to_transaction() call has added and brokers have not written yet."""

    group_metadata: GroupMetadata
    """The consumer group to which the offsets belong."""
    offsets: dict[TopicPartition, OffsetAndMetadata]
    """The offsets that are not written yet, by partition."""
    operation: Operation
    """The operation that the call waits for. It is finished once all offsets are written."""
    is_group_added: bool = False
    """Whether brokers have added the group to the transaction (version 1)."""


@dataclass
class OpenTransaction:
    """The contents and the progress of the transaction that is open.

    Each flag changes from its default at most once, and never back. Once `is_end_sent` is set, nothing can be added to
    the transaction, and only the coordinator knows its outcome.
    """

    version: int
    """The transaction protocol version: 2 with KIP-890, otherwise 1.

    In version 1, the producer adds partitions and groups with requests of their own. In version 2, brokers add a
    partition with its first batch, and a group with its first offsets.
    """
    number: int = 0
    """Number of the transaction, counted by the producer. A call that had to wait compares this number with that of its
    own transaction, to find out whether its own transaction has ended in the meantime."""
    added_partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions of the transaction. Batches for these partitions may be sent."""
    partitions_to_add: set[TopicPartition] = field(default_factory=set)
    """Partitions that must be added to the transaction before a batch for them may be sent (version 1)."""
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    """The id of each topic, by topic name, when the first of its records in the transaction were acknowledged."""
    unwritten_offsets: list[GroupOffsets] = field(default_factory=list)
    """Offsets that brokers have not written yet, in the order of the calls. Only the first entry is being sent."""
    is_started: bool = False
    """Whether brokers know of the transaction. If they do, a request (EndTxn) is needed to end it."""
    started_ms: float | None = None
    """Monotonic time at which the sender noticed that `is_started` was set; None before that.

    In version 1, the coordinator's timeout is already running by then. In version 2, it starts when the first request
    arrives."""
    is_in_doubt: bool = False
    """Whether brokers may have executed a request that adds a partition or a group, although the producer has received
    no successful response to it."""
    needs_new_epoch: bool = False
    """Whether the next transaction needs a new epoch, because a failed batch may have left sequence numbers missing."""
    has_late_batch: bool = False
    """Whether a batch has failed that brokers may still store (version 1)."""
    is_producer_closing: bool = False
    """Whether the producer is being closed, which aborts the transaction unless it must stay open."""
    is_end_sent: bool = False
    """Whether EndTxn, the request that ends the transaction, was sent."""
    unrejected_commit_count: int = 0
    """Number of commit requests (EndTxn) that were sent and that the coordinator has not rejected. Unless it is 0, the
    coordinator may have committed the transaction."""
    is_shared: bool = False
    """Whether another process may end the transaction, too, because it is prepared."""
    accepts_records: bool = True
    """Whether records and offsets may still be added. False as soon as the transaction is being prepared."""

    @property
    def must_stay_open(self) -> bool:
        """Whether the producer must not end the transaction, because it is being closed and a batch may come late.

        A transaction of version 1 stays open if brokers may still store one of its failed batches. After EndTxn, they
        could add the batch to the next transaction. At its timeout, or when the transactional id is initialized again,
        the coordinator aborts the transaction under the next epoch, with which brokers reject the batch.
        """
        return self.is_producer_closing and self.has_late_batch and not self.is_end_sent

    def can_end_without_request(self, *, is_aborting: bool) -> bool:
        """Return whether no broker can know of the transaction, and nothing remains to be added to it.

        `is_aborting`: whether the transaction is being aborted. If so, nothing more is added to it.
        """
        has_pending_additions = not is_aborting and bool(self.partitions_to_add or self.unwritten_offsets)
        return not (self.is_started or self.is_in_doubt or has_pending_additions)

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that brokers have added partitions to the transaction."""
        self.added_partitions.update(partitions)
        self.partitions_to_add -= self.added_partitions
        self.is_started = True

    def mark_group_added(self) -> None:
        """Record that brokers have added the consumer group of the first unwritten offsets to the transaction."""
        self.is_started = True
        self.unwritten_offsets[0].is_group_added = True

    def remove_written_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove offsets that brokers have written from the first entry of `unwritten_offsets`.

        If none of the entry's offsets remain, finish its operation. Otherwise, the remaining offsets are sent again.
        """
        for partition in partitions:
            self.unwritten_offsets[0].offsets.pop(partition, None)
        if not self.unwritten_offsets[0].offsets:
            self.unwritten_offsets.pop(0).operation.finish()

    def fail_offsets(self, error: KafkaSinkError) -> None:
        """Fail the operations of all calls whose offsets brokers have not written."""
        for group_offsets in self.unwritten_offsets:
            group_offsets.operation.finish(error)
