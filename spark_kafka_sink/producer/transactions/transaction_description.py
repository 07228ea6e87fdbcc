"""TransactionDescription: what a coordinator knows of a transactional id."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.producer.sending.partition_states import ProducerIdAndEpoch
from spark_kafka_sink.protocol.messages.describe_transactions import TransactionState
from spark_kafka_sink.words import cleaned

ONGOING, EMPTY, COMPLETE_ABORT = "Ongoing", "Empty", "CompleteAbort"
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
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING

    @property
    def is_ending(self) -> bool:
        """It is decided how it ends, and its markers are not written yet."""
        return self.state in _ENDING


def description_of(row: TransactionState) -> TransactionDescription:
    return TransactionDescription(
        row.transactional_id,
        cleaned(row.transaction_state),  # it and the topics are shown to people
        ProducerIdAndEpoch(row.producer_id, row.producer_epoch),
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple((cleaned(topic.topic), index) for topic in row.topics for index in topic.partitions),
    )
