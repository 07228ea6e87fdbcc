"""The states of a transactional producer and the moves between them, in one table.

    UNINITIALIZED --init--> INITIALIZING --> READY --begin--> IN_TRANSACTION --commit--> COMMITTING --> READY
                                 ^             ^                |      |  |
                                 |             +-- ABORTING <---+      |  +--prepare--> PREPARED --> COMMITTING
                                 |                  |    ^             v                        or ABORTING
                                 +---- new epoch ---+    +------ ABORTABLE_ERROR

READY: the next transaction may begin. So may another initialisation, under any transactional id.
PREPARED: all records are acknowledged and the transaction stays open; any process that has its transactional id,
producer id and epoch may end it. The producer that prepared it may initialise again after that.
ABORTABLE_ERROR: this transaction cannot be committed any more; the producer can go on after an abort.
FATAL_ERROR: the producer cannot go on. Every state may lead there, and none leads away.
"""

from __future__ import annotations

from enum import Enum

from spark_kafka_sink.errors import IllegalStateError


class TransactionState(Enum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_S = TransactionState

ALLOWED_FROM: dict[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),  # a right was missing; the call may be repeated
    _S.INITIALIZING: frozenset({_S.UNINITIALIZED, _S.READY, _S.PREPARED, _S.COMMITTING, _S.ABORTING}),
    _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING}),
    _S.IN_TRANSACTION: frozenset({_S.READY}),
    _S.PREPARED: frozenset({_S.IN_TRANSACTION, _S.INITIALIZING}),
    _S.COMMITTING: frozenset({_S.IN_TRANSACTION, _S.PREPARED}),
    _S.ABORTING: frozenset({_S.IN_TRANSACTION, _S.PREPARED, _S.ABORTABLE_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.INITIALIZING, _S.ABORTABLE_ERROR}),
    _S.FATAL_ERROR: frozenset(_S),
}
"""target -> the states from which it may be reached"""

_NEXT_CALL = {
    _S.UNINITIALIZED: "init_transactions() first",
    _S.INITIALIZING: "init_transactions() again, to learn how it ended",
    _S.READY: "begin_transaction() first",
    _S.IN_TRANSACTION: "commit_transaction() or abort_transaction() first",
    _S.PREPARED: "commit_transaction() or abort_transaction(), or let another process end the transaction",
    _S.COMMITTING: "commit_transaction() again, to learn how it ended",
    _S.ABORTING: "abort_transaction() again, to learn how it ended",
    _S.ABORTABLE_ERROR: "abort_transaction() first",
    _S.FATAL_ERROR: "close(), and make another producer",
}
"""What a caller can do in each state where a call is refused."""

WRITING = frozenset({_S.IN_TRANSACTION, _S.COMMITTING})
"""Records may join the transaction, or are on their way into it."""
ENDING = frozenset({_S.COMMITTING, _S.ABORTING})


def checked_move(source: TransactionState, target: TransactionState, transactional_id: str) -> TransactionState:
    """`target`, if the table allows the move."""
    if source not in ALLOWED_FROM[target]:
        raise IllegalStateError(
            f"transactional id {transactional_id}: the producer cannot go from '{source.value}' to '{target.value}'. "
            f"Call {_NEXT_CALL[source]}."
        )
    return target
