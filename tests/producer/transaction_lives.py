"""Producers of the transaction explorer: some write transactions, others end prepared ones.

A `Life` is one producer from its creation to its end. It may be killed, or continue as a zombie after another producer
with its transactional id has taken over. `step` makes one of the calls that a user may make now. A call that has timed
out is repeated. After an error that requires a new producer, the life is over, and `reason` is the error.
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

TRIES_MAX = 100
"""Limit of attempts of one call. All faults end long before."""


def build_group_id(transactional_id: str) -> str:
    """Return the consumer group whose offsets are part of the id's transactions."""
    return f"group-{transactional_id}"


class Numbers:
    """Numbers records in the order in which all producers send them."""

    def __init__(self) -> None:
        self.next = 0

    def take(self) -> int:
        self.next += 1
        return self.next


@dataclass
class Written:
    """One transaction, and the results of its calls and futures."""

    transactional_id: str
    values: list[tuple[int, bytes]] = field(default_factory=list)
    """(partition, value) of each record, including those that send() rejected."""
    futures: list[tuple[int, bytes, Future[RecordMetadata]]] = field(default_factory=list)
    offset: int | None = None
    """Offset of the consumer group, which differs between transactions."""
    commit_asked: bool = False
    committed: bool = False
    aborted: bool = False

    @property
    def may_be_visible(self) -> bool:
        return self.commit_asked and not self.aborted

    @property
    def ended(self) -> bool:
        return self.committed or self.aborted


class Life:
    def __init__(
        self, producer: KafkaProducer, transactional_id: str, random: Random, numbers: Numbers, partitions: int
    ) -> None:
        self.producer = producer
        self.transactional_id = transactional_id
        self.partitions = partitions
        self.written: list[Written] = []
        self.prepared: TransactionIdentity | None = None
        self.reason: KafkaSinkError | None = None
        self.succeeded = False
        """Whether another producer with the transactional id was created."""
        self.rivalled = self.rivalled_before_it_ended = False
        """Whether another producer has requested a producer id since this one was created."""
        self.record_takeover: Callable[[Life], None] = lambda life: None
        self.later_random = Random(0)
        """Source of draws that were added later, so that pinned seeds keep their runs."""
        self.killed = self.closed = False
        self._random = random
        self._numbers = numbers
        self._ready = False
        self._busy = False
        self._ending = ""

        self.second_caller: SecondCaller | None = None

    @property
    def over(self) -> bool:
        return self.killed or self.reason is not None

    @property
    def open(self) -> Written | None:
        return self.written[-1] if self.written and not self.written[-1].ended and self.prepared is None else None

    def step(self, *, finish: bool = False) -> None:
        """Make the next call, possibly while another life waits. `finish`: only calls that begin nothing new."""
        if self._busy or self.over or self.closed:
            return
        self._busy = True
        try:
            self._call(finish)
        except TransactionTimeoutError:
            pass  # the next step repeats the call
        except KafkaSinkError as error:
            self.reason, self.rivalled_before_it_ended = error, self.rivalled
        finally:
            self._busy = False

    def kill(self) -> None:
        """Kill the producer like `kill -9`: it ends nothing and sends nothing."""
        self.killed = True
        self.close(timeout=0)

    def close(self, timeout: float | None = None) -> None:
        self.closed = True
        self.producer.close(timeout)

    def finish(self) -> None:
        for _ in range(TRIES_MAX):
            if self.over or (self._ready and not self._ending and self.open is None and self.prepared is None):
                return
            self.step(finish=True)
        raise AssertionError(f"{self.transactional_id}: {self._ending or 'a call'} never ends")

    def write_whole_transaction(self) -> None:
        """Write a transaction with records in all partitions, without faults."""
        self._busy = True
        if not self._ready:
            self._initialise()
        self.producer.begin_transaction()
        written = Written(self.transactional_id, commit_asked=True)
        self.written.append(written)
        for partition in range(self.partitions):
            self.send_to(written, partition)
        self.producer.commit_transaction()
        written.committed = True
        self._busy = False

    def go_on(self) -> None:
        """Finish the open transaction and write another one, after the faults have ended."""
        self.finish()
        if self.over or self.rivalled:
            return
        try:
            self.write_whole_transaction()
        except KafkaSinkError as error:
            self.reason = error

    # --- calls

    def _call(self, finish: bool) -> None:
        if not self._ready:
            self._initialise()
        elif self._ending == "commit" and self.later_random.random() < 0.3:
            self._abort_instead_of_commit()
        elif self._ending:
            self._end(self._ending)
        elif self.open is not None:
            endings = ("commit", "commit", "commit", "abort", "prepare")
            if finish or self._random.random() < 0.4:
                self._end(self._random.choice(endings[:4] if finish else endings))
            else:
                self._send(self.open)
        elif self.prepared is not None:
            # A worker that does not wait for the driver is a repeated task, whose first attempt is aborted.
            if finish or self.written[-1].ended or self._random.random() < 0.1:
                self._ready, self.prepared = False, None
                self._initialise()
        elif not finish:
            self.producer.begin_transaction()
            self.written.append(Written(self.transactional_id))

    def _initialise(self) -> None:
        if self.written and not self.written[-1].ended:
            self.written.append(Written(self.transactional_id, aborted=True))  # the open transaction is no longer ours
        self.record_takeover(self)
        self.producer.init_transactions()
        self._ready = True

    def _send(self, to: Written) -> None:
        with contextlib.suppress(TransactionAbortableError):
            for _ in range(self._random.choice((1, 1, 3, 12))):
                self.send_to(to, self._random.randrange(self.partitions))
        if self._random.random() < 0.4:
            get_loop(self.producer).run_until(lambda: False, self._random.choice((20, 300, 1000)))
        # Only once per transaction, because the first of two requests might be executed last.
        if to.offset is None and self._random.random() < 0.2:
            to.offset = self._numbers.take()
            with contextlib.suppress(TransactionAbortableError, TransactionTimeoutError):
                self.producer.send_offsets_to_transaction(
                    {(TOPIC, 0): to.offset}, build_group_id(self.transactional_id)
                )

    def call_from_second_thread(self) -> None:
        """Begin a send() in another thread, or resume the one that has begun."""
        if self.second_caller is None or self.second_caller.is_done():
            if self.open is None or self._ending:
                return
            self.second_caller = self._second_call(self.open)
        self.second_caller.step()

    def end_second_call(self) -> None:
        """Let the call of the second thread return."""
        if self.second_caller is not None:
            self.second_caller.step()
            assert self.second_caller.is_done(), "a send() of a second thread never ends"

    def _second_call(self, to: Written) -> SecondCaller:
        partition = self._random.randrange(self.partitions)
        value = b""

        def finish() -> bytes:
            nonlocal value
            if self._random.random() < 0.5:
                raise ValueError("the serializer failed")
            value = b"%s-%06d" % (self.transactional_id.encode(), self._numbers.take())
            return value

        def send(paused: PausedValue) -> None:
            record = ProducerRecord(TOPIC, paused, partition=partition, timestamp_ms=WALL_MS)
            future = self.producer.send(record)
            if value and not (future.done() and future.exception(0)):
                to.values.append((partition, value))
                to.futures.append((partition, value, future))

        return SecondCaller(send, finish)

    def send_to(self, to: Written, partition: int) -> None:
        value = b"%s-%06d" % (self.transactional_id.encode(), self._numbers.take())
        record = ProducerRecord(TOPIC, value, partition=partition, timestamp_ms=WALL_MS)
        try:
            to.futures.append((partition, value, self.producer.send(record)))
        finally:  # After the call, because a record of the second thread may be sent while this one waits for metadata.
            to.values.append((partition, value))

    def _end(self, how: str) -> None:
        written = self.written[-1]
        self._ending = how
        try:
            if how == "commit":
                written.commit_asked = True
                self.producer.commit_transaction()
                written.committed = True
            elif how == "abort":
                self.producer.abort_transaction()
                written.aborted = True
            else:
                self.prepared = self.producer.prepare_transaction()
                written.aborted = self.prepared is None  # the transaction was empty and has ended
        except TransactionAbortableError:
            written.commit_asked = False
            self._ending = "abort"
            return
        except TransactionTimeoutError:
            raise
        except KafkaSinkError as error:
            written.commit_asked = written.commit_asked and error.possibly_stored
            raise
        self._ending = ""

    def _abort_instead_of_commit(self) -> None:
        """Abort after a commit that has timed out. The producer rejects this if it has sent the commit."""
        written = self.written[-1]
        try:
            self._ending, written.commit_asked = "abort", False
            self.producer.abort_transaction()
        except IllegalStateError:
            self._ending, written.commit_asked = "commit", True
            return
        written.aborted, self._ending = True, ""

    def pass_time(self, ms: float) -> None:
        if not self._busy and not self.closed:
            self._busy = True
            get_loop(self.producer).run_until(lambda: False, ms)
            self._busy = False

    def serve(self) -> None:
        """Run one round of the sender while another life waits."""
        if not self._busy and not self.closed:
            self._busy = True
            get_loop(self.producer).sender.client.wakeup()
            get_loop(self.producer).run_once()
            self._busy = False


class Committer:
    """Ends a prepared transaction, as Spark's driver does. It may die, and another Committer repeats its call."""

    def __init__(
        self, producer: KafkaProducer, prepared: TransactionIdentity, written: Written, *, commit: bool
    ) -> None:
        self.producer = producer
        self.prepared = prepared
        self.written = written
        self.commit = commit
        self.over = False
        self._busy = False
        producer.take_over_transaction(prepared)

    def step(self) -> None:
        if self._busy or self.over:
            return
        self._busy = True
        try:
            if self.commit:
                self.written.commit_asked = True
                self.producer.commit_transaction()
                self.written.committed = True
            else:
                self.producer.abort_transaction()
                self.written.aborted = True
            self.over = True
        except TransactionTimeoutError:
            pass
        except IllegalStateError:
            raise
        except KafkaSinkError:
            self.over = True
        finally:
            self._busy = False

    def kill(self) -> None:
        self.over = True
        self.producer.close(timeout=0)
