"""Reports: what errors, log messages and operations say about the rows of batches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_kafka_sink.errors import CommitLostError, KafkaSinkError
from spark_kafka_sink.exactly_once.entries import Batch
from spark_kafka_sink.exactly_once.operations import FinishResult

_NO_ROWS_VISIBLE_PATTERN = re.compile(
    "[Nn]one of (its|the batch's) rows (are|will become) visible|[Nn]othing was written|has written nothing"
)
_DOUBT_PREFIX = "It is not known whether"
"""The beginning of an error that may contain one of these statements as an assumption."""


@dataclass
class Reports:
    """The reports to the users of a simulation."""

    decided: set[int] = field(default_factory=set)
    """The batches that are decided, so that all of their rows become visible."""
    invisible: set[int] = field(default_factory=set)
    """The jobs without an idempotency key of which no rows are visible."""
    has_lost_transactions: bool = False
    prefixes_without_entry: set[str] = field(default_factory=set)
    """The generated prefixes whose tasks had an open transaction that `pykafka transactions` could not end.

    The decision log had no entry for the prefix.
    """

    def add_commit_error(self, number: int, batch: Batch, error: KafkaSinkError) -> None:
        """Add what the error of a batch's commit says. An error of its start may say the same about an earlier job."""
        if str(error).startswith((f"{batch} is decided", f"{batch} is committed")):
            self.decided.add(number)
        self.add_error(number, batch, error)

    def add_error(self, number: int, batch: Batch, error: KafkaSinkError) -> None:
        text = str(error)
        if _NO_ROWS_VISIBLE_PATTERN.search(text) and not text.startswith(_DOUBT_PREFIX):
            self.add_invisible(number, batch)
        self.has_lost_transactions |= isinstance(error, CommitLostError)

    def add_invisible(self, number: int, batch: Batch) -> None:
        if not batch.is_idempotent:
            self.invisible.add(number)

    def add_result(self, result: object) -> None:
        """Add the result of an operation of `pykafka transactions`."""
        self.has_lost_transactions |= isinstance(result, FinishResult) and bool(result.lost_transaction_errors)
