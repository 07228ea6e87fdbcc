"""Producers of the transaction explorer: some write transactions, others end prepared ones.

A `TransactionalWriter` uses one producer. It may be killed, or continue as a zombie after another producer with its
transactional id has taken over. `step` makes one of the calls that a user may make now. A call that has timed out is
repeated. After an error that requires a new producer, the writer has ended, and `end_error` is the error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random

from spark_kafka_sink.errors import (
    IllegalStateError,
    KafkaSinkError,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from tests.fake_system import WALL_MS
from tests.producer.schedules import TOPIC
from tests.producer.second_caller import PausedValue, SecondCaller
from tests.producer.virtual_time import get_loop

MAX_ATTEMPTS = 100
"""Maximum attempts of one call. All faults end long before."""


def build_group_id(transactional_id: str) -> str:
    """Return the consumer group whose offsets are part of the id's transactions."""
    return f"group-{transactional_id}"


class RecordCounter:
    """Numbers records in the order in which all producers send them."""

    def __init__(self) -> None:
        self.next = 0

    def take_next(self) -> int:
        self.next += 1
        return self.next


@dataclass
class WrittenTransaction:
    """One transaction, and the results of its calls and futures."""

    transactional_id: str
    values: list[tuple[int, bytes]] = field(default_factory=list)
    """(partition, value) of each record, including those that send() rejected."""
    futures: list[tuple[int, bytes, Future[RecordMetadata]]] = field(default_factory=list)
    offset: int | None = None
    """Offset of the consumer group, which differs between transactions."""
    commit_requested: bool = False
    committed: bool = False
    aborted: bool = False

    @property
    def may_be_visible(self) -> bool:
        return self.commit_requested and not self.aborted

    @property
    def has_ended(self) -> bool:
        return self.committed or self.aborted


class TransactionalWriter:
    def __init__(
        self,
        producer: KafkaProducer,
        transactional_id: str,
        random: Random,
        record_counter: RecordCounter,
        partitions: int,
    ) -> None:
        self.producer = producer
        self.transactional_id = transactional_id
        self.partitions = partitions
        self.transactions: list[WrittenTransaction] = []
        self.prepared: TransactionIdentity | None = None
        self.end_error: KafkaSinkError | None = None
        self.has_successor = False
        """Whether another producer with the transactional id was created."""
        self.has_rival = self.had_rival_at_end = False
        """Whether another producer has requested a producer id since this one was created."""
        self.record_takeover: Callable[[TransactionalWriter], None] = lambda writer: None
        self.later_random = Random(0)
        """Source of draws that were added later, so that pinned seeds keep their runs."""
        self.is_killed = self.is_closed = False
        self._random = random
        self._record_counter = record_counter
        self._is_ready = False
        self._is_busy = False
        self._ending = ""

        self.second_caller: SecondCaller | None = None

    @property
    def has_ended(self) -> bool:
        return self.is_killed or self.end_error is not None

    @property
    def open_transaction(self) -> WrittenTransaction | None:
        if not self.transactions or self.transactions[-1].has_ended or self.prepared is not None:
            return None
        return self.transactions[-1]

    def step(self, *, finish: bool = False) -> None:
        """Make the next call, possibly while another writer waits. `finish`: only calls that begin nothing new."""
        if self._is_busy or self.has_ended or self.is_closed:
            return
        self._is_busy = True
        try:
            self._call(finish)
        except TransactionTimeoutError:
            pass  # the next step repeats the call
        except KafkaSinkError as error:
            self.end_error, self.had_rival_at_end = error, self.has_rival
        finally:
            self._is_busy = False

    def kill(self) -> None:
        """Kill the producer like `kill -9`: it ends nothing and sends nothing."""
        self.is_killed = True
        self.close(timeout=0)

    def close(self, timeout: float | None = None) -> None:
        self.is_closed = True
        self.producer.close(timeout)

    def finish(self) -> None:
        for _ in range(MAX_ATTEMPTS):
            if self.has_ended or (
                self._is_ready and not self._ending and self.open_transaction is None and self.prepared is None
            ):
                return
            self.step(finish=True)
        raise AssertionError(f"{self.transactional_id}: {self._ending or 'a call'} never ends")

    def write_whole_transaction(self) -> None:
        """Write a transaction with records in all partitions, without faults."""
        self._is_busy = True
        if not self._is_ready:
            self._initialize()
        self.producer.begin_transaction()
        transaction = WrittenTransaction(self.transactional_id, commit_requested=True)
        self.transactions.append(transaction)
        for partition in range(self.partitions):
            self.send_to(transaction, partition)
        self.producer.commit_transaction()
        transaction.committed = True
        self._is_busy = False

    def finish_and_write_another(self) -> None:
        """Finish the open transaction and write another one, after the faults have ended."""
        self.finish()
        if self.has_ended or self.has_rival:
            return
        try:
            self.write_whole_transaction()
        except KafkaSinkError as error:
            self.end_error = error

    # --- calls

    def _call(self, finish: bool) -> None:
        if not self._is_ready:
            self._initialize()
        elif self._ending == "commit" and self.later_random.random() < 0.3:
            self._abort_instead_of_commit()
        elif self._ending:
            self._end(self._ending)
        elif self.open_transaction is not None:
            endings = ("commit", "commit", "commit", "abort", "prepare")
            if finish or self._random.random() < 0.4:
                self._end(self._random.choice(endings[:4] if finish else endings))
            else:
                self._send(self.open_transaction)
        elif self.prepared is not None:
            # A worker that does not wait for the driver is a repeated task, whose first attempt is aborted.
            if finish or self.transactions[-1].has_ended or self._random.random() < 0.1:
                self._is_ready, self.prepared = False, None
                self._initialize()
        elif not finish:
            self.producer.begin_transaction()
            self.transactions.append(WrittenTransaction(self.transactional_id))

    def _initialize(self) -> None:
        if self.transactions and not self.transactions[-1].has_ended:
            # The open transaction no longer belongs to this writer.
            self.transactions.append(WrittenTransaction(self.transactional_id, aborted=True))
        self.record_takeover(self)
        self.producer.init_transactions()
        self._is_ready = True

    def _send(self, transaction: WrittenTransaction) -> None:
        with contextlib.suppress(TransactionAbortableError):
            for _ in range(self._random.choice((1, 1, 3, 12))):
                self.send_to(transaction, self._random.randrange(self.partitions))
        if self._random.random() < 0.4:
            get_loop(self.producer).run_until(lambda: False, self._random.choice((20, 300, 1000)))
        # Only once per transaction, because the first of two requests might be executed last.
        if transaction.offset is None and self._random.random() < 0.2:
            transaction.offset = self._record_counter.take_next()
            with contextlib.suppress(TransactionAbortableError, TransactionTimeoutError):
                self.producer.send_offsets_to_transaction(
                    {(TOPIC, 0): transaction.offset}, build_group_id(self.transactional_id)
                )

    def call_from_second_thread(self) -> None:
        """Begin a send() in another thread, or resume the one that has begun."""
        if self.second_caller is None or self.second_caller.is_done():
            if self.open_transaction is None or self._ending:
                return
            self.second_caller = self._second_call(self.open_transaction)
        self.second_caller.step()

    def end_second_call(self) -> None:
        """Let the call of the second thread return."""
        if self.second_caller is not None:
            self.second_caller.step()
            assert self.second_caller.is_done(), "a send() of a second thread never ends"

    def _second_call(self, transaction: WrittenTransaction) -> SecondCaller:
        partition = self._random.randrange(self.partitions)
        value = b""

        def finish() -> bytes:
            nonlocal value
            if self._random.random() < 0.5:
                raise ValueError("the serializer failed")
            value = b"%s-%06d" % (self.transactional_id.encode(), self._record_counter.take_next())
            return value

        def send(paused: PausedValue) -> None:
            record = ProducerRecord(TOPIC, paused, partition=partition, timestamp_ms=WALL_MS)
            future = self.producer.send(record)
            if value and not (future.done() and future.exception(0)):
                transaction.values.append((partition, value))
                transaction.futures.append((partition, value, future))

        return SecondCaller(send, finish)

    def send_to(self, transaction: WrittenTransaction, partition: int) -> None:
        value = b"%s-%06d" % (self.transactional_id.encode(), self._record_counter.take_next())
        record = ProducerRecord(TOPIC, value, partition=partition, timestamp_ms=WALL_MS)
        try:
            transaction.futures.append((partition, value, self.producer.send(record)))
        finally:  # After the call, because a record of the second thread may be sent while this one waits for metadata.
            transaction.values.append((partition, value))

    def _end(self, ending: str) -> None:
        transaction = self.transactions[-1]
        self._ending = ending
        try:
            if ending == "commit":
                transaction.commit_requested = True
                self.producer.commit_transaction()
                transaction.committed = True
            elif ending == "abort":
                self.producer.abort_transaction()
                transaction.aborted = True
            else:
                self.prepared = self.producer.prepare_transaction()
                transaction.aborted = self.prepared is None  # the transaction was empty and has ended
        except TransactionAbortableError:
            transaction.commit_requested = False
            self._ending = "abort"
            return
        except TransactionTimeoutError:
            raise
        except KafkaSinkError as error:
            transaction.commit_requested = transaction.commit_requested and error.possibly_stored
            raise
        self._ending = ""

    def _abort_instead_of_commit(self) -> None:
        """Abort after a commit that has timed out. The producer rejects this if it has sent the commit."""
        transaction = self.transactions[-1]
        try:
            self._ending, transaction.commit_requested = "abort", False
            self.producer.abort_transaction()
        except IllegalStateError:
            self._ending, transaction.commit_requested = "commit", True
            return
        transaction.aborted, self._ending = True, ""

    def pass_time(self, ms: float) -> None:
        if not self._is_busy and not self.is_closed:
            self._is_busy = True
            get_loop(self.producer).run_until(lambda: False, ms)
            self._is_busy = False

    def run_sender_round(self) -> None:
        """Run one round of the sender while another writer waits."""
        if not self._is_busy and not self.is_closed:
            self._is_busy = True
            get_loop(self.producer).sender.client.wakeup()
            get_loop(self.producer).run_once()
            self._is_busy = False


class Committer:
    """Ends a prepared transaction, as Spark's driver does. It may die, and another Committer repeats its call."""

    def __init__(
        self, producer: KafkaProducer, prepared: TransactionIdentity, transaction: WrittenTransaction, *, commit: bool
    ) -> None:
        self.producer = producer
        self.prepared = prepared
        self.transaction = transaction
        self.commit = commit
        self.has_ended = False
        self._is_busy = False
        producer.take_over_transaction(prepared)

    def step(self) -> None:
        if self._is_busy or self.has_ended:
            return
        self._is_busy = True
        try:
            if self.commit:
                self.transaction.commit_requested = True
                self.producer.commit_transaction()
                self.transaction.committed = True
            else:
                self.producer.abort_transaction()
                self.transaction.aborted = True
            self.has_ended = True
        except TransactionTimeoutError:
            pass
        except IllegalStateError:
            raise
        except KafkaSinkError:
            self.has_ended = True
        finally:
            self._is_busy = False

    def kill(self) -> None:
        self.has_ended = True
        self.producer.close(timeout=0)
