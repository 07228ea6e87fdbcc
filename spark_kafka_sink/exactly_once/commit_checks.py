"""Checks of the tasks' transactions immediately before the driver decides to commit a batch.

A decision is a promise to commit every transaction of the batch, even if another process has to do so. The driver
therefore decides only if each transaction is still open and cannot time out before it is committed. Each check returns
the error that the driver raises instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_errors
from spark_kafka_sink.exactly_once.commit_margin import compute_commit_margin_ms
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.requests.transaction_description import TransactionDescription


def find_transaction_state_error(
    entry: Entry, descriptions: Mapping[str, TransactionDescription]
) -> ExactlyOnceError | None:
    """Return an error if a transaction of the batch is no longer open. Return None if all of them are open.

    `entry`: the entry that would be written as the decision. It names the batch's transactions.
    `descriptions`: the brokers' descriptions of these transactions, by transactional id.
    """
    problems = []
    for transaction in entry.transactions:
        transactional_id = transaction.transactional_id
        description = descriptions.get(transactional_id)
        if description is None:
            problems.append(f"{transactional_id}: unknown to the brokers")
        elif not description.is_open or description.id_and_epoch != transaction.id_and_epoch:
            problems.append(decision_errors.describe_missing_transaction(transaction, description))
    if problems:
        return decision_errors.build_transactions_not_open_error(entry, problems)
    return None


def find_transaction_deadline_error(
    entry: Entry, descriptions: Iterable[TransactionDescription], now_ms: float
) -> ExactlyOnceError | None:
    """Return an error if a transaction may time out before it is committed. Return None if all have enough time left.

    The result is accurate only if the clocks agree: the start of a transaction comes from the brokers' clocks, and
    `now_ms` comes from this machine's clock.

    `now_ms`: the current time, in milliseconds since the epoch.
    """
    for description in descriptions:
        if description.started_ms < 0:
            continue  # the start is unknown, and so is the deadline
        remaining_ms = description.started_ms + description.timeout_ms - now_ms
        if remaining_ms < compute_commit_margin_ms(description.timeout_ms):
            return decision_errors.build_transaction_deadline_error(entry, description, remaining_ms)
    return None
