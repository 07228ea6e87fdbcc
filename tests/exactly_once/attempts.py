"""What an attempt of a task has written, and how transactions have ended: for the explorer of exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

Identity = tuple[str, int, int]
"""(transactional id, producer id, epoch)"""


class Replay(Enum):
    """Do the drivers after the first one get the same rows from the source, when they run a batch again?"""

    EQUAL = "the same rows"
    FAILS = "other rows, onReplayMismatch=fail"
    WARNS = "other rows, onReplayMismatch=warn"


@dataclass
class Attempt:
    """What an attempt of a task has written."""

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
    """When it failed, a newer driver had begun."""

    @property
    def name(self) -> str:
        return f"{self.driver}'s attempt {self.attempt} of task {self.partition} of batch {self.number}"

    @property
    def succeeded(self) -> bool:
        return self.passed_over or self.transaction is not None


@dataclass
class End:
    """A transaction of a task was ended."""

    by: str
    identity: Identity
    commit: bool
