"""A producer's calls about transactions, as users see them. How they wait is in transaction_waits.py."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError, ProducerClosedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.cluster_requests import ClusterRequests
from spark_kafka_sink.producer.sending.sender import Sender

if TYPE_CHECKING:  # a producer without a transactional.id does not load it
    from spark_kafka_sink.producer.transaction_waits import Offsets, ProducerTransactions
    from spark_kafka_sink.producer.transactions.manager import TransactionManager
    from spark_kafka_sink.requests.consumer_groups import GroupMetadata
    from spark_kafka_sink.requests.transaction_description import TransactionDescription
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


@dataclass(frozen=True)
class OpenTransactionCheck:
    """Raises if the transaction in which a call has begun is over, or takes no more records."""

    manager: TransactionManager
    number: int

    def __call__(self) -> None:
        self.manager.ensure_can_send(self.number)


class TransactionalProducer:
    """What KafkaProducer inherits: its calls about transactions, and which calls are possible at all."""

    config: ProducerConfig
    _pid: int
    _closed: bool
    _client: NetworkClient
    _accumulator: RecordAccumulator
    _requests: ClusterRequests
    _loop: SenderLoop
    _sender: Sender
    _metrics: ProducerMetrics
    _system: System
    _transactions: ProducerTransactions | None = None

    def init_transactions(self, transactional_id: str | None = None) -> None:
        """Get a producer id for the transactional id. Call it before the first transaction.

        Earlier producers of the id are fenced, and their open transaction is aborted. Call it again if another process
        has ended a transaction of this producer. `transactional_id` replaces the configured one: a program that runs
        one task after another keeps its producer and takes the id of each task.

        Example:

            producer = KafkaProducer(bootstrap_servers="localhost:9092", transactional_id="transfer-1")
            producer.init_transactions()
        """
        self._in_transactions().init(transactional_id)

    def begin_transaction(self) -> None:
        """Begin a transaction. read_committed readers see its records after the commit, all of them or none.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            producer.send("accounts", b"+100", key=b"bob")
            producer.commit_transaction()
        """
        self._in_transactions().begin()

    def commit_transaction(self) -> None:
        """Send all records, wait for the acknowledgements and commit the transaction.

        Raises TransactionAbortableError, which names the records, if one of them failed: then abort. On a
        TransactionTimeoutError the outcome is not known: call it again.

        Example:

            from spark_kafka_sink.errors import TransactionAbortableError

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            try:
                producer.commit_transaction()
            except TransactionAbortableError:
                producer.abort_transaction()
        """
        self._in_transactions().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction. Records that were not sent yet are dropped.

        Also after commit_transaction() has timed out, as long as its EndTxn request was not sent.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            producer.abort_transaction()
        """
        self._in_transactions().abort()

    def transaction(self) -> AbstractContextManager[None]:
        """Return a block that begins a transaction and commits it at its end.

        An error in the block, or a record that failed, aborts the transaction and is raised.

        Example:

            with producer.transaction():
                producer.send("accounts", b"-100", key=b"alice")
                producer.send("accounts", b"+100", key=b"bob")
        """
        return self._in_transactions().transaction()

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Add positions of a consumer group, {(topic, partition): offset}, which are stored with the commit.

        Call it once per transaction for each group and partition: of two requests, brokers may carry out the first one
        last if its response was lost.

        Example:

            with producer.transaction():
                producer.send("accounts", b"-100", key=b"alice")
                producer.send_offsets_to_transaction({("orders", 0): 1}, "billing")
        """
        self._in_transactions().send_offsets(offsets, group)

    def prepare_transaction(self) -> TransactionIdentity | None:
        """Wait for all acknowledgements and leave the transaction open. Another process may end it with the result.

        Offsets of consumer groups are waited for, too, for at most max.block.ms: after that the call may be repeated.
        Brokers abort it transaction.timeout.ms after its begin. None, and it is over, if nothing was sent in it.

        Example:

            producer.begin_transaction()
            producer.send("accounts", b"-100", key=b"alice")
            prepared = producer.prepare_transaction()
        """
        return self._in_transactions().prepare()

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return what brokers know of these transactional ids, of any producer, without ids that they do not know.

        Example:

            for name, transaction in producer.describe_transactions(["transfer-1"]).items():
                print(name, transaction.state, transaction.partitions)
        """
        return self._in_transactions().describe(transactional_ids)

    def take_over_transaction(self, prepared: TransactionIdentity) -> None:
        """Take over a transaction that another process has prepared, to commit or abort it.

        Example:

            other = KafkaProducer(bootstrap_servers="localhost:9092", transactional_id="transfer-1")
            other.take_over_transaction(prepared)
            other.commit_transaction()
        """
        self._in_transactions().manager.take_over(prepared)

    def _new_transactions(self) -> ProducerTransactions:
        from spark_kafka_sink.producer.transaction_waits import (
            WaitContext,
            create_transactions,
        )  # not for other producers

        waits = WaitContext(self._loop, self._metrics, self._system)
        return create_transactions(self.config, self._client, self._accumulator, self._requests, waits)

    # --- which calls are possible

    def _in_transactions(self) -> ProducerTransactions:
        self._ensure_same_process()
        if self._transactions is None:
            raise IllegalStateError("This producer has no transactional.id: set one to use transactions.")
        if self._closed:
            raise self._closed_error()
        return self._transactions

    def _record_rejection(self, count: int, error: KafkaSinkError, check_open: OpenTransactionCheck | None) -> None:
        """Rows of a call that will not be written: a transaction that they belong to must not be committed."""
        self._metrics.record_rejected_rows(count, self._system.now())
        if check_open is not None:
            check_open.manager.record_rejected(check_open.number, error)

    def _ensure_can_send(self) -> OpenTransactionCheck | None:
        """Return a function that raises if the transaction has ended while the call waited."""
        check_open = None
        if self._transactions is not None and not self._closed:
            self._ensure_same_process()
            manager = self._transactions.manager
            check_open = OpenTransactionCheck(manager, manager.ensure_can_send())
        self._ensure_usable()
        return check_open

    def _ensure_same_process(self) -> None:
        if os.getpid() != self._pid:
            raise IllegalStateError(
                "This producer was made in another process, before a fork: its thread and its connections did not come "
                "along. Make a producer in each process."
            )

    def _ensure_usable(self) -> None:
        self._ensure_same_process()
        if self._closed or self._sender.fatal_error is not None:
            raise self._closed_error()

    def _closed_error(self) -> ProducerClosedError:
        cause = self._sender.fatal_error
        words = f"failed for good: {cause}" if cause is not None else "was closed."
        error = ProducerClosedError(f"The producer {words}")
        error.__cause__ = cause
        return error
