"""The transactional methods of KafkaProducer, and the checks that decide whether a call may send now.

The methods here only document the API. transaction_waits.py implements them, and is imported only by producers that
have a transactional.id. The checks apply to all producers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import DeliveryError, IllegalStateError, KafkaSinkError, ProducerClosedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.call_executor import CallExecutor
from spark_kafka_sink.producer.sending.sender import Sender

if TYPE_CHECKING:  # a producer without a transactional.id does not import these modules
    from spark_kafka_sink.producer.transaction_waits import Offsets, ProducerTransactions
    from spark_kafka_sink.producer.transactions.manager import TransactionManager
    from spark_kafka_sink.requests.consumer_groups import GroupMetadata
    from spark_kafka_sink.requests.transaction_description import TransactionDescription
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


@dataclass(frozen=True)
class OpenTransactionCheck:
    """Checks that the transaction in which a send call began is still open.

    While the call waits for metadata or memory, its transaction may end and another one may begin. The records of the
    call must not be added to that one.
    """

    manager: TransactionManager
    transaction_number: int

    def __call__(self) -> None:
        """Raise an error if the transaction has ended or accepts no more records."""
        self.manager.require_transaction_number(self.transaction_number)

    def prevent_commit(self, error: KafkaSinkError) -> None:
        """Prevent the commit of the transaction, because `error` kept records out of it.

        Do nothing if the transaction has ended, or if `error` is an IllegalStateError. An IllegalStateError means that
        the record belongs to no transaction, so no transaction is incomplete without it.
        """
        self.manager.handle_rejected_record(self.transaction_number, error)


class TransactionalProducer:
    """Base class of KafkaProducer: its transactional methods, and the checks of the producer's state.

    The constructor of KafkaProducer sets the attributes. `_transactions` is None without a transactional.id.
    """

    config: ProducerConfig
    _pid: int
    _is_closed: bool
    _client: NetworkClient
    _accumulator: RecordAccumulator
    _call_executor: CallExecutor
    _loop: SenderLoop
    _sender: Sender
    _metrics: ProducerMetrics
    _system: System
    _transactions: ProducerTransactions | None = None

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Get a producer id for the transactional id. Call this method before the first transaction.

        Earlier producers with the same transactional id are fenced, and their open transaction is aborted. Call the
        method again after another process has ended a transaction of this producer.

        - `transactional_id`: replaces the configured transactional.id. With it, a program that runs tasks one after
          another can use the same producer for each task's own id

        Example:

            producer = KafkaProducer(bootstrap_servers="localhost:9092", transactional_id="transfer-1")
            producer.init_transactions()
        """
        self._require_transactions().init(transactional_id)

    def begin_transaction(self) -> None:
        """Begin a transaction.

        Once it is committed, consumers with isolation.level=read_committed see all of its records. Before that, or if
        it is aborted, they see none.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            producer.send("accounts", b"+100", key=b"bob")
            producer.commit_transaction()
        """
        self._require_transactions().begin()

    def commit_transaction(self) -> None:
        """Send all records, wait for their acknowledgements and commit the transaction.

        If a record has failed, this raises TransactionAbortableError, which describes the failed records. Abort the
        transaction in that case. After a TransactionTimeoutError, the transaction may or may not be committed. Call the
        method again to find out, even if the producer has been closed in the meantime. After any other error, the
        transaction may be committed only if the error's `possibly_stored` is set: the commit was sent, but no response
        says whether it was executed. Then read the topics with isolation.level=read_committed before you send the
        records again.

        Example:

            from spark_kafka_sink.errors import TransactionAbortableError

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            try:
                producer.commit_transaction()
            except TransactionAbortableError:
                producer.abort_transaction()
        """
        self._require_transactions("commit_transaction").commit()

    def abort_transaction(self) -> None:
        """Abort the transaction, and drop those of its records that have not been sent yet.

        After commit_transaction() has timed out, the transaction can still be aborted if the request that commits it
        (EndTxn) was not sent yet.

        With version 1 of transactions, records whose response was lost are first sent again. If this takes longer than
        max.block.ms, the call raises TransactionTimeoutError, and may be repeated.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            producer.abort_transaction()
        """
        self._require_transactions().abort()

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context manager that begins a transaction and commits it at the end of the block.

        If the block raises an exception or a record fails, the transaction is aborted and the error is raised.

        Example:

            with producer.transaction():
                producer.send("accounts", b"-100", key=b"alice")
                producer.send("accounts", b"+100", key=b"bob")
        """
        return self._run_in_transaction(self._require_transactions())

    @contextmanager
    def _run_in_transaction(self, transactions: ProducerTransactions) -> Iterator[None]:
        """Begin a transaction, run the block and commit. If the block or the commit fails, abort the transaction."""
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException as error:
            if os.getpid() == self._pid:  # in a forked child, the transaction belongs to the parent
                transactions.abort_after(error)
            raise

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Add offsets of a consumer group, {(topic, partition): offset}, to the transaction, to be committed with it.

        Call this method at most once per transaction for each group and partition. If you call it twice and the
        response to the first request is lost, brokers may execute the first request after the second one.

        Example:

            with producer.transaction():
                producer.send("accounts", b"-100", key=b"alice")
                producer.send_offsets_to_transaction({("orders", 0): 1}, "billing")
        """
        self._require_transactions().send_offsets(offsets, group)

    def prepare_transaction(self) -> TransactionIdentity | None:
        """Wait for all acknowledgements and leave the transaction open, so that another process can end it.

        Return the identity of the transaction for take_over_transaction(). If nothing was sent in the transaction, end
        it and return None.

        The wait for offsets of consumer groups is limited to max.block.ms. After that, the call raises
        TransactionTimeoutError, and may be repeated. Brokers abort the transaction transaction.timeout.ms after it
        began.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            prepared = producer.prepare_transaction()
        """
        return self._require_transactions().prepare()

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return the brokers' descriptions of transactional ids, which may belong to any producer.

        The result does not contain ids that no broker knows.

        Example:

            for name, transaction in producer.describe_transactions(["transfer-1"]).items():
                print(name, transaction.state, transaction.partitions)
        """
        return self._require_transactions().describe(transactional_ids)

    def take_over_transaction(self, prepared: TransactionIdentity) -> None:
        """Take over a transaction that another process has prepared, in order to commit or abort it.

        Example:

            other = KafkaProducer(bootstrap_servers="localhost:9092", transactional_id="transfer-1")
            other.take_over_transaction(prepared)
            other.commit_transaction()
        """
        self._require_transactions().manager.take_over(prepared)

    def _create_transactions(self) -> ProducerTransactions:
        # Imported here because only transactional producers need this module.
        from spark_kafka_sink.producer.transaction_waits import WaitContext, create_transactions

        wait_context = WaitContext(self._loop, self._metrics, self._system)
        return create_transactions(self.config, self._client, self._accumulator, self._call_executor, wait_context)

    # --- checks of the producer's state

    def _require_transactions(self, repeatable_call: str = "") -> ProducerTransactions:
        """Return the object that implements the transactional calls.

        Raise IllegalStateError without a transactional.id or in a forked child, and ProducerClosedError after close().

        `repeatable_call`: the calling method if it may be repeated after close(), to learn the outcome of an earlier
        call that has timed out; "" if not.
        """
        self._ensure_same_process()
        if self._transactions is None:
            raise IllegalStateError("The producer has no transactional.id. Set it to use transactions.")
        if self._is_closed and not self._transactions.manager.is_pending(repeatable_call):
            raise self._build_closed_error()
        return self._transactions

    def _record_rejected_rows(
        self, error: KafkaSinkError, transaction_check: OpenTransactionCheck | None, *, row_count: int
    ) -> None:
        """Count rows that were not accepted because of `error`. If they have a transaction, prevent its commit."""
        self._metrics.record_rejected_rows(row_count, self._system.now())
        if transaction_check is not None:
            transaction_check.prevent_commit(error)

    def _prevent_commit(
        self, call_name: str, error: BaseException, transaction_check: OpenTransactionCheck | None
    ) -> None:
        """Prevent the commit of the transaction in which a send call began, because the call raises `error`.

        Otherwise, a program that catches a KeyboardInterrupt could commit the transaction without knowing whether it
        contains the call's records.

        `call_name`: the method, such as `send()`, for the error message.
        """
        if transaction_check is None:
            return
        if not isinstance(error, KafkaSinkError):
            cause = error
            error = DeliveryError(
                f"{call_name} was interrupted by {type(cause).__name__}, so it is unknown whether its records were "
                "accepted."
            )
            error.__cause__ = cause
        transaction_check.prevent_commit(error)

    def _build_transaction_check(self, transaction_number: int | None = None) -> OpenTransactionCheck | None:
        """Build the check that a send call's transaction is still open; None if the producer is not transactional.

        Raise a KafkaSinkError if the producer cannot send now, for example because no transaction is open.

        `transaction_number`: the number that the open transaction must have; None if any open transaction will do.
        """
        transaction_check = None
        if self._transactions is not None and not self._is_closed:
            self._ensure_same_process()
            manager = self._transactions.manager
            transaction_check = OpenTransactionCheck(manager, manager.require_transaction_number(transaction_number))
        self._ensure_usable()
        return transaction_check

    def _ensure_same_process(self) -> None:
        """Raise IllegalStateError in a forked child process."""
        if os.getpid() != self._pid:
            raise IllegalStateError(
                "The producer was created before a fork, and its thread and connections exist only in the parent "
                "process. Create a producer in each process."
            )

    def _ensure_usable(self) -> None:
        """Raise IllegalStateError in a forked child, and ProducerClosedError if the producer is closed or has failed.

        A failure counts only if it is permanent, such as a fenced producer id.
        """
        self._ensure_same_process()
        if self._is_closed or self._sender.fatal_error is not None:
            raise self._build_closed_error()

    def _build_closed_error(self) -> ProducerClosedError:
        """Build the error for a call to a closed or failed producer. Its cause is the permanent failure, if any."""
        cause = self._sender.fatal_error
        message = "The producer was closed." if cause is None else f"The producer failed permanently: {cause}"
        error = ProducerClosedError(message)
        error.__cause__ = cause
        return error
