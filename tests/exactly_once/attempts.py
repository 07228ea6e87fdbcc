"""Records of the explorer: the rows of each task attempt, and the ends of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

Identity = tuple[str, int, int]
"""(transactional id, producer id, epoch)"""


class Replay(Enum):
    """Whether the drivers after the first one read the same rows from the source when they run a batch again."""

    EQUAL = "the same rows"
    FAILS = "other rows, onReplayMismatch=fail"
    WARNS = "other rows, onReplayMismatch=warn"


@dataclass
class Attempt:
    """A task attempt, with the rows that it has written and its result."""

    driver: str
    number: int
    partition: int
    attempt: int
    values: list[tuple[int, bytes]]
    identity: Identity | None = None
    transaction: TransactionIdentity | None = None
    passed_over: bool = False
    ended: bool = False
    error: KafkaSinkError | None = None
    overtaken: bool = False
    """Whether a newer driver had begun when the attempt failed."""

    @property
    def name(self) -> str:
        return f"{self.driver}'s attempt {self.attempt} of task {self.partition} of batch {self.number}"

    @property
    def succeeded(self) -> bool:
        return self.passed_over or self.transaction is not None


@dataclass
class End:
    """The end of a task's transaction, with the name of the actor that requested it."""

    by: str
    identity: Identity
    commit: bool
