"""TransactionManager: what a transactional producer may do now, and what it must ask the brokers next.

    callers' threads    init, begin, commit, abort, ...   -> an Operation to wait for, or an error at once
    sender's thread     next_request -> sending -> responded, finished | lost | failed      one request at a time
                        admits                            may this batch leave?
                        batch_failed, fail_fatally       how batches ended

Nothing here does IO or reads a clock; times are arguments. There is no queue of requests: `_wanted` derives the next
one from the state before each attempt. Its order is the priority: a producer id before all else, then what joins the
transaction, then its end. The engine of requests/pending.py routes and retries them (transaction_call.py). What a
response means, and which of the methods at the end follows from it, is defined by each request, in
requests/transactions.py.
The end is asked for only when no record is on its way any more (`quiet`). An empty transaction ends without a request.

In doubt: a request that adds partitions or a group may have been carried out although its answer was lost, or was that
of a coordinator which could not store it in time. A transaction that is aborted then is ended at the brokers, and it is
no error if they answer that nothing had begun. A request to end that is carried out late would end the next
transaction. So the next one begins under another epoch, as each transaction of version 2 does.
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
    DeliveryError,
    IllegalStateError,
    KafkaSinkError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from spark_kafka_sink.producer.transactions import states as calls
from spark_kafka_sink.producer.transactions.open_transaction import GroupOffsets, OpenTransaction
from spark_kafka_sink.producer.transactions.states import (
    ENDING_STATES,
    WRITABLE_STATES,
    Operation,
    TransactionCalls,
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

_S = TransactionManagerState
Request = TransactionRequest[Any]


class TransactionManager:
    """All fields are guarded by `_lock`. `state`, `error` and `transactional_id` are read without it,
    and may be a moment old."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.id_and_epoch = NO_PRODUCER_ID
        self.last_failure: KafkaSinkError | None = None
        """Why the last request has failed; None if it has not. Written by the sender's thread, read by any."""
        self._calls = TransactionCalls(transactional_id)
        self._timeout_ms = timeout_ms
        self._version: int  # of the last transaction under this epoch; 0: there was none
        self._lock = threading.RLock()
        self._transaction: OpenTransaction | None = None
        self._wants_producer_id = False
        self._expected: ProducerIdAndEpoch  # the one that goes with the wish for a new one (KIP-360)
        self._begun = 0  # transactions so far
        self._may_come_late = False  # under this epoch a request had no answer, and may be carried out yet

    @property
    def transactional_id(self) -> str:
        return self._calls.transactional_id

    @property
    def state(self) -> TransactionManagerState:
        return self._calls.state

    @property
    def error(self) -> KafkaSinkError | None:
        """The reason for the state, in the two error states, and while a transaction is aborted for it."""
        return self._calls.error

    @property
    def fatal_error(self) -> KafkaSinkError | None:
        return self.error if self.state is _S.FATAL_ERROR else None

    def __repr__(self) -> str:
        return f"TransactionManager({self.transactional_id}, {self.state.value})"

    # --- calls, from any thread

    def init(self, transactional_id: str | None = None) -> Operation:
        """Fence all earlier producers of the id, end what they left open, and get a producer id.

        A producer that is ready, or whose prepared transaction others have ended, may do so again, under any id.
        """
        with self._lock:
            wanted = transactional_id or self.transactional_id
            pending = None if self.state is _S.FATAL_ERROR else self._calls.pending
            if pending is not None and wanted != self.transactional_id:
                raise IllegalStateError(
                    f"transactional id {self.transactional_id}: a call for {wanted} cannot begin, because it is not "
                    f"known how {pending.name}() ended: call that again, or make a new producer."
                )
            return self._calls.operate(calls.INIT, lambda: self._begin_init(wanted))

    def take_over(self, prepared: TransactionIdentity) -> None:
        """Hold a transaction that another process has prepared, to commit or abort it."""
        with self._lock:
            self._calls.move(_S.INITIALIZING)
            self._wants_producer_id = False
            self._calls.transactional_id, self.id_and_epoch = prepared.transactional_id, prepared.id_and_epoch
            self._version = prepared.version
            # What the other process has sent under this epoch is not known here, nor which sequence comes next.
            self._may_come_late = True
            self._transaction = OpenTransaction(prepared.version, started=True)
            self._calls.move(_S.PREPARED)

    def begin(self, version: int | None) -> None:
        """`version` is what the cluster has agreed on now; None if that is not known."""
        with self._lock:
            self._calls.reject_while_pending(calls.BEGIN)
            self._calls.raise_if_failed()
            self._calls.move(_S.IN_TRANSACTION)
            version = (self._version or 1) if version is None else version
            if self._version == 1 and (version >= 2 or self._may_come_late):
                # Brokers expect version 2 to begin under an epoch of its own.
                self._wants_producer_id, self._expected = True, self.id_and_epoch
            self._version = version
            self._begun += 1
            self._transaction = OpenTransaction(version, self._begun)

    def commit(self) -> Operation:
        with self._lock:
            return self._calls.operate(calls.COMMIT, lambda: self._calls.move(_S.COMMITTING))

    def abort(self) -> Operation:
        """Begin an abort, also of a transaction whose commit is pending, as long as no EndTxn was sent."""
        with self._lock:
            transaction = self._transaction
            if self.state is _S.COMMITTING and transaction is not None and not transaction.end_sent:
                self._abortable(TransactionAbortedError("abort_transaction() was called before the commit was sent."))
                self._calls.forget_pending()
            return self._calls.operate(calls.ABORT, self._begin_abort)

    def stop_accepting_records(self) -> None:
        """Before the last flush of a transaction that is to be prepared. An abort may follow, and nothing else."""
        with self._lock:
            self._calls.ensure_in_transaction(calls.PREPARE)
            self._open().accepts_records = False

    def last_offsets_operation(self) -> Operation | None:
        """The last offsets of groups that are on their way into the transaction."""
        with self._lock:
            groups = [] if self._transaction is None else self._transaction.groups
            return groups[-1].operation if groups else None

    def prepare(self) -> TransactionIdentity | None:
        """Leave it open for another process to end, if all records are acknowledged and all offsets are written. None:
        it was empty."""
        with self._lock:
            self._calls.ensure_in_transaction(calls.PREPARE)
            transaction = self._open()
            if not transaction.started:
                self._calls.move(_S.COMMITTING)
                self._complete()
                return None
            self._calls.move(_S.PREPARED)
            return TransactionIdentity(self.transactional_id, *self.id_and_epoch, transaction.version)

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> Operation:
        with self._lock:
            self._calls.ensure_in_transaction(calls.SEND_OFFSETS)
            if not self._open().accepts_records:
                raise self._calls.build_ended_error(calls.SEND_OFFSETS)
            operation = Operation(calls.SEND_OFFSETS)
            if offsets:
                self._open().groups.append(GroupOffsets(group, dict(offsets), operation))
            else:
                operation.finish()
            return operation

    def ensure_can_send(self, number: int | None = None) -> int:
        """Raise if no record can join the transaction. Returns its number.

        `number`: of the transaction that was open when the call began. A call that has waited for metadata or memory
        must not put its record into the next one.
        """
        with self._lock:
            transaction = self._transaction
            if number is not None and (transaction is None or transaction.number != number):
                raise self._calls.build_ended_error("send")
            self._calls.ensure_in_transaction("send")
            assert transaction is not None
            if not transaction.accepts_records:
                raise self._calls.build_ended_error("send")
            return transaction.number

    def abort_if_open(self) -> Operation | None:
        """For close(). Returns what to wait for: the abort, or a call that is under way or has run into its limit."""
        with self._lock:
            if self.is_open:
                self._calls.forget_pending()
                return self.abort()
            return self._calls.pending

    @property
    def is_open(self) -> bool:
        """There is a transaction for close() to abort. One that was prepared is for others to end."""
        return self.state in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR)

    # --- the sender's thread

    @property
    def drops_unsent_batches(self) -> bool:
        """Records that have not left yet are not to leave any more."""
        return self.state in (_S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR)

    def admit_batch(self, topic_partition: TopicPartition, *, is_retry: bool) -> bool:
        """May a batch for this partition leave? If its partition must be added first, it will be."""
        with self._lock:
            transaction = self._transaction
            if transaction is None or transaction.end_sent or self._wants_producer_id:
                return False
            writing = self.state in WRITABLE_STATES
            if topic_partition in transaction.partitions:
                return writing or (is_retry and self.state is not _S.FATAL_ERROR)
            if not writing:
                return False
            if transaction.version < 2:
                transaction.waiting.add(topic_partition)
                return False
            transaction.partitions.add(topic_partition)
            transaction.started = True
            return True

    @property
    def identity(self) -> TransactionIdentity:
        """What a request of batches must say of the transaction that they belong to."""
        with self._lock:
            return TransactionIdentity(self.transactional_id, *self.id_and_epoch, self._open().version)

    def record_rejected(self, number: int, error: KafkaSinkError) -> None:
        """Fail the transaction for a record that a call could not add to it.

        An IllegalStateError says that the call came too late: its record belongs to no transaction, and the one that is
        being committed is complete without it.
        """
        with self._lock:
            if isinstance(error, IllegalStateError):
                return
            if self._transaction is not None and self._transaction.number == number:
                self.batch_failed(error, has_sequence=False)

    def batch_failed(self, error: KafkaSinkError, *, has_sequence: bool) -> None:
        """Records of the transaction are not stored, or it is not known whether they are."""
        with self._lock:
            transaction = self._transaction
            if transaction is None:
                return
            transaction.needs_new_epoch |= has_sequence
            # Once EndTxn was sent, the coordinator alone decides: it may have committed already.
            if not transaction.end_sent:
                self._abortable(error)

    def batch_stored(self, topic: str, topic_id: UUID | None) -> None:
        """Make the transaction abortable if earlier records of it went to another topic of this name.

        Those records were deleted with their topic, so a commit would show a part of the transaction. `topic_id` is
        None where the cluster has no topic ids.
        """
        with self._lock:
            transaction = self._transaction
            if transaction is None or topic_id is None:
                return
            if transaction.topic_ids.setdefault(topic, topic_id) != topic_id:
                self.batch_failed(
                    DeliveryError(
                        f"Topic {topic} was deleted and created again during the transaction: the records that were "
                        "acknowledged before are lost."
                    ),
                    has_sequence=True,
                )

    def next_request(self, now: float, *, is_flushed: bool) -> Request | None:
        """The request to send next, as the state is now. `quiet`: no record is on its way."""
        with self._lock:
            transaction = self._transaction
            if transaction is not None and transaction.started and transaction.started_ms is None:
                transaction.started_ms = now
            if self.state in ENDING_STATES and is_flushed and not self._wants_producer_id and self._is_empty():
                self._complete()
            return self._wanted(is_flushed)

    def sending(self, request: Request) -> bool:
        """Record that the request is being sent. Call this right before its bytes leave.

        Return False, and record nothing, if a failed record has changed how the transaction ends since `next_request`
        returned the request: an EndTxn that commits must not leave once the transaction is abortable.
        """
        with self._lock:
            if isinstance(request, EndTransaction) and self.state is not (
                _S.COMMITTING if request.commit else _S.ABORTING
            ):
                return False
            transaction = self._transaction
            if transaction is not None:
                transaction.end_sent |= request.ends_transaction
                transaction.started |= request.starts_v2_transaction and transaction.version >= 2
            return True

    def lost(self, request: Request, *, was_sent: bool) -> None:
        """The connection ended before the response: the request may have been carried out, or may be yet."""
        with self._lock:
            self._may_come_late |= was_sent and request.unsafe_when_delayed
            self._doubt(request)

    def responded(self, request: Request, response: Message) -> None:
        """Note what a response says, also where the request will be sent again."""
        with self._lock:
            classification = request.classify(response)
            if may_be_stored(classification):
                self._doubt(request)
            if classification.verdict < Verdict.ABORTABLE:
                request.apply_partial(response, self)

    def finished(self, request: Request, response: Message, now: float) -> None:
        """Take a final response."""
        with self._lock:
            if isinstance(request, InitProducerId) and not self._is_wanted(request):
                return
            classification = request.classify(response)
            if classification.verdict is Verdict.DONE:
                request.apply(response, self)
                return
            advice = self._timeout_advice(now) if classification.code in OWNERSHIP_LOST_ERRORS else None
            error = request.rejection(self.transactional_id, classification, advice)
            self.failed(request, error, classification.verdict)

    def failed(self, request: Request, error: KafkaSinkError, verdict: Verdict) -> None:
        """A request was rejected, or cannot be sent. While a transaction is aborted nothing but the abort can follow an
        abortable error: it is fatal if the abort cannot end without this request."""
        with self._lock:
            if verdict is Verdict.UNAUTHORIZED and self.state is _S.INITIALIZING:
                self._wants_producer_id = False
                self._calls.move(_S.UNINITIALIZED)
                self._calls.finish(error)
            elif verdict is Verdict.ABORTABLE and not (request.completes_abort and self.state is _S.ABORTING):
                if self._transaction is not None:
                    self._transaction.needs_new_epoch = True
                self._abortable(error)
            else:
                self.fail_fatally(error)

    def fail_fatally(self, error: KafkaSinkError) -> None:
        """The producer cannot go on."""
        with self._lock:
            if self.state is not _S.FATAL_ERROR:
                producer = repr(self)
                self._calls.fail(_S.FATAL_ERROR, error)
                _log.error("%s cannot go on: %s", producer, error)
            self.close(error)

    def close(self, error: KafkaSinkError) -> None:
        """No call gets an answer any more."""
        with self._lock:
            self._calls.finish(error)
            if self._transaction is not None:
                self._transaction.fail_offsets(error)

    def _begin_init(self, transactional_id: str) -> None:
        self._calls.move(_S.INITIALIZING)
        self._calls.transactional_id = transactional_id
        self._transaction = None
        self._wants_producer_id, self._expected = True, NO_PRODUCER_ID

    def _begin_abort(self) -> None:
        self._calls.move(_S.ABORTING)
        if self._transaction is not None:
            self._transaction.fail_offsets(TransactionAbortableError("The transaction was aborted."))

    # --- what to ask next

    def _is_empty(self) -> bool:
        return self._transaction is None or self._transaction.is_empty(aborting=self.state is _S.ABORTING)

    def _wanted(self, is_flushed: bool) -> Request | None:
        if self.state in (_S.FATAL_ERROR, _S.ABORTABLE_ERROR):
            return None
        if self._wants_producer_id:
            return InitProducerId(self.transactional_id, self._timeout_ms, self._expected)
        transaction = self._transaction
        if transaction is not None and self.state in WRITABLE_STATES:
            if transaction.waiting:
                return AddPartitions(self.identity, frozenset(transaction.waiting))
            if transaction.groups:
                return self._about_offsets(transaction.groups[0])
        if transaction is None or self.state not in ENDING_STATES or not is_flushed:
            return None
        return EndTransaction(self.identity, self.state is _S.COMMITTING, has_begun=transaction.started)

    def _is_wanted(self, request: InitProducerId) -> bool:
        """Return whether the response counts. An empty transaction may be prepared while its new epoch is requested;
        then init() or take_over() may follow, and the response is about another identity."""
        wanted = (self.transactional_id, self._expected)
        return self._wants_producer_id and wanted == (request.transactional_id, request.expected)

    def _about_offsets(self, group: GroupOffsets) -> Request:
        whose = self.identity
        if group.added or whose.version >= 2:
            return CommitOffsets(whose, group.group, dict(group.offsets))
        return AddOffsets(whose, group.group.group_id)

    # --- what follows from answers (requests.Follower)

    def initialized(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        self.id_and_epoch = id_and_epoch
        self._wants_producer_id = self._may_come_late = False
        if self._transaction is None:
            self._version = 0
        if self.state is _S.INITIALIZING:
            self._calls.move(_S.READY)
            self._calls.finish()

    def partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        self._open().partitions_added(partitions)

    def group_added(self) -> None:
        self._open().group_added()

    def offsets_written(self, partitions: Iterable[TopicPartition]) -> None:
        self._open().offsets_written(partitions)

    def ended(self, next_id_and_epoch: ProducerIdAndEpoch | None) -> None:
        if next_id_and_epoch is not None:
            self.id_and_epoch = next_id_and_epoch
        self._complete()

    def _complete(self) -> None:
        """The transaction is over."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and transaction.needs_new_epoch and transaction.version < 2:
            self._wants_producer_id, self._expected = True, self.id_and_epoch
            self._calls.move(_S.INITIALIZING)
        else:
            self._calls.move(_S.READY)
            self._calls.finish()

    def _timeout_advice(self, now: float) -> str | None:
        """Name transaction.timeout.ms as the cause where a transaction has outlived it.

        The coordinator then aborts the transaction under the next epoch, and rejects this producer as if another one
        had taken over (KIP-588).
        """
        started_ms = None if self._transaction is None else self._transaction.started_ms
        if started_ms is None or now - started_ms < self._timeout_ms:
            return None
        return (
            f"The transaction was open for {now - started_ms:.0f} ms, longer than transaction.timeout.ms "
            f"({self._timeout_ms} ms): the coordinator has aborted it. Make a new producer and call "
            "init_transactions(), or raise transaction.timeout.ms."
        )

    def _abortable(self, error: KafkaSinkError) -> None:
        """The transaction cannot be committed. Of several reasons the first is kept; an abort goes on."""
        if self.state not in (_S.IN_TRANSACTION, _S.COMMITTING, _S.INITIALIZING):
            return
        _log.info("%r: the transaction must be aborted: %s", self, error)
        self._calls.fail(_S.ABORTABLE_ERROR, error)
        self._calls.finish(self._calls.build_abortable_error(error))
        if self._transaction is not None:
            self._transaction.fail_offsets(self._calls.build_abortable_error(error))

    # --- parts

    def _doubt(self, request: Request) -> None:
        if self._transaction is not None:
            self._transaction.in_doubt |= request.adds_to_transaction

    def _open(self) -> OpenTransaction:
        assert self._transaction is not None
        return self._transaction
