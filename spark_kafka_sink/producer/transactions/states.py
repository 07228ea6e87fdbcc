"""The states of a transactional producer, their transitions, and the pending operation.

    state            meaning                                      next states
    UNINITIALIZED    has no producer id yet                       INITIALIZING
    INITIALIZING     requests a producer id, or its next epoch    READY, UNINITIALIZED, PREPARED, ABORTABLE_ERROR
    READY            the next transaction may begin               IN_TRANSACTION, INITIALIZING
    IN_TRANSACTION   records may be sent                          COMMITTING, ABORTING, PREPARED, ABORTABLE_ERROR, READY
    PREPARED         all records are acknowledged; stays open     COMMITTING, ABORTING, INITIALIZING
    COMMITTING       waits for records, then for the coordinator  READY, INITIALIZING, ABORTABLE_ERROR
    ABORTING         waits for the coordinator                    READY, INITIALIZING
    ABORTABLE_ERROR  the transaction can only be aborted          ABORTING, ABORTABLE_ERROR
    FATAL_ERROR      the producer cannot continue                 -

`TRANSITIONS` holds this table. In addition, every state may change to FATAL_ERROR. An invalid transition raises
IllegalStateError and changes nothing.

A READY producer may be initialized again, under any transactional id, and then gets a new epoch. A PREPARED transaction
may be ended by any process that knows its transactional id, producer id and epoch. Once it has ended, the producer that
prepared it may be initialized again.

A call such as commit_transaction() begins an operation and waits for it. If the wait times out, the outcome is unknown,
so the operation stays pending. From then on, only the same method may be called, and it waits for the same operation.
There is one exception: abort_transaction() may be called while a commit is pending whose EndTxn (the request that ends
the transaction) has not been sent yet.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError, TransactionAbortableError, copy_error
from spark_kafka_sink.producer.one_time_event import OneTimeEvent


class TransactionManagerState(Enum):
    """State of a transactional producer (see the table in the module's docstring)."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_State = TransactionManagerState

TRANSITIONS: dict[TransactionManagerState, frozenset[TransactionManagerState]] = {
    _State.UNINITIALIZED: frozenset({_State.INITIALIZING}),
    # The state returns to UNINITIALIZED if a permission is missing; init_transactions() may then be repeated.
    _State.INITIALIZING: frozenset({_State.READY, _State.UNINITIALIZED, _State.PREPARED, _State.ABORTABLE_ERROR}),
    _State.READY: frozenset({_State.IN_TRANSACTION, _State.INITIALIZING}),
    # The next state is READY if an empty transaction is prepared, because nothing of it is left to end.
    _State.IN_TRANSACTION: frozenset(
        {_State.COMMITTING, _State.ABORTING, _State.PREPARED, _State.ABORTABLE_ERROR, _State.READY}
    ),
    _State.PREPARED: frozenset({_State.COMMITTING, _State.ABORTING, _State.INITIALIZING}),
    _State.COMMITTING: frozenset({_State.READY, _State.INITIALIZING, _State.ABORTABLE_ERROR}),
    _State.ABORTING: frozenset({_State.READY, _State.INITIALIZING}),
    _State.ABORTABLE_ERROR: frozenset({_State.ABORTING, _State.ABORTABLE_ERROR}),
    _State.FATAL_ERROR: frozenset(),
}
"""The states that may follow each state. FATAL_ERROR is not listed, because it may follow any of them."""

_ALLOWED_CALLS = {
    _State.UNINITIALIZED: "init_transactions() first",
    _State.INITIALIZING: "init_transactions() again to learn its outcome",
    _State.READY: "begin_transaction() first",
    _State.IN_TRANSACTION: "commit_transaction() or abort_transaction() first",
    _State.PREPARED: "commit_transaction() or abort_transaction(), or let another process end the transaction",
    _State.COMMITTING: "commit_transaction() again to learn its outcome",
    _State.ABORTING: "abort_transaction() again to learn its outcome",
    _State.ABORTABLE_ERROR: "abort_transaction() first",
    _State.FATAL_ERROR: "close(), and create a new producer",
}
"""The allowed calls in each state, as the rest of a sentence that begins with "Call", for errors about other calls."""

WRITABLE_STATES = frozenset({_State.IN_TRANSACTION, _State.COMMITTING})
"""States in which batches of the transaction may be sent. While COMMITTING, these contain records of earlier calls."""
ENDING_STATES = frozenset({_State.COMMITTING, _State.ABORTING})
"""States in which the transaction ends as soon as all of its batches are done."""


def require_valid_transition(
    current_state: TransactionManagerState, next_state: TransactionManagerState, transactional_id: str
) -> None:
    """Raise IllegalStateError if TRANSITIONS does not allow a transition.

    `transactional_id`: appears in the error's message.
    """
    if next_state is not _State.FATAL_ERROR and next_state not in TRANSITIONS[current_state]:
        raise IllegalStateError(
            f"transactional id {transactional_id}: invalid transition from '{current_state.value}' to "
            f"'{next_state.value}'. Call {_ALLOWED_CALLS[current_state]}."
        )


# The names of KafkaProducer's methods, for error messages.
INIT, BEGIN, COMMIT, ABORT = "init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"
PREPARE, SEND, SEND_OFFSETS = "prepare_transaction", "send", "send_offsets_to_transaction"
TAKE_OVER, DESCRIBE = "take_over_transaction", "describe_transactions"

_ABORT_REMEDY = f"Call {ABORT}(), then begin a new transaction."
_ABORTED_REMEDY = "It was aborted; begin a new transaction."


class Operation:
    """Something that a caller waits for, such as a commit, until the sender thread has finished it."""

    def __init__(self, name: str) -> None:
        """`name`: the name of the method that began the operation, for error messages."""
        self.name = name
        self.done_event = OneTimeEvent()
        self.is_result_read = False
        """Whether a caller has read the result. Until then, no other operation may begin."""
        self._error: KafkaSinkError | None  # set together with `done_event`

    def finish(self, error: KafkaSinkError | None = None) -> None:
        """Set the operation's result and wake the callers that wait for it. Do nothing if it has already finished.

        `error`: the reason why the operation has failed; None if it has succeeded.
        """
        if not self.done_event.is_set():
            # Set the error before the event, because a waiting thread reads the error as soon as the event is set.
            self._error = error
            self.done_event.set()

    def read_result(self) -> None:
        """Allow another operation to begin, and raise the operation's error if it has failed.

        Raise IllegalStateError if the operation is not done yet.
        """
        if not self.done_event.is_set():
            raise IllegalStateError(f"{self.name}() is not done yet")
        self.is_result_read = True
        if self._error is not None:
            raise copy_error(self._error)


def mark_already_aborted(error: TransactionAbortableError) -> None:
    """Change an error built by `build_abortable_error` to say that its transaction has been aborted in the meantime."""
    error.remedy = _ABORTED_REMEDY


class TransactionLifecycle:
    """The state, error and pending operation of a TransactionManager. Guarded by the manager's lock."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = _State.UNINITIALIZED
        self.error: KafkaSinkError | None = None
        """The error that caused an error state. It is kept while the transaction is being aborted."""
        self.closing_error: KafkaSinkError | None = None
        """The error of operations that begin after the sender has ended; None until then."""
        self._operation: Operation | None = None

    def transition_to(self, next_state: TransactionManagerState) -> None:
        """Change the state. Raise IllegalStateError if TRANSITIONS does not allow it."""
        require_valid_transition(self.state, next_state, self.transactional_id)
        self.state = next_state
        if next_state is _State.READY:
            self.error = None  # the error belonged to the transaction that has ended

    def enter_error_state(self, error_state: TransactionManagerState, error: KafkaSinkError) -> None:
        """Change to an error state that `error` has caused. Raise IllegalStateError if TRANSITIONS forbids it."""
        self.transition_to(error_state)
        self.error = error

    @property
    def pending_operation(self) -> Operation | None:
        """The operation whose result no caller has read yet; None if there is none."""
        operation = self._operation
        return None if operation is None or operation.is_result_read else operation

    def discard_pending(self) -> None:
        """Forget the pending operation, so that a new one may begin."""
        self._operation = None

    def start_or_join(self, name: str, begin: Callable[[], None]) -> Operation:
        """Return the pending operation if it has this name. Otherwise start and return a new operation.

        `begin`: changes the state to that of the new operation; may raise IllegalStateError.

        Raise IllegalStateError if an operation with a different name is pending. If the producer or its transaction has
        failed, raise the error, but allow a failed transaction to be aborted.
        """
        pending_operation = self.pending_operation
        if pending_operation is not None and pending_operation.name == name:
            return pending_operation
        self.ensure_no_pending_operation(name)
        # The error of a failed transaction does not prevent an abort: an abort is the only operation that may follow.
        if name != ABORT or self.state is _State.FATAL_ERROR:
            self.raise_if_failed()
        begin()
        self._operation = self.create_operation(name)
        return self._operation

    def create_operation(self, name: str) -> Operation:
        """Create an operation, which has already failed if the sender, which would execute it, has ended."""
        operation = Operation(name)
        if self.closing_error is not None:
            operation.finish(self.closing_error)
        return operation

    def finish_operation(self, error: KafkaSinkError | None = None) -> None:
        """Finish the current operation, if there is one.

        `error`: the reason why the operation has failed; None if it has succeeded.
        """
        if self._operation is not None:
            self._operation.finish(error)

    def ensure_no_pending_operation(self, call_name: str) -> None:
        """Raise IllegalStateError if an operation is pending.

        After a fatal error, a pending operation does not matter, because all callers raise the fatal error next.

        `call_name`: the method that must not be called while an operation is pending.
        """
        pending_operation = self.pending_operation
        if pending_operation is not None and self.state is not _State.FATAL_ERROR:
            raise IllegalStateError(
                f"transactional id {self.transactional_id}: {call_name}() is not possible, because the outcome of "
                f"{pending_operation.name}() is unknown. Call {pending_operation.name}() again."
            )

    def raise_if_failed(self) -> None:
        """Raise the error of the transaction or the producer if the current state is an error state."""
        error = self.error
        if error is not None and self.state is _State.FATAL_ERROR:
            raise copy_error(error)
        if error is not None and self.state is _State.ABORTABLE_ERROR:
            raise self.build_abortable_error(error)

    def build_abortable_error(self, cause: KafkaSinkError) -> TransactionAbortableError:
        """Build the error that tells the caller to abort the transaction."""
        error = TransactionAbortableError(
            f"transactional id {self.transactional_id}: the transaction cannot be committed. {cause}",
            remedy=_ABORT_REMEDY,
        )
        error.__cause__ = cause
        return error

    def build_ended_error(self, call_name: str) -> IllegalStateError:
        """Build the error for a call whose transaction no longer accepts records or offsets."""
        return IllegalStateError(
            f"transactional id {self.transactional_id}: the transaction of this {call_name}() has ended while the call "
            f"waited, or is being prepared, so nothing was added to it. Call {call_name}() again in the right "
            "transaction, and end a transaction only when all its calls have returned."
        )

    def ensure_in_transaction(self, call_name: str) -> None:
        """Raise IllegalStateError if no transaction is open or an operation is pending.

        If the transaction or the producer has failed, raise its error.
        """
        self.ensure_no_pending_operation(call_name)
        self.raise_if_failed()
        if self.state is not _State.IN_TRANSACTION:
            required_call = INIT if self.state is _State.UNINITIALIZED else BEGIN
            raise IllegalStateError(
                f"transactional id {self.transactional_id}: {call_name}() requires an open transaction, but the state "
                f"is '{self.state.value}'. Call {required_call}() first."
            )
