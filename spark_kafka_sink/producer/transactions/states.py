"""The states of a transactional producer: the table of moves, the call that is pending, and which call may begin.

    state            meaning                                            moves to
    UNINITIALIZED    it has no producer id yet                          INITIALIZING
    INITIALIZING     asks for a producer id, or for its next epoch      READY, UNINITIALIZED, PREPARED, ABORTABLE_ERROR
    READY            the next transaction may begin                     IN_TRANSACTION, INITIALIZING
    IN_TRANSACTION   records may be sent                                COMMITTING, ABORTING, PREPARED, ABORTABLE_ERROR
    PREPARED         all is acknowledged, and stays open                COMMITTING, ABORTING, INITIALIZING
    COMMITTING       waits for the records, then for the coordinator    READY, INITIALIZING, ABORTABLE_ERROR
    ABORTING         waits for the coordinator                          READY, INITIALIZING
    ABORTABLE_ERROR  cannot be committed any more, but aborted          ABORTING, ABORTABLE_ERROR
    FATAL_ERROR      the producer cannot go on                          -

`TRANSITIONS` is this table; besides, every state may lead to FATAL_ERROR. Another initialisation, also of READY and
under any transactional id, leads to a new epoch. A transaction that is PREPARED may be ended by any process that has
its transactional id, producer id and epoch; the producer that prepared it may initialise again after that.

A call whose time is up leaves its operation pending: the outcome is not known. Only the same call may follow; it then
waits for the same operation. An abort may also follow a commit whose EndTxn was not sent yet.
Illegal moves raise and change nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError, TransactionAbortableError, copy_error


class TransactionManagerState(Enum):
    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_S = TransactionManagerState

TRANSITIONS: dict[TransactionManagerState, frozenset[TransactionManagerState]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),
    # Back to UNINITIALIZED where a right was missing; the call may be repeated.
    _S.INITIALIZING: frozenset({_S.READY, _S.UNINITIALIZED, _S.PREPARED, _S.ABORTABLE_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.INITIALIZING}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.PREPARED, _S.ABORTABLE_ERROR}),
    _S.PREPARED: frozenset({_S.COMMITTING, _S.ABORTING, _S.INITIALIZING}),
    _S.COMMITTING: frozenset({_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.INITIALIZING}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.ABORTABLE_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}
"""Beside those to FATAL_ERROR, where every state may lead."""

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

WRITABLE_STATES = frozenset({_S.IN_TRANSACTION, _S.COMMITTING})
"""Records may join the transaction, or are on their way into it."""
ENDING_STATES = frozenset({_S.COMMITTING, _S.ABORTING})


def check_transition(
    source: TransactionManagerState, target: TransactionManagerState, transactional_id: str
) -> TransactionManagerState:
    """`target`, if the table allows the move."""
    if target is not _S.FATAL_ERROR and target not in TRANSITIONS[source]:
        raise IllegalStateError(
            f"transactional id {transactional_id}: the producer cannot go from '{source.value}' to '{target.value}'. "
            f"Call {_NEXT_CALL[source]}."
        )
    return target


INIT, BEGIN, COMMIT, ABORT = "init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"
PREPARE, SEND_OFFSETS = "prepare_transaction", "send_offsets_to_transaction"
DESCRIBE = "describe_transactions"

_MUST_ABORT = f"Call {ABORT}(), then begin another one."
_WAS_ABORTED = "It has been aborted: begin another one."


class Operation:
    """A call that brokers must answer. It has one outcome; a second one is ignored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = threading.Event()
        self.taken = False
        """The caller has seen the outcome. Until then no other operation may begin."""
        self._error: KafkaSinkError | None  # once it is done

    def finish(self, error: KafkaSinkError | None = None) -> None:
        if not self.done.is_set():
            self._error = error
            self.done.set()

    def result(self) -> None:
        """Raises what went wrong. To be called when it is done."""
        if not self.done.is_set():
            raise IllegalStateError(f"{self.name}() has no outcome yet")
        self.taken = True
        if self._error is not None:
            raise copy_error(self._error)


def mark_already_aborted(error: TransactionAbortableError) -> None:
    """Change the advice of `build_abortable_error` for a caller whose transaction has been aborted already."""
    error.remedy = _WAS_ABORTED


class TransactionCalls:
    """Guarded by the lock of the TransactionManager."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = _S.UNINITIALIZED
        self.error: KafkaSinkError | None = None
        """The reason for the state, in the two error states, and while a transaction is aborted for it."""
        self._operation: Operation | None = None

    def move(self, target: TransactionManagerState) -> None:
        self.state = check_transition(self.state, target, self.transactional_id)
        if target is _S.READY:
            self.error = None  # of a transaction that is over

    def fail(self, target: TransactionManagerState, error: KafkaSinkError) -> None:
        self.move(target)
        self.error = error

    @property
    def pending(self) -> Operation | None:
        operation = self._operation
        return None if operation is None or operation.taken else operation

    def forget_pending(self) -> None:
        """No caller will ask how it ended."""
        self._operation = None

    def operate(self, name: str, begin: Callable[[], None]) -> Operation:
        """The operation that is pending, if it is this one, else a new one."""
        pending = self.pending
        if pending is not None and pending.name == name:
            return pending
        self.reject_while_pending(name)
        if name != ABORT or self.state is _S.FATAL_ERROR:
            self.raise_if_failed()
        begin()
        self._operation = Operation(name)
        return self._operation

    def finish(self, error: KafkaSinkError | None = None) -> None:
        """The outcome of the pending operation, if there is one."""
        if self._operation is not None:
            self._operation.finish(error)

    def reject_while_pending(self, call: str) -> None:
        pending = self.pending
        if pending is not None and self.state is not _S.FATAL_ERROR:
            raise IllegalStateError(
                f"transactional id {self.transactional_id}: {call}() cannot begin, because it is not known how "
                f"{pending.name}() ended: call {pending.name}() again."
            )

    def raise_if_failed(self) -> None:
        error = self.error
        if error is not None and self.state is _S.FATAL_ERROR:
            raise copy_error(error)
        if error is not None and self.state is _S.ABORTABLE_ERROR:
            raise self.build_abortable_error(error)

    def build_abortable_error(self, cause: KafkaSinkError) -> TransactionAbortableError:
        error = TransactionAbortableError(
            f"transactional id {self.transactional_id}: the transaction cannot be committed. {cause}",
            remedy=_MUST_ABORT,
        )
        error.__cause__ = cause
        return error

    def build_ended_error(self, call: str) -> IllegalStateError:
        return IllegalStateError(
            f"transactional id {self.transactional_id}: the transaction of this {call}() has ended while the call "
            f"waited, or is being prepared: what was given is in no transaction. Call {call}() again in the one that "
            "it belongs to, and end a transaction when all its calls have returned."
        )

    def ensure_in_transaction(self, call: str) -> None:
        self.reject_while_pending(call)
        self.raise_if_failed()
        if self.state is not _S.IN_TRANSACTION:
            first = INIT if self.state is _S.UNINITIALIZED else BEGIN
            raise IllegalStateError(
                f"transactional id {self.transactional_id}: {call}() needs an open transaction, but the producer is "
                f"{self.state.value}. Call {first}() first."
            )
