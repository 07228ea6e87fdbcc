"""TransactionCoordinator: assigns producer ids, fences producers, and commits or aborts their transactions.

    EMPTY --partitions added--> ONGOING --EndTxn--> PREPARE_* --markers--> COMPLETE_* --partitions added--> ONGOING ...
                                   |
                                   +-- InitProducerId from another producer, or timeout: abort, with a new epoch

The markers are written before EndTxn is answered, so no client sees a PREPARE state. If `should_defer_completion`
returns true for a transaction, `complete_transaction` writes its markers after the response, as in a real coordinator.
Until then, requests with the transactional id fail with CONCURRENT_TRANSACTIONS.

In transaction version 1 only InitProducerId and a timeout change the epoch. In version 2 (KIP-890) each EndTxn
increments it and returns the new epoch, and producing a batch adds its partition to the transaction. The request
version selects the transaction version: EndTxn v5 and Produce v12 or newer use version 2, if the cluster supports it.

Errors are Kafka's error codes; 0 means success. The cluster's lock guards the coordinator and its transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.protocol import error_codes

MAX_EPOCH = 32767
NO_PRODUCER_ID = -1
MAX_TRANSACTIONAL_IDS = 10_000
"""Limited because transactional ids never expire here. Kafka's brokers expire them after a week without use."""

TopicPartition = tuple[str, int]
WriteMarker = Callable[[TopicPartition, int, int, bool], None]
"""Function that takes a topic-partition, producer id, epoch and whether to commit, and writes a marker."""


class TransactionState(Enum):
    """States of a transaction, with their names in Kafka's protocol."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


@dataclass
class Transaction:
    """The state of a transactional id: its producer identity and latest transaction (Kafka's TransactionMetadata)."""

    transactional_id: str
    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    """Epoch before the current one, if a client that repeats a request may still use it; else -1."""
    previous_producer_id: int = NO_PRODUCER_ID
    """Producer id whose epochs were exhausted before the current one was assigned."""
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.EMPTY
    version: int = 1
    """Transaction version, as in `transaction.version`."""
    marker_identity: tuple[int, int] = (NO_PRODUCER_ID, -1)
    """Producer id and epoch for the markers that end the transaction."""
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    start_ms: float = -1.0
    start_wall_ms: int = -1

    @property
    def deadline_ms(self) -> float:
        """Time at which the transaction times out.

        Timers and checks both use this value: a sum with another order of operands may differ in the last bit.
        """
        return self.start_ms + self.timeout_ms

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.epoch >= MAX_EPOCH - 1

    @property
    def is_ending(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(frozen=True)
class ProducerIdentity:
    """A producer id and epoch, or the error code of a request for them."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1
    error_code: int = 0


class TransactionCoordinator:
    """The coordinator of all transactional ids of the cluster, on whichever node clients reach it."""

    def __init__(
        self,
        write_marker: WriteMarker,
        complete_group_offsets: Callable[[Transaction, bool], None],
        *,
        version: int = 2,
        max_timeout_ms: int = 900_000,
        first_producer_id: int = 0,
    ) -> None:
        """`complete_group_offsets` commits or discards the group offsets of a transaction.

        Its arguments are the transaction and whether the transaction commits.
        """
        self.version = version
        self.max_timeout_ms = max_timeout_ms
        self.transactions: dict[str, Transaction] = {}
        self.next_producer_id = first_producer_id
        self.should_defer_completion: Callable[[Transaction], bool] = lambda transaction: False
        """Return True to leave the markers of an ending transaction to `complete_transaction`."""
        self._write_marker = write_marker
        self._complete_group_offsets = complete_group_offsets

    def allocate_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    # --- InitProducerId

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Assign a producer id and epoch. A new epoch fences other producers with the transactional id.

        `expected`: the current identity of a producer that requests its next epoch (KIP-360).
        """
        if transactional_id is None:
            return ProducerIdentity(self.allocate_producer_id(), 0)
        if not transactional_id:
            return ProducerIdentity(error_code=error_codes.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.max_timeout_ms:
            return ProducerIdentity(error_code=error_codes.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if len(self.transactions) >= MAX_TRANSACTIONAL_IDS:
                return ProducerIdentity(error_code=error_codes.POLICY_VIOLATION)
            transaction = Transaction(transactional_id, self.allocate_producer_id())
            self.transactions[transactional_id] = transaction
        if expected is not None and not _is_expected_identity_valid(transaction, expected):
            return ProducerIdentity(error_code=error_codes.PRODUCER_FENCED)
        if transaction.is_ending:
            return ProducerIdentity(error_code=error_codes.CONCURRENT_TRANSACTIONS)
        if transaction.state is TransactionState.ONGOING:
            # The client retries and receives the next epoch. In version 2, a client that names its previous identity
            # receives the epoch of the abort.
            self._fence_and_abort(transaction)
            return ProducerIdentity(error_code=error_codes.CONCURRENT_TRANSACTIONS)
        return self._next_identity(transaction, timeout_ms, expected)

    def _next_identity(
        self, transaction: Transaction, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        if transaction.is_epoch_exhausted and (expected is None or expected.epoch == transaction.epoch):
            transaction.previous_producer_id = transaction.producer_id
            transaction.last_epoch = transaction.epoch if expected is not None else -1
            transaction.producer_id, transaction.epoch = self.allocate_producer_id(), 0
        elif expected is None or transaction.epoch == -1 or expected.epoch == transaction.epoch:
            transaction.last_epoch = transaction.epoch if expected is not None else -1
            transaction.epoch += 1
        elif expected.epoch != transaction.last_epoch:
            return ProducerIdentity(error_code=error_codes.PRODUCER_FENCED)
        # else: the client repeats a request because the response was lost, and receives the current epoch again
        transaction.timeout_ms = timeout_ms
        transaction.state = TransactionState.EMPTY
        transaction.start_ms, transaction.start_wall_ms = -1.0, -1
        return ProducerIdentity(transaction.producer_id, transaction.epoch)

    # --- additions to a transaction

    def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        now_ms: float,
        wall_ms: int,
        *,
        version: int = 1,
    ) -> int:
        """Add partitions to the transaction, which begins with the first addition. Return an error code."""
        transaction, error = self._ensure_ongoing(transactional_id, identity, now_ms, wall_ms, version)
        if transaction is None:
            return error
        transaction.partitions.update(partitions)
        return 0

    def add_group(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        group: str,
        now_ms: float,
        wall_ms: int,
        version: int = 1,
    ) -> int:
        """Add the offsets of a consumer group to the transaction. Return an error code."""
        transaction, error = self._ensure_ongoing(transactional_id, identity, now_ms, wall_ms, version)
        if transaction is None:
            return error
        transaction.groups.add(group)
        return 0

    def _ensure_ongoing(
        self, transactional_id: str, identity: ProducerIdentity, now_ms: float, wall_ms: int, version: int
    ) -> tuple[Transaction | None, int]:
        """Begin the transaction if necessary. Return it and 0, or None and the error code of a rejected addition."""
        transaction, error = self._find_transaction(transactional_id, identity)
        if transaction is None:
            return None, error
        if transaction.is_ending:
            return None, error_codes.CONCURRENT_TRANSACTIONS
        self._mark_ongoing(transaction, now_ms, wall_ms, version)
        return transaction, 0

    def verify_partition(self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition) -> int:
        """Return 0 if a transaction of version 1 contains the partition of a batch, else the error code."""
        transaction, error = self._find_transaction(transactional_id, identity)
        if transaction is None:
            return error
        return 0 if partition in transaction.partitions else error_codes.TRANSACTION_ABORTABLE

    def verify_group(self, transactional_id: str, identity: ProducerIdentity, group: str) -> int:
        """Return 0 if the transaction contains the group, else the error code."""
        transaction, error = self._find_transaction(transactional_id, identity)
        if transaction is None:
            return error
        return 0 if group in transaction.groups else error_codes.INVALID_TXN_STATE

    def _mark_ongoing(self, transaction: Transaction, now_ms: float, wall_ms: int, version: int) -> None:
        if transaction.state is not TransactionState.ONGOING:
            transaction.state = TransactionState.ONGOING
            transaction.start_ms, transaction.start_wall_ms = now_ms, wall_ms
        transaction.version = version

    # --- ends of transactions

    def end_transaction(
        self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, version: int
    ) -> ProducerIdentity:
        """Commit or abort the transaction.

        Return the producer's identity, which has a new epoch in version 2, or a ProducerIdentity with an error code.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return ProducerIdentity(error_code=error_codes.INVALID_PRODUCER_ID_MAPPING)
        final_code = _find_final_code(transaction, identity, commit=commit, version=version)
        if final_code is None:
            self._end(transaction, commit=commit, version=version)
        elif final_code != error_codes.NONE:
            return ProducerIdentity(error_code=final_code)
        return ProducerIdentity(transaction.producer_id, transaction.epoch)

    def abort_timed_out(self, now_ms: float) -> list[str]:
        """Abort the transactions that have timed out, and fence their producers.

        Return their transactional ids. Raise ApiError if the disk is full.
        """
        timed_out = [
            t for t in self.transactions.values() if t.state is TransactionState.ONGOING and now_ms >= t.deadline_ms
        ]
        for transaction in timed_out:
            self._fence_and_abort(transaction)
        return [t.transactional_id for t in timed_out]

    def next_timeout_ms(self) -> float | None:
        """Return the earliest time at which an open transaction times out."""
        deadlines = [t.deadline_ms for t in self.transactions.values() if t.state is TransactionState.ONGOING]
        return min(deadlines, default=None)

    def _fence_and_abort(self, transaction: Transaction) -> None:
        """Increment the epoch and abort. Both versions increment it once (Kafka 4.0.0 did so twice in version 2).

        In version 2 the previous epoch is kept as the last one, as after an EndTxn of the client. So a producer that is
        fenced here and requests its next epoch receives the epoch that has fenced it.
        """
        epoch = transaction.epoch
        self._write_end(transaction, min(epoch + 1, MAX_EPOCH), commit=False)
        transaction.last_epoch = epoch if self.version >= 2 else -1
        transaction.version = self.version

    def _end(self, transaction: Transaction, *, commit: bool, version: int) -> None:
        epoch = transaction.epoch
        self._write_end(transaction, epoch + 1 if version >= 2 else epoch, commit=commit)
        transaction.version = version
        if version >= 2:
            transaction.last_epoch = epoch
        if version >= 2 and transaction.epoch >= MAX_EPOCH:
            transaction.previous_producer_id = transaction.producer_id
            transaction.producer_id, transaction.epoch = self.allocate_producer_id(), 0

    def _write_end(self, transaction: Transaction, epoch: int, *, commit: bool) -> None:
        """Write the markers now, or prepare a deferred completion.

        Raise ApiError if the disk is full. Some markers may have been written by then, but the state and the epoch are
        unchanged, so that the end can be repeated.
        """
        transaction.marker_identity = transaction.producer_id, epoch
        if self.should_defer_completion(transaction):
            transaction.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        else:
            self._write_markers(transaction, commit=commit)
        transaction.epoch = epoch

    def complete_transaction(self, transaction: Transaction) -> None:
        """Write the markers of a transaction whose completion was deferred."""
        if transaction.is_ending:
            self._write_markers(transaction, commit=transaction.state is TransactionState.PREPARE_COMMIT)

    def _write_markers(self, transaction: Transaction, *, commit: bool) -> None:
        for partition in sorted(transaction.partitions):
            self._write_marker(partition, *transaction.marker_identity, commit)
        self._complete_group_offsets(transaction, commit)
        transaction.partitions.clear()
        transaction.groups.clear()
        transaction.state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT

    def _find_transaction(self, transactional_id: str, identity: ProducerIdentity) -> tuple[Transaction | None, int]:
        """Return the transaction of a producer and 0, or None and the error code if the identity is not current."""
        if not transactional_id:
            return None, error_codes.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != identity.producer_id:
            return None, error_codes.INVALID_PRODUCER_ID_MAPPING
        if transaction.epoch != identity.epoch:
            return None, error_codes.PRODUCER_FENCED
        return transaction, 0


def _is_expected_identity_valid(transaction: Transaction, expected: ProducerIdentity) -> bool:
    return (
        transaction.epoch == -1
        or expected.producer_id == transaction.producer_id
        or (expected.producer_id == transaction.previous_producer_id and expected.epoch >= MAX_EPOCH - 1)
    )


def _find_final_code(transaction: Transaction, identity: ProducerIdentity, *, commit: bool, version: int) -> int | None:
    """Return the code of the response to EndTxn, or None if the transaction must be ended first.

    The code is NONE if the request is repeated and the transaction has already ended in the requested way.
    """
    state = transaction.state
    has_ended = transaction.is_ending or state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    has_new_epoch = transaction.version >= 2 and has_ended
    has_new_producer_id = (
        has_new_epoch
        and transaction.epoch == 0
        and (identity.producer_id, identity.epoch) == (transaction.previous_producer_id, MAX_EPOCH - 1)
    )
    if transaction.producer_id != identity.producer_id and not has_new_producer_id:
        return error_codes.INVALID_PRODUCER_ID_MAPPING
    # In version 2 an ended transaction has a new epoch, so a repeated request has the previous one.
    is_repeated = has_new_producer_id or (
        has_ended and identity.epoch == (transaction.epoch - 1 if has_new_epoch else transaction.epoch)
    )
    if identity.epoch != transaction.epoch and not is_repeated:
        return error_codes.PRODUCER_FENCED
    if state is TransactionState.ONGOING:
        return None
    if transaction.is_ending:
        is_same_end = state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
        return error_codes.CONCURRENT_TRANSACTIONS if is_same_end else error_codes.INVALID_TXN_STATE
    if is_repeated:
        is_same_end = state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        return error_codes.NONE if is_same_end else error_codes.INVALID_TXN_STATE
    # No transaction has begun. A producer of version 2 cannot know that, because its batches may have been rejected.
    return None if version >= 2 and not commit else error_codes.INVALID_TXN_STATE
