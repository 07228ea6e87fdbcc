"""TransactionDescription: the state of a transactional id, as its coordinator reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponseTransactionState

# States of a transactional id, as coordinators report them. "Empty": no transaction has begun since the producer id and
# epoch were assigned.
EMPTY = "Empty"
ONGOING = "Ongoing"
_ENDING_STATES = ("PrepareCommit", "PrepareAbort")
COMPLETE_COMMIT = "CompleteCommit"
COMPLETE_ABORT = "CompleteAbort"


@dataclass(frozen=True)
class TransactionDescription:
    """The state of a transactional id and, if a transaction is open, its start time and partitions."""

    transactional_id: str
    state: str
    id_and_epoch: ProducerIdAndEpoch
    timeout_ms: int = 0
    started_ms: int = -1
    """When the open transaction started, in milliseconds since the epoch by the broker's clock; -1 if none is open."""
    topics: tuple[tuple[str, Sequence[int]], ...] = ()
    """The transaction's topics, each with its partitions."""

    @property
    def partitions(self) -> tuple[tuple[str, int], ...]:
        return tuple((topic, partition) for topic, partitions in self.topics for partition in partitions)

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING

    @property
    def is_ending(self) -> bool:
        """Whether the coordinator has decided to commit or abort, but has not yet written every marker."""
        return self.state in _ENDING_STATES


def build_transaction_description(state: DescribeTransactionsResponseTransactionState) -> TransactionDescription:
    """Build the description from the state that the coordinator returned."""
    return TransactionDescription(
        state.transactional_id,
        sanitize(state.transaction_state),  # The state and the topics are printed in messages and on consoles.
        ProducerIdAndEpoch(state.producer_id, state.producer_epoch),
        state.transaction_timeout_ms,
        state.transaction_start_time_ms,
        tuple((sanitize(topic.topic), topic.partitions) for topic in state.topics),
    )
