"""TransactionDescription: what a coordinator knows of a transactional id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponseTransactionState
from spark_kafka_sink.words import cleaned

ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT = "Ongoing", "Empty", "CompleteCommit", "CompleteAbort"
_ENDING = ("PrepareCommit", "PrepareAbort")
"""States of a transactional id. Empty: a producer has asked for it, and has begun nothing since."""


@dataclass(frozen=True)
class TransactionDescription:
    transactional_id: str
    state: str
    id_and_epoch: ProducerIdAndEpoch
    timeout_ms: int = 0
    started_ms: int = -1
    """By the broker's clock; -1 if no transaction is open."""
    topics: tuple[tuple[str, Sequence[int]], ...] = ()
    """What it has written to: topics, and partitions of each."""

    @property
    def partitions(self) -> tuple[tuple[str, int], ...]:
        return tuple((topic, partition) for topic, partitions in self.topics for partition in partitions)

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING

    @property
    def is_ending(self) -> bool:
        """It is decided how it ends, and its markers are not written yet."""
        return self.state in _ENDING


def description_of(row: DescribeTransactionsResponseTransactionState) -> TransactionDescription:
    return TransactionDescription(
        row.transactional_id,
        cleaned(row.transaction_state),  # it and the topics are shown to people
        ProducerIdAndEpoch(row.producer_id, row.producer_epoch),
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple((cleaned(each.topic), each.partitions) for each in row.topics),
    )
