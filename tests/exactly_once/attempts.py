"""Records that the simulation keeps: the rows and result of each task attempt, and the ends of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from tests.producer.virtual_time import SimulatedProducer, get_sender

Identity = tuple[str, int, int]
"""(transactional id, producer id, epoch)"""


class SourceReplay(Enum):
    """Whether the source returns the same rows to later drivers that run a batch again, and the option for it."""

    SAME_ROWS = "the same rows"
    OTHER_ROWS_FAIL = "other rows, onReplayMismatch=fail"
    OTHER_ROWS_WARN = "other rows, onReplayMismatch=warn"


@dataclass
class Attempt:
    """A task attempt, with the rows that it has written and its result."""

    driver: str
    """The actor whose batch this is."""
    driver_name: str
    """The driver name under which the actor began the batch."""
    batch: int
    partition: int
    attempt: int
    values: list[tuple[int, bytes]]
    """(partition of the topic, value) of each row."""
    identity: Identity | None = None
    transaction: TransactionIdentity | None = None
    is_skipped: bool = False
    """Whether the attempt wrote nothing because its batch was decided."""
    has_ended: bool = False
    error: KafkaSinkError | None = None
    is_superseded: bool = False
    """Whether a newer driver had started when the attempt failed."""

    @property
    def name(self) -> str:
        return f"{self.driver}'s attempt {self.attempt} of task {self.partition} of batch {self.batch}"

    @property
    def has_succeeded(self) -> bool:
        return self.is_skipped or self.transaction is not None


@dataclass
class TransactionEnd:
    """The end of a transaction."""

    requested_by: str
    """The driver name of the actor that requested the end; the name of the actor if it is no driver."""
    identity: Identity
    commit: bool
    timeout_ms: int
    """The transaction timeout of the transactional id."""


class AttemptProducer(SimulatedProducer):
    """A producer that records its identity in the attempt, even if it never begins a transaction under it."""

    def __init__(self, attempt: Attempt, *arguments: Any, **named: Any) -> None:
        self._attempt = attempt
        super().__init__(*arguments, **named)

    def init_transactions(self, transactional_id: str | None = None) -> None:
        super().init_transactions(transactional_id)
        granted = get_sender(self).idempotence.id_and_epoch
        self._attempt.identity = transactional_id or "", granted.producer_id, granted.epoch
