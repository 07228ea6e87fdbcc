"""The transactional methods of KafkaProducer. The code that waits is in transaction_waits.py."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import DeliveryError, IllegalStateError, KafkaSinkError, ProducerClosedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.cluster_requests import ClusterRequests
from spark_kafka_sink.producer.sending.sender import Sender

if TYPE_CHECKING:  # a producer without a transactional.id does not import these modules
    from spark_kafka_sink.producer.transaction_waits import Offsets, ProducerTransactions
    from spark_kafka_sink.producer.transactions.manager import TransactionManager
    from spark_kafka_sink.requests.consumer_groups import GroupMetadata
    from spark_kafka_sink.requests.transaction_description import TransactionDescription
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


@dataclass(frozen=True)
class OpenTransactionCheck:
    """A callable that raises if the transaction in which a call began has ended or accepts no more records."""

    manager: TransactionManager
    transaction_number: int

    def __call__(self) -> None:
        self.manager.require_transaction_number(self.transaction_number)


class TransactionalProducer:
    """Base class of KafkaProducer: its transactional methods, and the checks of the producer's state."""

    config: ProducerConfig
    _pid: int
    _is_closed: bool
    _client: NetworkClient
    _accumulator: RecordAccumulator
    _requests: ClusterRequests
    _loop: SenderLoop
    _sender: Sender
    _metrics: ProducerMetrics
    _system: System
    _transactions: ProducerTransactions | None = None

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Get a producer id for the transactional id. Call this method before the first transaction.

        Earlier producers with the same id are fenced, and their open transaction is aborted. Call the method again
        after another process has ended a transaction of this producer. `transactional_id` replaces the configured id,
        so that a program that runs tasks one after another can reuse one producer with each task's id.

        Example:

            producer = KafkaProducer(bootstrap_servers="localhost:9092", transactional_id="transfer-1")
            producer.init_transactions()
        """
        self._require_transactions().init(transactional_id)

    def begin_transaction(self) -> None:
        """Begin a transaction. Consumers with read_committed see either all of its records, once committed, or none.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            producer.send("accounts", b"+100", key=b"bob")
            producer.commit_transaction()
        """
        self._require_transactions().begin()

    def commit_transaction(self) -> None:
        """Send all records, wait for their acknowledgements and commit the transaction.

        If a record failed, raise TransactionAbortableError, which names the failed records. The transaction must then
        be aborted. After a TransactionTimeoutError the outcome is unknown; call the method again to learn it.

        Example:

            from spark_kafka_sink.errors import TransactionAbortableError

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            try:
                producer.commit_transaction()
            except TransactionAbortableError:
                producer.abort_transaction()
        """
        self._require_transactions().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction and drop its records that have not been sent yet.

        The abort is also possible after commit_transaction() has timed out, unless the commit's EndTxn request was
        already sent.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            producer.abort_transaction()
        """
        self._require_transactions().abort()

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context manager that begins a transaction and commits it at the end of the block.

        If the block raises, or a record fails, the transaction is aborted and the error is raised.

        Example:

            with producer.transaction():
                producer.send("accounts", b"-100", key=b"alice")
                producer.send("accounts", b"+100", key=b"bob")
        """
        return self._require_transactions().transaction()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Add offsets of a consumer group, {(topic, partition): offset}, to the transaction, to be committed with it.

        Call this method at most once per transaction for each group and partition: if the response to a first request
        is lost, brokers may execute that request after the second one.

        Example:

            with producer.transaction():
                producer.send("accounts", b"-100", key=b"alice")
                producer.send_offsets_to_transaction({("orders", 0): 1}, "billing")
        """
        self._require_transactions().send_offsets(offsets, group)

    def prepare_transaction(self) -> TransactionIdentity | None:
        """Wait for all acknowledgements and leave the transaction open, so that another process can end it.

        Return the identity of the transaction for take_over_transaction(). If nothing was sent in the transaction, end
        it and return None. The call also waits at most max.block.ms for the offsets of consumer groups; it may be
        repeated after a timeout. Brokers abort the transaction transaction.timeout.ms after it began.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            prepared = producer.prepare_transaction()
        """
        return self._require_transactions().prepare()

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return the brokers' descriptions of transactional ids, of any producer. Unknown ids are omitted.

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

        waits = WaitContext(self._loop, self._metrics, self._system)
        return create_transactions(self.config, self._client, self._accumulator, self._requests, waits)

    # --- checks of the producer's state

    def _require_transactions(self) -> ProducerTransactions:
        """Return the object that implements the transactional calls.

        Raise IllegalStateError without a transactional.id or in a forked child, and ProducerClosedError after close().
        """
        self._ensure_same_process()
        if self._transactions is None:
            raise IllegalStateError("The producer has no transactional.id. Set it to use transactions.")
        if self._is_closed:
            raise self._build_closed_error()
        return self._transactions

    def _record_rejected_rows(
        self, error: KafkaSinkError, check_open: OpenTransactionCheck | None, *, row_count: int
    ) -> None:
        """Count rows that were not accepted because of `error`, and prevent the commit of their transaction, if any."""
        self._metrics.record_rejected_rows(row_count, self._system.now())
        if check_open is not None:
            check_open.manager.handle_rejected_record(check_open.transaction_number, error)

    def _prevent_commit(self, call_name: str, error: BaseException, check_open: OpenTransactionCheck | None) -> None:
        """Prevent the commit of the transaction in which a call began, because the call raises this error.

        Otherwise, a program that catches a KeyboardInterrupt could commit the transaction without knowing whether it
        contains the call's records.
        """
        if check_open is None:
            return
        if not isinstance(error, KafkaSinkError):
            cause = error
            error = DeliveryError(
                f"{call_name} was interrupted by {type(cause).__name__}, so it is unknown whether its records were "
                "accepted."
            )
            error.__cause__ = cause
        check_open.manager.handle_rejected_record(check_open.transaction_number, error)

    def _ensure_can_send(self, transaction_number: int | None = None) -> OpenTransactionCheck | None:
        """Raise if the producer cannot send now.

        `transaction_number`: the number that the open transaction must have; None to accept any transaction.

        In a transaction, return a check that raises if the transaction ends while the call waits. Otherwise return
        None.
        """
        check_open = None
        if self._transactions is not None and not self._is_closed:
            self._ensure_same_process()
            manager = self._transactions.manager
            check_open = OpenTransactionCheck(manager, manager.require_transaction_number(transaction_number))
        self._ensure_usable()
        return check_open

    def _ensure_same_process(self) -> None:
        if os.getpid() != self._pid:
            raise IllegalStateError(
                "The producer was created before a fork, and its thread and connections exist only in the parent "
                "process. Create a producer in each process."
            )

    def _ensure_usable(self) -> None:
        """Raise if the process was forked, or if the producer is closed or has failed permanently."""
        self._ensure_same_process()
        if self._is_closed or self._sender.fatal_error is not None:
            raise self._build_closed_error()

    def _build_closed_error(self) -> ProducerClosedError:
        cause = self._sender.fatal_error
        message = "The producer was closed." if cause is None else f"The producer failed permanently: {cause}"
        error = ProducerClosedError(message)
        error.__cause__ = cause
        return error
