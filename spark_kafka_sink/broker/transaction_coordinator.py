"""TransactionCoordinator: assigns producer ids, fences producers, and commits or aborts their transactions.

    EMPTY --partitions added--> ONGOING --EndTxn--> PREPARE_* --markers--> COMPLETE_* --partitions added--> ONGOING ...
                                   |
                                   +-- InitProducerId from another producer, or timeout: abort, with a new epoch

By default the markers are written before the response to EndTxn, so no client sees a PREPARE state. If
`should_defer_completion` returns True for a transaction, its markers are written later by `complete_transaction`, as in
a real coordinator. Until then, requests with the transactional id fail, usually with CONCURRENT_TRANSACTIONS.

In transaction version 1, only InitProducerId and a timeout change the epoch. In version 2 (KIP-890), each EndTxn
increments the epoch and returns the new one, and producing a batch adds its partition to the transaction. The request
version selects the transaction version: EndTxn and TxnOffsetCommit from v5 on, and Produce from v12 on, use version 2
if the cluster supports it.

Methods return Kafka's error codes, where 0 means success. The cluster's lock guards the coordinator and its
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.broker.producer_state import NO_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.protocol import error_codes

MAX_EPOCH = 32767
"""The highest epoch, which is reserved for fencing a producer."""
MAX_TRANSACTIONAL_IDS = 10_000
"""Maximum number of transactional ids. They never expire here; Kafka's brokers expire them after a week without use."""

NOT_STARTED_MS = -1
"""The start time of a transaction that has not begun, as in DescribeTransactions."""

TopicPartition = tuple[str, int]
WriteMarker = Callable[[TopicPartition, int, int, bool], None]
"""A function that writes a marker. It takes the topic-partition, the producer id, the epoch, and whether to commit."""


class TransactionState(Enum):
    """Transaction states, with their names in Kafka's protocol."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


@dataclass
class TransactionMetadata:
    """The producer identity and most recent transaction of a transactional id, as in Kafka's class of this name."""

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH
    previous_epoch: int = NO_EPOCH
    """The epoch before `epoch` if a client may still use it to repeat a request, else NO_EPOCH."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The previous producer id, which was replaced because its epochs were exhausted."""
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.EMPTY
    version: int = 1
    """Transaction version (Kafka's feature `transaction.version`)."""
    marker_identity: tuple[int, int] = (NO_PRODUCER_ID, NO_EPOCH)
    """Producer id and epoch of the markers that end the transaction."""
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    started_at_monotonic_ms: float = NOT_STARTED_MS
    started_at_wall_ms: int = NOT_STARTED_MS

    @property
    def deadline_ms(self) -> float:
        """Time at which the transaction times out.

        Timers and checks must both use this value. Floating-point addition is order-sensitive, so a deadline that is
        computed elsewhere could differ slightly.
        """
        return self.started_at_monotonic_ms + self.timeout_ms

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether no epoch is left for the producer: the highest one is reserved for fencing it."""
        return self.epoch >= MAX_EPOCH - 1

    @property
    def is_ending(self) -> bool:
        """Whether the end has been decided but the markers have not been written yet."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(frozen=True)
class ProducerIdentity:
    """A producer id and epoch, or the error code with which a request for them was rejected."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    error_code: int = 0


class TransactionCoordinator:
    """The coordinator of all transactional ids. All nodes of the cluster share it."""

    def __init__(
        self,
        write_marker: WriteMarker,
        complete_group_offsets: Callable[[TransactionMetadata, bool], None],
        *,
        version: int = 2,
        max_timeout_ms: int = 900_000,
        first_producer_id: int = 0,
    ) -> None:
        """`complete_group_offsets` commits or discards a transaction's group offsets.

        It is called with the transaction and whether to commit.
        """
        self.version = version
        self.max_timeout_ms = max_timeout_ms
        self.transactions: dict[str, TransactionMetadata] = {}
        self.next_producer_id = first_producer_id
        self.should_defer_completion: Callable[[TransactionMetadata], bool] = lambda transaction: False
        """Returns whether `complete_transaction` will write the markers of an ending transaction later."""
        self._write_marker = write_marker
        self._complete_group_offsets = complete_group_offsets

    def allocate_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    # --- InitProducerId

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected_identity: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Assign a producer id and epoch. The new epoch fences other producers with the same transactional id.

        Return the new identity, or one with an error code.

        `expected_identity`: the current identity of a producer that requests its next epoch (KIP-360), or None for a
        producer that has just started.
        """
        if transactional_id is None:  # an idempotent producer without transactions
            return ProducerIdentity(self.allocate_producer_id(), epoch=0)
        if not transactional_id:
            return ProducerIdentity(error_code=error_codes.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.max_timeout_ms:
            return ProducerIdentity(error_code=error_codes.INVALID_TRANSACTION_TIMEOUT)
        transaction = self._find_or_add_transaction(transactional_id)
        if transaction is None:
            return ProducerIdentity(error_code=error_codes.POLICY_VIOLATION)
        # Fence before looking at the state, so that a producer whose id was replaced cannot abort its successor's
        # transaction.
        if expected_identity is not None and not _can_request_next_epoch(transaction, expected_identity):
            return ProducerIdentity(error_code=error_codes.PRODUCER_FENCED)
        if transaction.is_ending:
            return ProducerIdentity(error_code=error_codes.CONCURRENT_TRANSACTIONS)
        if transaction.state is TransactionState.ONGOING:
            # The client retries after the abort, and the retry receives the next epoch. Under transaction version 2, a
            # retry that contains the identity from before the abort receives the epoch that the abort assigned.
            self._fence_and_abort(transaction)
            return ProducerIdentity(error_code=error_codes.CONCURRENT_TRANSACTIONS)
        return self._assign_next_identity(transaction, timeout_ms, expected_identity)

    def _find_or_add_transaction(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the metadata of a transactional id, added on first use. Return None if there are too many ids."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None and len(self.transactions) < MAX_TRANSACTIONAL_IDS:
            transaction = TransactionMetadata(transactional_id, self.allocate_producer_id())
            self.transactions[transactional_id] = transaction
        return transaction

    def _assign_next_identity(
        self, transaction: TransactionMetadata, timeout_ms: int, expected_identity: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Assign the next epoch, or a new producer id if the epochs are exhausted.

        A producer that repeats a request gets the same identity again. Any other outdated epoch is rejected.
        """
        is_current = expected_identity is None or expected_identity.epoch == transaction.epoch
        # Only a producer that sent its epoch can repeat the request with that epoch.
        repeatable_epoch = NO_EPOCH if expected_identity is None else transaction.epoch
        if is_current and transaction.is_epoch_exhausted:
            transaction.previous_producer_id = transaction.producer_id
            transaction.previous_epoch = repeatable_epoch
            transaction.producer_id, transaction.epoch = self.allocate_producer_id(), 0
        elif is_current or transaction.epoch == NO_EPOCH:  # a new transactional id has no epoch that could be outdated
            transaction.previous_epoch = repeatable_epoch
            transaction.epoch += 1
        elif expected_identity is not None and expected_identity.epoch != transaction.previous_epoch:
            return ProducerIdentity(error_code=error_codes.PRODUCER_FENCED)
        # If no branch applies, the client repeats a request whose response was lost. It gets the current epoch again.
        transaction.timeout_ms = timeout_ms
        transaction.state = TransactionState.EMPTY
        transaction.started_at_monotonic_ms = transaction.started_at_wall_ms = NOT_STARTED_MS
        return ProducerIdentity(transaction.producer_id, transaction.epoch)

    # --- additions to a transaction

    def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        now_ms: float,
        wall_clock_ms: int,
        *,
        transaction_version: int = 1,
    ) -> int:
        """Add partitions to the transaction, and begin it if it has not begun. Return 0 or an error code.

        `now_ms`: monotonic time, from which the timeout is measured.
        `wall_clock_ms`: start time to show to clients.
        """
        transaction, error_code = self._ensure_ongoing(
            transactional_id, identity, now_ms, wall_clock_ms, transaction_version
        )
        if transaction is None:
            return error_code
        transaction.partitions.update(partitions)
        return 0

    def add_group(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        group: str,
        now_ms: float,
        wall_clock_ms: int,
        transaction_version: int = 1,
    ) -> int:
        """Add a consumer group to the transaction, and begin it if it has not begun. Return 0 or an error code."""
        transaction, error_code = self._ensure_ongoing(
            transactional_id, identity, now_ms, wall_clock_ms, transaction_version
        )
        if transaction is None:
            return error_code
        transaction.groups.add(group)
        return 0

    def _ensure_ongoing(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        now_ms: float,
        wall_clock_ms: int,
        transaction_version: int,
    ) -> tuple[TransactionMetadata | None, int]:
        """Begin the transaction if it has not begun. Return (transaction, 0), or None and the error code."""
        transaction, error_code = self._find_transaction(transactional_id, identity)
        if transaction is None:
            return None, error_code
        if transaction.is_ending:
            return None, error_codes.CONCURRENT_TRANSACTIONS
        self._mark_ongoing(transaction, now_ms, wall_clock_ms, transaction_version)
        return transaction, 0

    def verify_partition(self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition) -> int:
        """Return 0 if the transaction contains the partition, else the error code. Only for transaction version 1."""
        transaction, error_code = self._find_transaction(transactional_id, identity)
        if transaction is None:
            return error_code
        return 0 if partition in transaction.partitions else error_codes.TRANSACTION_ABORTABLE

    def verify_group(self, transactional_id: str, identity: ProducerIdentity, group: str) -> int:
        """Return 0 if the transaction contains the group, else the error code."""
        transaction, error_code = self._find_transaction(transactional_id, identity)
        if transaction is None:
            return error_code
        return 0 if group in transaction.groups else error_codes.INVALID_TXN_STATE

    def _mark_ongoing(
        self, transaction: TransactionMetadata, now_ms: float, wall_clock_ms: int, transaction_version: int
    ) -> None:
        """Begin the transaction if it has not begun, and set its version."""
        if transaction.state is not TransactionState.ONGOING:
            transaction.state = TransactionState.ONGOING
            transaction.started_at_monotonic_ms, transaction.started_at_wall_ms = now_ms, wall_clock_ms
        transaction.version = transaction_version

    # --- ends of transactions

    def end_transaction(
        self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, transaction_version: int
    ) -> ProducerIdentity:
        """Commit or abort the transaction, unless the request repeats one that has already done so.

        Return the identity for the producer's next transaction; in version 2, its epoch is incremented. If the request
        is rejected, return an identity in which only the error code is set.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return ProducerIdentity(error_code=error_codes.INVALID_PRODUCER_ID_MAPPING)
        error_code = _find_end_txn_error_code(
            transaction, identity, commit=commit, transaction_version=transaction_version
        )
        if error_code != error_codes.NONE:
            return ProducerIdentity(error_code=error_code)
        has_already_ended = _is_end_txn_retry(transaction, identity)
        if not has_already_ended:
            self._commit_or_abort(transaction, commit=commit, transaction_version=transaction_version)
        return ProducerIdentity(transaction.producer_id, transaction.epoch)

    def abort_timed_out_transactions(self, now_ms: float) -> list[str]:
        """Abort all timed-out transactions and fence their producers.

        Return their transactional ids. Raise ApiError if a marker cannot be stored.
        """
        timed_out_transactions = [
            transaction for transaction in self._list_open_transactions() if now_ms >= transaction.deadline_ms
        ]
        for transaction in timed_out_transactions:
            self._fence_and_abort(transaction)
        return [transaction.transactional_id for transaction in timed_out_transactions]

    def next_timeout_ms(self) -> float | None:
        """Return the earliest time at which an open transaction times out, or None if no transaction is open."""
        return min((transaction.deadline_ms for transaction in self._list_open_transactions()), default=None)

    def _list_open_transactions(self) -> list[TransactionMetadata]:
        return [
            transaction for transaction in self.transactions.values() if transaction.state is TransactionState.ONGOING
        ]

    def _fence_and_abort(self, transaction: TransactionMetadata) -> None:
        """Abort a transaction, and increment the epoch to fence its producer.

        Both versions increment the epoch once (Kafka 4.0.0 did so twice in version 2).

        Version 2 keeps the producer's epoch in `previous_epoch`, as after an EndTxn from the client. Therefore a
        producer that is fenced here and then requests its next epoch receives the epoch that fenced it.
        """
        epoch = transaction.epoch
        self._write_or_defer_markers(transaction, min(epoch + 1, MAX_EPOCH), commit=False)
        transaction.previous_epoch = epoch if _increments_epoch(self.version) else NO_EPOCH
        transaction.version = self.version

    def _commit_or_abort(self, transaction: TransactionMetadata, *, commit: bool, transaction_version: int) -> None:
        """End a transaction as its producer requested.

        Version 2 increments the epoch, and assigns a new producer id after the highest epoch.
        """
        epoch = transaction.epoch
        end_epoch = epoch + 1 if _increments_epoch(transaction_version) else epoch
        self._write_or_defer_markers(transaction, end_epoch, commit=commit)
        transaction.version = transaction_version
        if _increments_epoch(transaction_version):
            transaction.previous_epoch = epoch
            if transaction.epoch >= MAX_EPOCH:
                transaction.previous_producer_id = transaction.producer_id
                transaction.producer_id, transaction.epoch = self.allocate_producer_id(), 0

    def _write_or_defer_markers(self, transaction: TransactionMetadata, epoch: int, *, commit: bool) -> None:
        """Write the markers, or enter a PREPARE state if completion is deferred. Then set the epoch.

        Raise ApiError if a marker cannot be stored. Other markers may have been written by then, but the state and the
        epoch are unchanged, so the end can be repeated.
        """
        transaction.marker_identity = transaction.producer_id, epoch
        if self.should_defer_completion(transaction):
            transaction.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        else:
            self._write_markers(transaction, commit=commit)
        transaction.epoch = epoch

    def complete_transaction(self, transaction: TransactionMetadata) -> None:
        """Write the markers of a transaction whose completion was deferred."""
        if transaction.is_ending:
            self._write_markers(transaction, commit=transaction.state is TransactionState.PREPARE_COMMIT)

    def _write_markers(self, transaction: TransactionMetadata, *, commit: bool) -> None:
        """Write a marker to each partition, commit or discard the group offsets, and complete the transaction."""
        producer_id, epoch = transaction.marker_identity
        for partition in sorted(transaction.partitions):
            self._write_marker(partition, producer_id, epoch, commit)
        self._complete_group_offsets(transaction, commit)
        transaction.partitions.clear()
        transaction.groups.clear()
        transaction.state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT

    def _find_transaction(
        self, transactional_id: str, identity: ProducerIdentity
    ) -> tuple[TransactionMetadata | None, int]:
        """Return (transaction, 0), or None and the error code if the id is unknown or the identity is not current."""
        if not transactional_id:
            return None, error_codes.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != identity.producer_id:
            return None, error_codes.INVALID_PRODUCER_ID_MAPPING
        if transaction.epoch != identity.epoch:
            return None, error_codes.PRODUCER_FENCED
        return transaction, 0


def _increments_epoch(transaction_version: int) -> bool:
    """Return whether EndTxn increments the epoch in this transaction version (KIP-890)."""
    return transaction_version >= 2


def _can_request_next_epoch(transaction: TransactionMetadata, identity: ProducerIdentity) -> bool:
    """Return whether a producer with this identity may request the next epoch. Its epoch is checked separately."""
    return (
        transaction.epoch == NO_EPOCH
        or identity.producer_id == transaction.producer_id
        # The producer's epochs were exhausted, and it did not receive its new producer id.
        or (identity.producer_id == transaction.previous_producer_id and identity.epoch >= MAX_EPOCH - 1)
    )


def _find_end_txn_error_code(
    transaction: TransactionMetadata, identity: ProducerIdentity, *, commit: bool, transaction_version: int
) -> int:
    """Return the error code with which to reject EndTxn; NONE if the transaction can end, or has ended, as requested.

    If the request is a retry (see `_is_end_txn_retry`), the transaction may have ended already.
    """
    state = transaction.state
    is_retry = _is_end_txn_retry(transaction, identity)
    if transaction.producer_id != identity.producer_id and not is_retry:
        return error_codes.INVALID_PRODUCER_ID_MAPPING
    if identity.epoch != transaction.epoch and not is_retry:
        return error_codes.PRODUCER_FENCED
    if state is TransactionState.ONGOING:
        return error_codes.NONE
    if transaction.is_ending:
        is_requested_end = state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
        return error_codes.CONCURRENT_TRANSACTIONS if is_requested_end else error_codes.INVALID_TXN_STATE
    if is_retry:
        is_requested_end = state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        return error_codes.NONE if is_requested_end else error_codes.INVALID_TXN_STATE
    # No transaction has begun. A version 2 producer that aborts cannot know that, because brokers may have rejected
    # all of its batches.
    return error_codes.NONE if transaction_version >= 2 and not commit else error_codes.INVALID_TXN_STATE


def _is_end_txn_retry(transaction: TransactionMetadata, identity: ProducerIdentity) -> bool:
    """Return whether EndTxn with this identity repeats the request that ended the transaction.

    A retry contains the identity that the producer had before the transaction ended.
    """
    is_complete = transaction.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    if not transaction.is_ending and not is_complete:
        return False
    has_end_incremented_epoch = _increments_epoch(transaction.version)
    # If the end used up the last epoch, it also assigned a new producer id. The retry contains the previous id.
    if has_end_incremented_epoch and transaction.epoch == 0:
        previous_identity = (transaction.previous_producer_id, MAX_EPOCH - 1)
        if (identity.producer_id, identity.epoch) == previous_identity:
            return True
    previous_epoch = transaction.epoch - 1 if has_end_incremented_epoch else transaction.epoch
    return (identity.producer_id, identity.epoch) == (transaction.producer_id, previous_epoch)
