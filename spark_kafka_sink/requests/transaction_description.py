"""TransactionDescription: the state of a transactional id at its coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponseTransactionState

ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT = "Ongoing", "Empty", "CompleteCommit", "CompleteAbort"
_ENDING = ("PrepareCommit", "PrepareAbort")
"""States of a transactional id. Empty: it has a producer id and epoch, and no transaction has begun under them."""


@dataclass(frozen=True)
class TransactionDescription:
    transactional_id: str
    state: str
    id_and_epoch: ProducerIdAndEpoch
    timeout_ms: int = 0
    started_ms: int = -1
    """The start time of the open transaction by the broker's clock; -1 if none is open."""
    topics: tuple[tuple[str, Sequence[int]], ...] = ()
    """The topics of the transaction, with the partitions of each."""

    @property
    def partitions(self) -> tuple[tuple[str, int], ...]:
        return tuple((topic, partition) for topic, partitions in self.topics for partition in partitions)

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING

    @property
    def is_ending(self) -> bool:
        """Whether the transaction is prepared to commit or abort and its markers are not all written."""
        return self.state in _ENDING


def to_description(row: DescribeTransactionsResponseTransactionState) -> TransactionDescription:
    return TransactionDescription(
        row.transactional_id,
        sanitize(row.transaction_state),  # The state and the topics appear in messages and on consoles.
        ProducerIdAndEpoch(row.producer_id, row.producer_epoch),
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple((sanitize(topic.topic), topic.partitions) for topic in row.topics),
    )
