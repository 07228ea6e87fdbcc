"""TransactionManager: the state machine of a transactional producer, which also derives its next request.

    callers' threads    init, commit, abort, send_offsets      return an Operation to wait for
                        begin, prepare, take_over              take effect immediately
    sender thread       next_request -> try_begin_sending      send one request at a time
                        -> handle_response, handle_result      the request got a response
                        or handle_disconnect                   the connection was lost
                        or handle_failure                      the request was rejected or could not be sent
                        admit_batch                            return whether a batch may be sent now
                        handle_failed_batch                    a batch has failed
                        transition_to_fatal_error              the producer has failed

The manager does no I/O and reads no clock; callers pass the time. It keeps no queue of requests. Instead, it derives
the next request from its state before each attempt to send one (`_build_next_request`): first a producer id, then
additions to the transaction, then its end. transaction_call.py passes the request to the request engine
(requests/engine.py), which routes and retries it. Each request in requests/transactions.py interprets its own response
and calls one of the listener methods below (on_...).

EndTxn is the request that ends a transaction. It is sent only when all batches of the transaction are done and have no
request in flight (`is_flushed`). An empty transaction ends without a request.

A transaction is in doubt if the coordinator may have executed a request that adds partitions or a group, but did not
confirm it: the response was lost, or the coordinator rejected the request because it could not store it in time. To
abort such a transaction, EndTxn is sent, and it is not an error if the coordinator responds that no transaction has
begun. The EndTxn itself could be executed late, and would then end the next transaction. Therefore, the next
transaction gets a new epoch, as every transaction of version 2 does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import (
    DecodeError,
    DeliveryError,
    IllegalStateError,
    KafkaSinkError,
    TransactionAbortableError,
    TransactionAbortedError,
    mark_possibly_stored,
)
from spark_kafka_sink.producer.transactions.open_transaction import GroupOffsets, OpenTransaction
from spark_kafka_sink.producer.transactions.states import (
    ABORT,
    BEGIN,
    COMMIT,
    ENDING_STATES,
    INIT,
    PREPARE,
    SEND,
    SEND_OFFSETS,
    TAKE_OVER,
    WRITABLE_STATES,
    Operation,
    TransactionLifecycle,
    TransactionManagerState,
)
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transaction_request import TransactionRequest, may_be_stored
from spark_kafka_sink.requests.transactions import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
)
from spark_kafka_sink.requests.verdicts import OWNERSHIP_LOST_ERRORS, Verdict

_log = logging.getLogger(__name__)

_State = TransactionManagerState
Request = TransactionRequest[Any]


def _is_commit(request: Request) -> bool:
    return isinstance(request, EndTransaction) and request.commit


class TransactionManager:
    """The state of a transactional producer. Thread-safe: `_lock`, which is reentrant, guards all fields.

    The properties `state`, `error` and `transactional_id` do not acquire the lock, so their values may be stale.
    """

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.id_and_epoch = NO_PRODUCER_ID
        self.last_failure: KafkaSinkError | None = None
        """The error of the last request; None if it succeeded. Set by the sender thread, read by any thread."""
        self._lifecycle = TransactionLifecycle(transactional_id)
        self._timeout_ms = timeout_ms
        self._lock = threading.RLock()
        self._transaction: OpenTransaction | None = None
        """The open transaction, if any."""
        self._transaction_count = 0
        """The number of transactions that `begin` has begun."""
        self._last_transaction_version = 0
        """The protocol version of the last transaction under this epoch; 0 if no transaction has begun under it."""
        self._needs_producer_id = False
        """Whether InitProducerId must be sent before any other request."""
        self._init_request_identity = NO_PRODUCER_ID
        """The identity to send in InitProducerId: the current one to have its epoch bumped (KIP-360), or
        NO_PRODUCER_ID to get an identity for the transactional id."""
        self._may_have_late_request = False
        """Whether a request sent under this epoch may have gone unanswered. Brokers may still execute such a request
        during a later transaction."""

    @property
    def transactional_id(self) -> str:
        return self._lifecycle.transactional_id

    @property
    def state(self) -> TransactionManagerState:
        return self._lifecycle.state

    @property
    def error(self) -> KafkaSinkError | None:
        """The error that caused an error state. It is kept while the transaction is being aborted."""
        return self._lifecycle.error

    @property
    def fatal_error(self) -> KafkaSinkError | None:
        """The error that has ended the producer; None if there is none."""
        return self.error if self.state is _State.FATAL_ERROR else None

    def __repr__(self) -> str:
        return f"TransactionManager({self.transactional_id}, {self.state.value})"

    # --- calls, from any thread

    def init(self, transactional_id: str | None = None) -> Operation:
        """Fence earlier producers with this transactional id, abort their open transaction, and get a producer id.

        This may be called again if the producer is ready, or if another process has ended its prepared transaction.
        Raise IllegalStateError in other states.

        `transactional_id`: replaces the current transactional id; None keeps it.
        """
        with self._lock:
            requested_id = transactional_id or self.transactional_id
            if requested_id != self.transactional_id:
                self._ensure_id_can_change(requested_id)
            return self._lifecycle.start_or_join(INIT, lambda: self._begin_init(requested_id))

    def take_over(self, prepared: TransactionIdentity) -> None:
        """Adopt a transaction that another process has prepared, in order to commit or abort it."""
        with self._lock:
            self._lifecycle.ensure_no_pending_operation(TAKE_OVER)
            # Change the state first, because this raises an error if the current state does not allow it, and nothing
            # else must have changed then. INITIALIZING is only an intermediate state, which may be followed by
            # PREPARED.
            self._lifecycle.transition_to(_State.INITIALIZING)
            self._needs_producer_id = False
            self._lifecycle.transactional_id, self.id_and_epoch = prepared.transactional_id, prepared.id_and_epoch
            self._last_transaction_version = prepared.version
            # We do not know which requests the other process has sent under this epoch, nor the next sequence number.
            # So the next transaction needs a new epoch. In version 1, `begin` requests one if this flag is set. In
            # version 2, every transaction gets one.
            self._may_have_late_request = True
            self._transaction = OpenTransaction(prepared.version, is_started=True, is_shared=True)
            self._lifecycle.transition_to(_State.PREPARED)

    def begin(self, version: int | None) -> None:
        """Begin a transaction.

        `version`: the transaction protocol version of the cluster; None if it is unknown.
        """
        with self._lock:
            self._lifecycle.ensure_no_pending_operation(BEGIN)
            self._lifecycle.raise_if_failed()
            self._lifecycle.transition_to(_State.IN_TRANSACTION)
            if version is None:
                # Use the version of the previous transaction, or 1 if there was none under this epoch.
                version = self._last_transaction_version or 1
            if self._needs_new_epoch(version):
                self._request_producer_id(self.id_and_epoch)
            self._last_transaction_version = version
            self._transaction_count += 1
            self._transaction = OpenTransaction(version, number=self._transaction_count)

    def commit(self) -> Operation:
        """Start committing the open transaction, or join a commit that is already pending. Return the operation."""
        with self._lock:
            return self._lifecycle.start_or_join(COMMIT, lambda: self._lifecycle.transition_to(_State.COMMITTING))

    def abort(self) -> Operation:
        """Start aborting the open transaction, or join an abort that is already pending. Return the abort's operation.

        A pending commit is replaced if its EndTxn request has not been sent yet.
        """
        with self._lock:
            transaction = self._transaction
            if self.state is _State.COMMITTING and transaction is not None and not transaction.is_end_sent:
                # Fail the commit before it is discarded, because another thread may be waiting for its outcome.
                self._transition_to_abortable_error(
                    TransactionAbortedError("abort_transaction() was called before the commit was sent.")
                )
                self._lifecycle.discard_pending()
            return self._lifecycle.start_or_join(ABORT, self._begin_abort)

    def stop_accepting_records(self) -> None:
        """Reject further records, so that the next flush is the last one before the transaction is prepared.

        From then on, the transaction can only be prepared or ended.
        """
        with self._lock:
            self._lifecycle.ensure_in_transaction(PREPARE)
            self._require_transaction().accepts_records = False

    def find_last_offsets_operation(self) -> Operation | None:
        """Return the latest operation of `send_offsets` that is not done, or None if all offsets are written."""
        with self._lock:
            unwritten_offsets = [] if self._transaction is None else self._transaction.unwritten_offsets
            return unwritten_offsets[-1].operation if unwritten_offsets else None

    def prepare(self) -> TransactionIdentity | None:
        """Leave the transaction open for another process to end, and return the identity that the process needs.

        If the transaction is empty, end it and return None.

        Call this only when all records are acknowledged and all offsets are written.
        """
        with self._lock:
            self._lifecycle.ensure_in_transaction(PREPARE)
            transaction = self._require_transaction()
            if not transaction.is_started:
                self._complete_transaction()
                return None
            self._lifecycle.transition_to(_State.PREPARED)
            transaction.is_shared = True
            return TransactionIdentity(self.transactional_id, *self.id_and_epoch, transaction.version)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> Operation:
        """Add a consumer group's offsets to the transaction. Return an operation that is done once they are written."""
        with self._lock:
            self._lifecycle.ensure_in_transaction(SEND_OFFSETS)
            if not self._require_transaction().accepts_records:
                raise self._lifecycle.build_ended_error(SEND_OFFSETS)
            operation = self._lifecycle.create_operation(SEND_OFFSETS)
            if offsets:
                self._require_transaction().unwritten_offsets.append(GroupOffsets(group, dict(offsets), operation))
            else:
                operation.finish()
            return operation

    def require_transaction_number(self, expected_number: int | None = None) -> int:
        """Return the number of the open transaction, to which the caller may add records.

        Raise IllegalStateError if no transaction is open, or if the open one no longer accepts records. If it has
        failed, raise its error.

        `expected_number`: the number that the open transaction must have; None if any will do. A call that has waited
        for metadata or memory passes the number of its own transaction, because its record must not end up in a later
        one.
        """
        with self._lock:
            transaction = self._transaction
            if expected_number is not None and (transaction is None or transaction.number != expected_number):
                raise self._lifecycle.build_ended_error(SEND)
            self._lifecycle.ensure_in_transaction(SEND)
            assert transaction is not None
            if not transaction.accepts_records:
                raise self._lifecycle.build_ended_error(SEND)
            return transaction.number

    def abort_or_get_pending(self) -> Operation | None:
        """Return the operation that must finish before the producer closes; None if there is none.

        If a transaction is open, start aborting it. Otherwise, an operation may be pending from an earlier call.

        If the transaction must stay open, nothing needs to finish (see `OpenTransaction.must_stay_open`).
        """
        with self._lock:
            transaction = self._transaction
            if transaction is not None:
                transaction.is_producer_closing = True
            if self.has_abortable_transaction:
                self._lifecycle.discard_pending()
            if transaction is not None and transaction.must_stay_open:
                return None
            if self.has_abortable_transaction:
                return self.abort()
            return self._lifecycle.pending_operation

    @property
    def leaves_transaction_open(self) -> bool:
        """Whether the producer, which is being closed, has a transaction that should have ended and has not.

        A transaction that no broker knows of needs no end, and a prepared one is left to another process. After a fatal
        error, which is logged, the transaction may belong to another producer.
        """
        with self._lock:
            if self._transaction is None or self.state in (_State.PREPARED, _State.FATAL_ERROR):
                return False
            return not self._transaction.can_end_without_request(is_aborting=True)

    def is_pending(self, call_name: str) -> bool:
        """Return whether a call of this method has begun an operation whose result no caller has read yet."""
        with self._lock:
            pending_operation = self._lifecycle.pending_operation
            return pending_operation is not None and pending_operation.name == call_name

    @property
    def has_abortable_transaction(self) -> bool:
        """Whether a transaction is open that must be aborted before the producer closes.

        A prepared transaction stays open, because another process is to end it.
        """
        return self.state in (_State.IN_TRANSACTION, _State.ABORTABLE_ERROR)

    # --- the sender thread

    @property
    def should_drop_unsent_batches(self) -> bool:
        """Whether batches that have not been sent yet must fail, because the transaction will not be committed."""
        return self.state in (_State.ABORTING, _State.ABORTABLE_ERROR, _State.FATAL_ERROR)

    @property
    def must_resend_batches_in_doubt(self) -> bool:
        """Whether batches that may be stored must be sent again before the transaction is aborted (version 1)."""
        with self._lock:
            transaction = self._transaction
            return transaction is not None and transaction.version < 2 and self.state is not _State.FATAL_ERROR

    def admit_batch(self, topic_partition: TopicPartition, *, is_retry: bool) -> bool:
        """Return whether a batch for this partition may be sent now.

        If the partition must first be added to the transaction (version 1), request the addition and return False.

        `is_retry`: whether the batch was sent before.
        """
        with self._lock:
            transaction = self._transaction
            if transaction is None or transaction.is_end_sent or self._needs_producer_id:
                return False
            is_writable = self.state in WRITABLE_STATES
            if topic_partition in transaction.added_partitions:
                # A retry is allowed even if the transaction can only be aborted. Its records are aborted, too, because
                # EndTxn is not sent before the batch is done.
                return is_writable or (is_retry and self.state is not _State.FATAL_ERROR)
            if not is_writable:
                return False
            if transaction.version < 2:
                transaction.partitions_to_add.add(topic_partition)
                return False
            transaction.added_partitions.add(topic_partition)
            transaction.is_started = True
            return True

    @property
    def identity(self) -> TransactionIdentity:
        """The identity of the open transaction, which its requests contain. A transaction must be open."""
        with self._lock:
            return TransactionIdentity(self.transactional_id, *self.id_and_epoch, self._require_transaction().version)

    def handle_rejected_record(self, transaction_number: int, error: KafkaSinkError) -> None:
        """Prevent the commit of a transaction, because a record could not be added to it.

        Do nothing if the transaction has ended, or if the error is an IllegalStateError. That error means that the call
        came too late: its record belongs to no transaction, so none is incomplete without it.

        `transaction_number`: the number of the transaction to which the record would have been added.
        """
        with self._lock:
            if isinstance(error, IllegalStateError):
                return
            if self._transaction is not None and self._transaction.number == transaction_number:
                self.handle_failed_batch(error, has_sequence=False)

    def handle_failed_batch(self, error: KafkaSinkError, *, has_sequence: bool, in_doubt: bool = False) -> None:
        """Prevent the commit of the transaction, because one of its batches was not stored, or may not have been.

        `has_sequence`: whether the batch had sequence numbers, which may now be missing from the partition's log.
        `in_doubt`: whether brokers may have stored the batch, or may still store it.
        """
        with self._lock:
            transaction = self._transaction
            if transaction is None:
                return
            transaction.needs_new_epoch |= has_sequence
            transaction.has_late_batch |= in_doubt and transaction.version < 2
            # Once EndTxn has been sent, the coordinator may already have committed, so only it knows the outcome.
            if not transaction.is_end_sent:
                self._transition_to_abortable_error(error)
                if transaction.must_stay_open:
                    self._lifecycle.finish_operation(error)  # close() has nothing to wait for anymore

    def detect_recreated_topic(self, topic: str, topic_id: UUID | None) -> None:
        """Prevent the commit of the transaction if a topic was recreated after the transaction had written to it.

        The earlier records were deleted with the previous topic, so a commit would expose only part of the transaction.
        Call this for each batch that a broker has stored.

        `topic_id`: the topic's id when the batch was sent; None if the cluster has no topic ids.
        """
        with self._lock:
            transaction = self._transaction
            if transaction is None or topic_id is None:
                return
            first_topic_id = transaction.topic_ids.setdefault(topic, topic_id)
            if topic_id != first_topic_id:
                error = DeliveryError(
                    f"Topic {topic} was deleted and created again during the transaction, so the records acknowledged "
                    "earlier have been lost."
                )
                self.handle_failed_batch(error, has_sequence=True)  # in a transaction, all batches have sequences

    def next_request(self, now_ms: float, *, is_flushed: bool) -> Request | None:
        """Return the next request, or None if none can be sent now.

        There are two side effects. If the transaction has started since the last call, `now_ms` becomes its start time.
        If an empty transaction is to end, it ends here, because that takes no request.

        `is_flushed`: whether all batches of the transaction are done and have no request in flight.
        """
        with self._lock:
            transaction = self._transaction
            if transaction is not None and transaction.is_started and transaction.started_ms is None:
                transaction.started_ms = now_ms
            can_end = self.state in ENDING_STATES and is_flushed and not self._needs_producer_id
            if can_end and self._is_transaction_empty():
                self._complete_transaction()
            return self._build_next_request(is_flushed)

    def try_begin_sending(self, request: Request) -> bool:
        """Record that a request is being sent, and return True. Call this immediately before its bytes are sent.

        Return False, and record nothing, if the request must not be sent anymore. For example, `next_request` may have
        returned an EndTxn that commits, but since then a record has failed, so the transaction can only be aborted.
        """
        with self._lock:
            if isinstance(request, EndTransaction):
                required_state = _State.COMMITTING if request.commit else _State.ABORTING
                if self.state is not required_state or self._require_transaction().must_stay_open:
                    return False
            transaction = self._transaction
            if transaction is not None:
                transaction.is_end_sent |= request.ends_transaction
                transaction.is_started |= request.starts_v2_transaction and transaction.version >= 2
                if _is_commit(request):
                    transaction.unrejected_commit_count += 1
            return True

    def handle_disconnect(self, request: Request, *, was_sent: bool) -> None:
        """Handle a request whose connection was lost before the response. A broker may still execute the request.

        `was_sent`: whether the request was sent, so that the broker may have received it.
        """
        with self._lock:
            self._may_have_late_request |= was_sent and request.affects_next_transaction_if_late
            self._mark_in_doubt(request)

    def handle_response(self, request: Request, response: Message) -> None:
        """Record the facts in a response that hold even if the request is retried.

        These are whether the coordinator may have executed the request, and for which partitions it has executed it.
        """
        with self._lock:
            classification = request.classify(response)
            if may_be_stored(classification):
                self._mark_in_doubt(request)
            elif classification.verdict is not Verdict.DONE and _is_commit(request):
                self._require_transaction().unrejected_commit_count -= 1
            is_done_or_retried = classification.verdict < Verdict.ABORTABLE
            if is_done_or_retried:
                request.on_partitions_executed(response, self)

    def handle_result(self, request: Request, response: Message, now_ms: float) -> None:
        """Handle the final response to a request, after which the request is not retried."""
        with self._lock:
            if isinstance(request, InitProducerId) and not self._can_use_response(request):
                return  # the response is stale
            classification = request.classify(response)
            if classification.verdict is Verdict.DONE:
                try:
                    request.on_executed(response, self)
                except DecodeError as decode_error:
                    # An exception would end the sender's loop, and hide this error behind that of the thread.
                    self.handle_failure(request, decode_error, Verdict.FATAL)
                return
            advice = self._build_timeout_advice(now_ms) if classification.code in OWNERSHIP_LOST_ERRORS else None
            error = request.build_rejection_error(self.transactional_id, classification, advice)
            self.handle_failure(request, error, classification.verdict)

    def handle_failure(self, request: Request, error: KafkaSinkError, verdict: Verdict) -> None:
        """Handle a request that was rejected or could not be sent.

        The verdict determines the consequence: the call may be repeated, the transaction must be aborted, or the
        producer has failed. An abortable error is fatal in two cases: the transaction is already being aborted and the
        abort cannot be completed without this request, or an earlier request may have committed the transaction.
        """
        with self._lock:
            if verdict is Verdict.UNAUTHORIZED and self.state is _State.INITIALIZING:
                # init_transactions() may be called again once the permission has been granted.
                self._needs_producer_id = False
                self._lifecycle.transition_to(_State.UNINITIALIZED)
                self._lifecycle.finish_operation(error)
            elif verdict is Verdict.ABORTABLE and self._can_abort_after_failure(request):
                if self._transaction is not None:
                    self._transaction.needs_new_epoch = True
                self._transition_to_abortable_error(error)
            else:
                self.transition_to_fatal_error(error)

    def _can_abort_after_failure(self, request: Request) -> bool:
        """Return whether the transaction can still be aborted after a request has failed with an abortable error."""
        is_abort_incomplete = request.completes_abort and self.state is _State.ABORTING
        return not (is_abort_incomplete or self._has_unrejected_commit)

    def transition_to_fatal_error(self, error: KafkaSinkError) -> None:
        """Put the producer into FATAL_ERROR, and fail all operations. A later error does not replace the first one."""
        with self._lock:
            error = self._warn_if_possibly_committed(error)
            if self.state is not _State.FATAL_ERROR:
                description = repr(self)  # contains the state before the failure
                self._lifecycle.enter_error_state(_State.FATAL_ERROR, error)
                _log.error("%s failed permanently: %s", description, error)
            self.close(error)

    def close(self, error: KafkaSinkError) -> None:
        """Fail all operations, including those that begin later, because the sender has ended."""
        with self._lock:
            self._lifecycle.closing_error = self._warn_if_possibly_committed(error)
            self._lifecycle.finish_operation(self._lifecycle.closing_error)
            if self._transaction is not None:
                self._transaction.fail_offsets(error)

    def _ensure_id_can_change(self, requested_id: str) -> None:
        """Raise IllegalStateError if an operation is pending under the current transactional id.

        Its outcome could not be learned under another id. After a fatal error, no call can be repeated to learn it, so
        a pending operation does not matter.
        """
        pending_operation = self._lifecycle.pending_operation
        if pending_operation is not None and self.state is not _State.FATAL_ERROR:
            raise IllegalStateError(
                f"transactional id {self.transactional_id}: {INIT}() for {requested_id} is not possible, because the "
                f"outcome of {pending_operation.name}() is unknown. Call {pending_operation.name}() again, or create a "
                "new producer."
            )

    def _begin_init(self, transactional_id: str) -> None:
        """Start initializing the producer under a transactional id, and forget any previous transaction."""
        self._lifecycle.transition_to(_State.INITIALIZING)
        self._lifecycle.transactional_id = transactional_id
        self._transaction = None
        self._request_producer_id(NO_PRODUCER_ID)

    def _begin_abort(self) -> None:
        """Start aborting the transaction, and fail those of its offsets that are not written yet."""
        self._lifecycle.transition_to(_State.ABORTING)
        if self._transaction is not None:
            self._transaction.fail_offsets(TransactionAbortableError("The transaction was aborted."))

    # --- the next request

    def _is_transaction_empty(self) -> bool:
        """Return whether the transaction can end without a request to the coordinator."""
        is_aborting = self.state is _State.ABORTING
        return self._transaction is None or self._transaction.can_end_without_request(is_aborting=is_aborting)

    def _build_next_request(self, is_flushed: bool) -> Request | None:
        """Return the next request in the current state, or None if none can be sent now.

        The order matters. A producer id comes first, because all other requests contain it. Additions to the
        transaction come before its end, because anything added later would not be part of it.
        """
        if self.state in (_State.FATAL_ERROR, _State.ABORTABLE_ERROR):
            return None
        if self._needs_producer_id:
            return InitProducerId(self.transactional_id, self._timeout_ms, self._init_request_identity)
        transaction = self._transaction
        if transaction is not None and self.state in WRITABLE_STATES:
            if transaction.partitions_to_add:
                return AddPartitions(self.identity, frozenset(transaction.partitions_to_add))
            if transaction.unwritten_offsets:
                return self._build_offsets_request(transaction.unwritten_offsets[0])
        if transaction is None or self.state not in ENDING_STATES or not is_flushed or transaction.must_stay_open:
            return None
        return EndTransaction(self.identity, commit=self.state is _State.COMMITTING, has_begun=transaction.is_started)

    def _can_use_response(self, request: InitProducerId) -> bool:
        """Return whether a response to InitProducerId is for the identity that the producer is requesting now.

        The response is stale after this sequence of events:

            1. InitProducerId is sent, because a transaction needs a new epoch.
            2. The transaction is empty, and `prepare` ends it.
            3. `init` or `take_over` changes the identity.
            4. The response arrives.
        """
        if not self._needs_producer_id or request.transactional_id != self.transactional_id:
            return False
        return request.current_id_and_epoch == self._init_request_identity

    def _build_offsets_request(self, group_offsets: GroupOffsets) -> Request:
        """Build the request that writes the offsets or, in version 1, the one that must first add their group."""
        identity = self.identity
        if group_offsets.is_group_added or identity.version >= 2:
            return CommitOffsets(identity, group_offsets.group_metadata, dict(group_offsets.offsets))
        return AddOffsets(identity, group_offsets.group_metadata.group_id)

    # --- executed requests (TransactionListener)

    def on_initialized(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        """Adopt the identity that the coordinator has assigned (InitProducerId)."""
        self.id_and_epoch = id_and_epoch
        self._needs_producer_id = self._may_have_late_request = False
        if self._transaction is None:
            self._last_transaction_version = 0  # no transaction has begun under the new epoch yet
        if self.state is _State.INITIALIZING:
            self._lifecycle.transition_to(_State.READY)
            self._lifecycle.finish_operation()

    def on_partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_transaction().add_partitions(partitions)

    def on_group_added(self) -> None:
        self._require_transaction().mark_group_added()

    def on_offsets_written(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_transaction().remove_written_offsets(partitions)

    def on_ended(self, next_id_and_epoch: ProducerIdAndEpoch | None) -> None:
        """Complete the transaction, which the coordinator has ended (EndTxn).

        `next_id_and_epoch`: the identity for the next transaction; None if the current one is kept (version 1).
        """
        if next_id_and_epoch is not None:
            self.id_and_epoch = next_id_and_epoch
        self._complete_transaction()

    def _complete_transaction(self) -> None:
        """Discard the transaction, which has ended, and finish the operation that has ended it.

        In version 1, if sequence numbers may be missing, the operation finishes only after a new epoch was assigned.
        """
        transaction, self._transaction = self._transaction, None
        if transaction is not None and transaction.needs_new_epoch and transaction.version < 2:
            self._request_producer_id(self.id_and_epoch)
            self._lifecycle.transition_to(_State.INITIALIZING)
        else:
            self._lifecycle.transition_to(_State.READY)
            self._lifecycle.finish_operation()

    def _build_timeout_advice(self, now_ms: float) -> str | None:
        """Return advice for the user if the transaction was open for longer than transaction.timeout.ms, else None.

        After that time, the coordinator aborts the transaction under the next epoch, and rejects this producer as if
        another producer had fenced it (KIP-588).
        """
        started_ms = None if self._transaction is None else self._transaction.started_ms
        if started_ms is None or now_ms - started_ms < self._timeout_ms:
            return None
        return (
            f"The transaction began {now_ms - started_ms:.0f} ms before, and the coordinator aborts transactions that "
            f"stay open for longer than transaction.timeout.ms ({self._timeout_ms} ms). Create a new producer and call "
            "init_transactions(). If transactions take that long, increase transaction.timeout.ms."
        )

    def _transition_to_abortable_error(self, error: KafkaSinkError) -> None:
        """Fail the transaction, so that it can only be aborted. Do nothing if it has failed or is being aborted."""
        if self.state not in (_State.IN_TRANSACTION, _State.COMMITTING, _State.INITIALIZING):
            return
        _log.info("%r: the transaction must be aborted: %s", self, error)
        self._lifecycle.enter_error_state(_State.ABORTABLE_ERROR, error)
        self._lifecycle.finish_operation(self._lifecycle.build_abortable_error(error))
        if self._transaction is not None:
            self._transaction.fail_offsets(self._lifecycle.build_abortable_error(error))

    # --- helpers

    def _needs_new_epoch(self, version: int) -> bool:
        """Return whether a transaction of this version must begin under a new epoch.

        That is the case after a transaction of version 1, for one of two reasons. Brokers expect a new epoch when the
        version changes from 1 to 2. A late request of an earlier transaction would affect the new transaction if both
        had the same epoch.

        Otherwise, nothing was sent under the current epoch: either no transaction has begun under it (version 0), or
        the last one was of version 2, where each transaction that is not empty gets a new epoch at its end.
        """
        if self._last_transaction_version != 1:
            return False
        return version >= 2 or self._may_have_late_request

    def _request_producer_id(self, identity: ProducerIdAndEpoch) -> None:
        """Make InitProducerId, with this identity, the next request. Other requests wait for its response."""
        self._needs_producer_id = True
        self._init_request_identity = identity

    def _mark_in_doubt(self, request: Request) -> None:
        """Put the transaction in doubt if this request, which may have been executed, can open a transaction."""
        if self._transaction is not None:
            self._transaction.is_in_doubt |= request.may_open_transaction

    @property
    def _is_possibly_committed(self) -> bool:
        """Whether the coordinator may have committed the open transaction.

        Another process may have committed a shared transaction. This matters only for errors of this producer's own
        attempt to end it.
        """
        is_ending_shared = self._transaction is not None and self._transaction.is_shared and self.state in ENDING_STATES
        return is_ending_shared or self._has_unrejected_commit

    @property
    def _has_unrejected_commit(self) -> bool:
        """Whether this producer has sent a commit that the coordinator may have executed."""
        return self._transaction is not None and self._transaction.unrejected_commit_count > 0

    def _warn_if_possibly_committed(self, error: KafkaSinkError) -> KafkaSinkError:
        """Return an error, with `possibly_stored` set if the coordinator may have committed the open transaction.

        A user who took the error for a rejection of the commit would send all records of the transaction again.
        """
        if not self._is_possibly_committed:
            return error
        return mark_possibly_stored(error, "The transaction may have been committed.")

    def _require_transaction(self) -> OpenTransaction:
        assert self._transaction is not None
        return self._transaction
