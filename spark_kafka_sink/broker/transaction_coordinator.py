"""The transaction coordinator: who may write under a transactional id, and how each transaction ends.

    EMPTY --partitions added--> ONGOING --EndTxn--> PREPARE_* --markers--> COMPLETE_* --partitions added--> ONGOING ...
                                   |
                                   +-- InitProducerId by another, or the timeout: aborted under an epoch of no client

The markers are written before EndTxn is answered, so the two PREPARE states pass unseen. With `completes_later` it is
`complete` that writes them, as a real coordinator does it after its answer; until then a request for more under the
id is answered CONCURRENT_TRANSACTIONS.

Version 1: the epoch changes with InitProducerId only. Version 2 (KIP-890): every end bumps it, the answer of EndTxn
carries the new one, and a batch for a partition adds that partition. Which version applies is said by each request: it
is version 2 from EndTxn v5 and Produce v12 on, if the cluster has it.

Errors are codes, 0 for none. The cluster's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.protocol import error_codes

MAX_EPOCH = 32767
NO_PRODUCER = -1
TRANSACTIONAL_IDS_MAX = 10_000
"""Brokers forget one that is not used for a week; here they stay."""

TopicPartition = tuple[str, int]
WriteMarker = Callable[[TopicPartition, int, int, bool], None]
"""(partition, producer id, epoch, commit)"""


class TransactionState(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


@dataclass
class Transaction:
    transactional_id: str
    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    previous_producer_id: int = NO_PRODUCER
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.EMPTY
    version: int = 1
    ends_as: tuple[int, int] = (NO_PRODUCER, -1)
    """The producer id and epoch of the markers that are not written yet."""
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    start_ms: float = -1.0
    start_wall_ms: int = -1

    @property
    def deadline_ms(self) -> float:
        """One number for what waits for that time and what looks whether it has come: computed in two ways, the two
        differ in the last bit."""
        return self.start_ms + self.timeout_ms

    @property
    def exhausted(self) -> bool:
        return self.epoch >= MAX_EPOCH - 1

    @property
    def is_ending(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(frozen=True)
class ProducerIdentity:
    producer_id: int = NO_PRODUCER
    epoch: int = -1
    error: int = 0


class TransactionCoordinator:
    def __init__(
        self,
        write_marker: WriteMarker,
        end_offsets: Callable[[Transaction, bool], None],
        *,
        version: int = 2,
        max_timeout_ms: int = 900_000,
        first_producer_id: int = 0,
    ) -> None:
        self.version = version
        self.max_timeout_ms = max_timeout_ms
        self.transactions: dict[str, Transaction] = {}
        self.next_producer_id = first_producer_id
        self.should_defer_completion: Callable[[Transaction], bool] = lambda transaction: False
        """Are the markers of this transaction left to a call of `complete`?"""
        self._write_marker = write_marker
        self._end_offsets = end_offsets

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    # --- InitProducerId

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """`expected`: the identity that the producer believes to have (KIP-360)."""
        if transactional_id is None:
            return ProducerIdentity(self.new_producer_id(), 0)
        if not transactional_id:
            return ProducerIdentity(error=error_codes.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.max_timeout_ms:
            return ProducerIdentity(error=error_codes.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if len(self.transactions) >= TRANSACTIONAL_IDS_MAX:
                return ProducerIdentity(error=error_codes.POLICY_VIOLATION)
            transaction = Transaction(transactional_id, self.new_producer_id())
            self.transactions[transactional_id] = transaction
        if expected is not None and not _may_continue(transaction, expected):
            return ProducerIdentity(error=error_codes.PRODUCER_FENCED)
        if transaction.is_ending:
            return ProducerIdentity(error=error_codes.CONCURRENT_TRANSACTIONS)
        if transaction.state is TransactionState.ONGOING:
            # No client gets the epoch under which it is aborted; the client comes again and is given the next one.
            self._fence_and_abort(transaction)
            return ProducerIdentity(error=error_codes.CONCURRENT_TRANSACTIONS)
        return self._next_identity(transaction, timeout_ms, expected)

    def _next_identity(
        self, transaction: Transaction, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        if transaction.exhausted and (expected is None or expected.epoch == transaction.epoch):
            transaction.previous_producer_id = transaction.producer_id
            transaction.last_epoch = transaction.epoch if expected is not None else -1
            transaction.producer_id, transaction.epoch = self.new_producer_id(), 0
        elif expected is None or transaction.epoch == -1 or expected.epoch == transaction.epoch:
            transaction.last_epoch = transaction.epoch if expected is not None else -1
            transaction.epoch += 1
        elif expected.epoch != transaction.last_epoch:
            return ProducerIdentity(error=error_codes.PRODUCER_FENCED)
        # else: the answer to a request that was carried out has been lost, and this is its repetition
        transaction.timeout_ms = timeout_ms
        transaction.state = TransactionState.EMPTY
        transaction.start_ms, transaction.start_wall_ms = -1.0, -1
        return ProducerIdentity(transaction.producer_id, transaction.epoch)

    # --- what belongs to a transaction

    def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        now: float,
        wall_ms: int,
        *,
        version: int = 1,
    ) -> int:
        transaction, error = self._begun(transactional_id, identity, now, wall_ms, version)
        if transaction is None:
            return error
        transaction.partitions.update(partitions)
        return 0

    def add_group(
        self, transactional_id: str, identity: ProducerIdentity, group: str, now: float, wall_ms: int, version: int = 1
    ) -> int:
        transaction, error = self._begun(transactional_id, identity, now, wall_ms, version)
        if transaction is None:
            return error
        transaction.groups.add(group)
        return 0

    def _begun(
        self, transactional_id: str, identity: ProducerIdentity, now: float, wall_ms: int, version: int
    ) -> tuple[Transaction | None, int]:
        """The transaction, begun if it was not yet; or why nothing can be added to it."""
        transaction, error = self._find(transactional_id, identity)
        if transaction is None:
            return None, error
        if transaction.is_ending:
            return None, error_codes.CONCURRENT_TRANSACTIONS
        self._begin(transaction, now, wall_ms, version)
        return transaction, 0

    def verify_partition(self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition) -> int:
        """May this batch be appended, in transactions of version 1?"""
        transaction, error = self._find(transactional_id, identity)
        if transaction is None:
            return error
        return 0 if partition in transaction.partitions else error_codes.TRANSACTION_ABORTABLE

    def verify_group(self, transactional_id: str, identity: ProducerIdentity, group: str) -> int:
        transaction, error = self._find(transactional_id, identity)
        if transaction is None:
            return error
        return 0 if group in transaction.groups else error_codes.INVALID_TXN_STATE

    def _begin(self, transaction: Transaction, now: float, wall_ms: int, version: int) -> None:
        if transaction.state is not TransactionState.ONGOING:
            transaction.state = TransactionState.ONGOING
            transaction.start_ms, transaction.start_wall_ms = now, wall_ms
        transaction.version = version

    # --- the end

    def end(self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, version: int) -> ProducerIdentity:
        """The identity to go on with (version 2 changes it), or an error."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return ProducerIdentity(error=error_codes.INVALID_PRODUCER_ID_MAPPING)
        error = _end_error(transaction, identity, commit=commit, version=version)
        if error is not None:
            if error:
                return ProducerIdentity(error=error)
            return ProducerIdentity(transaction.producer_id, transaction.epoch)
        self._finish(transaction, commit=commit, version=version)
        return ProducerIdentity(transaction.producer_id, transaction.epoch)

    def abort_timed_out(self, now: float) -> list[str]:
        """Abort what has lasted too long, under an epoch that fences its producer. Refusal if the disk is full."""
        overdue = [
            t for t in self.transactions.values() if t.state is TransactionState.ONGOING and now >= t.deadline_ms
        ]
        for transaction in overdue:
            self._fence_and_abort(transaction)
        return [t.transactional_id for t in overdue]

    def next_timeout_ms(self) -> float | None:
        ends = [t.deadline_ms for t in self.transactions.values() if t.state is TransactionState.ONGOING]
        return min(ends, default=None)

    def _fence_and_abort(self, transaction: Transaction) -> None:
        """Bump the epoch, once in both versions (Kafka 4.0.0: twice in version 2).

        In version 2 the epoch before counts as the last one, as after a client's own end. So a producer that is fenced
        here and asks for its next epoch is given the one that has fenced it.
        """
        epoch = transaction.epoch
        self._write_end(transaction, min(epoch + 1, MAX_EPOCH), commit=False)
        transaction.last_epoch = epoch if self.version >= 2 else -1
        transaction.version = self.version

    def _finish(self, transaction: Transaction, *, commit: bool, version: int) -> None:
        epoch = transaction.epoch
        self._write_end(transaction, epoch + 1 if version >= 2 else epoch, commit=commit)
        transaction.version = version
        if version >= 2:
            transaction.last_epoch = epoch
        if version >= 2 and transaction.epoch >= MAX_EPOCH:
            transaction.previous_producer_id = transaction.producer_id
            transaction.producer_id, transaction.epoch = self.new_producer_id(), 0

    def _write_end(self, transaction: Transaction, epoch: int, *, commit: bool) -> None:
        """A Refusal of the disk leaves the transaction as it was; its end can be written again."""
        transaction.ends_as = transaction.producer_id, epoch
        if self.should_defer_completion(transaction):
            transaction.state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        else:
            self._write_markers(transaction, commit=commit)
        transaction.epoch = epoch

    def complete(self, transaction: Transaction) -> None:
        """Write the markers of a transaction whose end was answered."""
        if transaction.is_ending:
            self._write_markers(transaction, commit=transaction.state is TransactionState.PREPARE_COMMIT)

    def _write_markers(self, transaction: Transaction, *, commit: bool) -> None:
        for partition in sorted(transaction.partitions):
            self._write_marker(partition, *transaction.ends_as, commit)
        self._end_offsets(transaction, commit)
        transaction.partitions.clear()
        transaction.groups.clear()
        transaction.state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT

    def _find(self, transactional_id: str, identity: ProducerIdentity) -> tuple[Transaction | None, int]:
        if not transactional_id:
            return None, error_codes.INVALID_REQUEST
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != identity.producer_id:
            return None, error_codes.INVALID_PRODUCER_ID_MAPPING
        if transaction.epoch != identity.epoch:
            return None, error_codes.PRODUCER_FENCED
        return transaction, 0


def _may_continue(transaction: Transaction, expected: ProducerIdentity) -> bool:
    return (
        transaction.epoch == -1
        or expected.producer_id == transaction.producer_id
        or (expected.producer_id == transaction.previous_producer_id and expected.epoch >= MAX_EPOCH - 1)
    )


def _end_error(transaction: Transaction, identity: ProducerIdentity, *, commit: bool, version: int) -> int | None:
    """None: end it now. 0: it has ended so already, and this is a repetition."""
    state = transaction.state
    ended = transaction.is_ending or state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    bumped = transaction.version >= 2 and ended
    rotated = (
        bumped
        and transaction.epoch == 0
        and (identity.producer_id, identity.epoch) == (transaction.previous_producer_id, MAX_EPOCH - 1)
    )
    if transaction.producer_id != identity.producer_id and not rotated:
        return error_codes.INVALID_PRODUCER_ID_MAPPING
    # In version 2 the epoch of an ended transaction has moved on: only the one before it can be a repetition.
    repeated = rotated or (ended and identity.epoch == (transaction.epoch - 1 if bumped else transaction.epoch))
    if identity.epoch != transaction.epoch and not repeated:
        return error_codes.PRODUCER_FENCED
    if state is TransactionState.ONGOING:
        return None
    if transaction.is_ending:
        same = state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)
        return error_codes.CONCURRENT_TRANSACTIONS if same else error_codes.INVALID_TXN_STATE
    if repeated:
        same = state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        return 0 if same else error_codes.INVALID_TXN_STATE
    # Nothing was begun. A producer of version 2 cannot know that: what it wrote may have been refused.
    return None if version >= 2 and not commit else error_codes.INVALID_TXN_STATE
