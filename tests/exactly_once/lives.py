"""The actors of the explorer: drivers and tasks of Spark, and persons who use `pykafka transactions`, without Spark.

A query of two tasks writes batches, as Spark has them written: begin, the tasks, commit; abort if something fails; and
what was committed is noted in the checkpoint, from which the next start goes on. All calls of exactly_once/ are here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, cast
from unittest.mock import patch

from spark_kafka_sink.client.options import client_config
from spark_kafka_sink.errors import DecodeError, KafkaSinkError
from spark_kafka_sink.exactly_once import clients, decision_log, driver_ids, operations
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.delivery import Delivery, DeliveryOptions
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import decode_entry
from spark_kafka_sink.exactly_once.transaction_names import claim_key, parse_driver_number
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.requests import blocking as blocking_client
from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite, build_driver_name, build_start_name
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from tests.exactly_once.attempts import Attempt as Attempt
from tests.exactly_once.attempts import End, Identity
from tests.exactly_once.attempts import Replay as Replay
from tests.exactly_once.interleaving import Actor, Stage
from tests.exactly_once.lateness import Lateness, not_ended
from tests.exactly_once.log_reads import LogReads
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import SimulatedProducer, sender_of
from tests.simulated_cluster import SimulatedCluster

TOPIC, LOG, PREFIX, QUERY, CHECKPOINT = "t", "decisions", "p", "query-1", "/checkpoint"
TASKS = 2
TIMEOUT_MS = 900_000
FIRST, LAST = "driver-1", "driver-9"
_OF_A_PROCESS: dict[tuple[Any, str], Callable[[], object]] = {
    (clients, "CLIENTS"): clients.new_leases,
    (clients, "CLIENT_IDLE_SECONDS"): lambda: float("inf"),  # no thread that closes idle clients
    (decision_log, "_partition_cache"): dict,
    **{(decision_log, name): set for name in ("_checked_topics", "_warned_records")},
    (driver_ids, "_remembered_numbers"): dict,
}
"""What modules remember, and how it begins: each process has its own."""

Operation = Callable[[Mapping[str, str], str, str], object]


class World:
    """One query, its cluster, and what happened.

    `markers_ms`: how long after the end of a transaction was answered its markers are written. `registered`: else all
    starts of the query have one name, as it is without `register`.
    """

    def __init__(  # noqa: PLR0913 - each thing that a run can be given, by its name
        self,
        *,
        version: int,
        batches: int,
        nodes: int = 1,
        late_tasks: Sequence[int] = (0,),
        seed: int = 0,
        markers_ms: float = 0.0,
        replay: Replay = Replay.EQUAL,
        registered: bool = True,
    ) -> None:
        self.system = FakeSystem()
        self.stage = Stage(self.system)
        self.cluster = SimulatedCluster(
            self.system, nodes=nodes, topics={TOPIC: TASKS}, seed=seed, transaction_version=version
        )
        self.cluster.core.create_topic(LOG, 1, {"cleanup.policy": "compact"})
        self.batches = batches
        self.late_tasks = late_tasks
        """Of each of these there is an attempt that comes late."""
        self.stopped = False  # by Spark, a start of the query
        self.registered = registered
        self._whose: dict[str, str] = {}
        """The actor that is the driver with this name."""
        self.checkpoint = 0
        """The batch with which the next start of the query begins."""
        self.attempts: list[Attempt] = []
        self.began: list[str] = []
        """The drivers that have begun, in their order; one that begins again stands where it began first."""
        self.failed: dict[str, KafkaSinkError] = {}
        self.in_vain: set[str] = set()
        """Persons whose operation found nothing to do, perhaps after it had asked for an epoch."""
        self.committed: list[tuple[str, int]] = []
        """(driver, batch) where commit returned, or the batch was passed over."""
        self.passed_over: list[tuple[str, int, BatchContent]] = []
        """(driver, batch, the rows that its tasks have counted) where a batch was passed over."""
        self.ends: list[End] = []
        self.fails: Callable[[Attempt], bool] = lambda attempt: False
        """A task that fails when it has written."""
        self.lateness = Lateness(self.cluster, markers_ms)
        self.log_reads = LogReads(self.cluster, self.stage, LOG)
        self.replay = replay
        self._process_of: dict[str, str] = {}
        self._processes: dict[str, dict[tuple[Any, str], Any]] = {}
        self._watch()
        self._now_in = ""
        self._read = (-1, -1)
        self._decisions: list[Entry] = []
        self._logs: dict[tuple[str, int], tuple[int, int]] = {}

    def add_driver(self, name: str, *, latent: bool = False, until: int | None = None, process: str = "") -> Actor:
        """`until`: the batch before which it ends; `process`: in which another driver was before."""
        self._process_of[name] = process or name
        return self.stage.add(name, lambda actor: self.drive(actor, name, until), latent=latent)

    def add_operator(self, name: str, operation: Operation = operations.abort, *, latent: bool = True) -> Actor:
        return self.stage.add(name, lambda actor: self.operate(actor, name, operation), latent=latent)

    # --- the life of a driver

    def drive(self, actor: Actor, name: str, until: int | None = None) -> None:
        """Run one start of the query: one batch after the other, until one fails."""
        number = self.checkpoint
        try:
            while number < (self.batches if until is None else until):
                self.run_batch(actor, name, number)
                self.committed.append((name, number))
                number += 1
                self.checkpoint = max(self.checkpoint, number)
        except KafkaSinkError as error:
            self.failed[name] = error

    def run_batch(self, actor: Actor, name: str, number: int) -> None:
        with Driver(self.delivery, system=actor.system) as driver:
            start = driver.begin(self.build_driver_name(name))
        if name not in self.began:
            self.began.append(name)
        attempts = self.run_tasks(actor, name, start, number)
        batch = Batch(QUERY, number)
        content = BatchContent.from_row_counts({TOPIC: TASKS * TASKS * self.rows(name)}, 0)
        try:
            for each in attempts:
                if not each.succeeded:
                    raise each.error or KafkaSinkError(f"{each.name} has died")
            transactions = [each.transaction for each in attempts if each.transaction is not None]
            if not transactions:
                start.check_skipped_batch(batch, content, tolerate_mismatch=self.is_tolerant(name))
                self.passed_over.append((name, number, content))
                return
            with Driver(self.delivery, system=actor.system) as driver:
                driver.commit(start, batch, transactions, content)
        except KafkaSinkError:
            with Driver(self.delivery, system=actor.system) as driver:
                driver.abort(start, batch)
            raise

    def run_tasks(self, actor: Actor, name: str, start: BatchStart, number: int) -> list[Attempt]:
        """The attempts whose reports Spark takes: the first of each task that succeeded."""
        attempts = [Attempt(name, number, partition, 0, []) for partition in range(TASKS)]
        late = {partition: Attempt(name, number, partition, 1, []) for partition in self.late_tasks}
        for each in (*attempts, *late.values()):
            self.attempts.append(each)
            self.stage.add(each.name, self._attempt_of(start, each), latent=each.attempt > 0)
        actor.wait_for(lambda: all(each.ended for each in attempts), "waits for its tasks")
        others = [late.get(each.partition, each) for each in attempts]
        return [
            other if other.succeeded and not each.succeeded else each
            for each, other in zip(attempts, others, strict=True)
        ]

    def _attempt_of(self, start: BatchStart, attempt: Attempt) -> Callable[[Actor], None]:
        def run(actor: Actor) -> None:
            try:
                self.write(actor, start, attempt)
            except KafkaSinkError as error:
                attempt.error = error
                attempt.overtaken = self.registered and self.began[-1] != attempt.driver
            finally:
                attempt.ended = True

        return run

    def rows(self, driver: str) -> int:
        """Return the number of rows that a task of this driver writes to each partition."""
        return 1 if self.replay is Replay.EQUAL or driver == FIRST else 2

    def is_tolerant(self, driver: str) -> bool:
        """Of the last start, too: a person has set the option by then."""
        return self.replay is Replay.WARNS or driver == LAST

    # --- the life of a task

    def write(self, actor: Actor, start: BatchStart, attempt: Attempt) -> None:
        once = ExactlyOnceWrite(self.delivery, start, is_stream=True)
        number = len(self.attempts)
        task = TaskIdentity(attempt.partition, attempt.attempt, number, 0, query_id=QUERY, batch_id=str(attempt.number))
        report = TaskReport(task)
        if once.is_committed(task):
            attempt.passed_over = True
            return
        producer = self.producer(actor, once, attempt)
        with once.transaction(producer, report):
            for partition in range(TASKS):
                for row in range(self.rows(attempt.driver)):
                    value = f"{attempt.number}/{attempt.partition}/{attempt.driver}/{attempt.attempt}/{row}".encode()
                    attempt.values.append((partition, value))
                    producer.send(ProducerRecord(TOPIC, value, partition=partition))
        if self.fails(attempt):
            attempt.error = KafkaSinkError(f"{attempt.name} has failed")
            return  # its worker was killed: nothing is aborted
        producer.close(timeout=0)
        attempt.transaction = report.transaction

    def producer(self, actor: Actor, once: ExactlyOnceWrite, attempt: Attempt) -> KafkaProducer:
        options = {**once.producer_options(self.options), "linger.ms": "0"}
        return _ProducerOf(attempt, cast(FakeSystem, actor.system), options, random=Random(0))

    def build_driver_name(self, name: str) -> str:
        if self.registered or name == LAST:  # the last start is in a Spark of its own
            return name
        driver = build_driver_name(None)
        self._whose[driver] = name
        return driver

    def whose(self, entry: Entry) -> str:
        """Return the actor that is the driver of the entry, or else the driver name in the entry."""
        return self._whose.get(entry.driver_name, entry.driver_name)

    def stop(self, actor: Actor, name: str) -> None:
        """Spark stops the query: this start's batch is aborted, of which no task has reported."""
        self.stopped = True
        with contextlib.suppress(KafkaSinkError), Driver(self.delivery, system=actor.system) as driver:
            driver.abort_unreported(name if self.registered else build_start_name(None))

    # --- the life of a person

    def operate(self, actor: Actor, name: str, operation: Operation = operations.abort) -> None:
        """`pykafka transactions abort`, or another one"""
        try:
            if operation(self.options, PREFIX, LOG) is None:
                self.in_vain.add(name)
        except KafkaSinkError as error:
            self.failed[name] = error

    # --- what they have in common

    @property
    def options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.cluster.bootstrap_servers,
            "retry.backoff.ms": "10",
            "retry.backoff.max.ms": "10",
            "request.timeout.ms": "1000",
        }

    @property
    def delivery(self) -> Delivery:
        return self.delivery_of(PREFIX)

    def delivery_of(self, prefix: str) -> Delivery:
        return Delivery(
            client_config(self.options),
            prefix,
            DeliveryOptions(prefix, topic=LOG, timeout_ms=TIMEOUT_MS),
            checkpoint=CHECKPOINT,
        )

    def decisions(self) -> list[Entry]:
        """All entries of the query in the log that are committed, oldest first."""
        log = self.cluster.log(LOG, 0)
        if self._read != (log.log_end_offset, log.last_stable_offset):
            self._read, self._decisions = (log.log_end_offset, log.last_stable_offset), self._read_decisions()
        return self._decisions

    def _read_decisions(self) -> list[Entry]:
        rows = self.cluster.table(LOG, 0, committed=True)
        found: list[Entry] = []
        for key, value in zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True):
            if key in (PREFIX.encode(), claim_key(PREFIX)) and value is not None:
                with contextlib.suppress(DecodeError):  # a stranger's
                    found.append(decode_entry(PREFIX.encode(), value))
        return found

    def decided(self) -> dict[int, list[frozenset[Identity]]]:
        """By batch: the transactions that were decided to be committed. Several, where that was decided anew."""
        found: dict[int, list[frozenset[Identity]]] = {}
        for entry in self.decisions():
            if entry.state is EntryState.DECIDED and entry.batch.batch_id is not None:
                ids = frozenset((each.transactional_id, each.producer_id, each.epoch) for each in entry.transactions)
                every = found.setdefault(entry.batch.batch_id, [])
                if ids not in every:
                    every.append(ids)
        return found

    def state(self) -> int:
        """Return a hash of all state that determines how the run continues."""
        coordinator = self.cluster.core.coordinator
        transactions = [
            (name, each.producer_id, each.epoch, each.last_epoch, each.timeout_ms, each.state.value, each.version)
            for name, each in sorted(coordinator.transactions.items())
        ]
        logs = [self._log_state(TOPIC, partition) for partition in range(TASKS)] + [self._log_state(LOG, 0)]
        faults = self.lateness.state(), self.log_reads.state()
        return hash((self.stage.state(), tuple(transactions), tuple(logs), self.checkpoint, faults))

    def _log_state(self, topic: str, partition: int) -> int:
        log = self.cluster.log(topic, partition)
        seen, known = self._logs.get((topic, partition), (0, 0))
        if log.log_end_offset > seen:
            for batch in log.read(seen, sys.maxsize).batches:
                known = hash((known, bytes(batch)))
            self._logs[topic, partition] = log.log_end_offset, known
        return known

    def let_time_pass(self, ms: float) -> None:
        """The actors stand still. Not while a batch is decided and not done: what has timed out then is lost, and the
        next start says so. Nor while attempts of it that lost are ended: a driver that has stood still there gives up,
        and they end by their timeout or with the next batch.
        """
        self.lateness.write_markers()
        last = self.decisions()[-1] if self.decisions() else None
        if last is None or (last.state is not EntryState.DECIDED and not self._has_losers(last)):
            self.system.advance(ms)

    def _has_losers(self, entry: Entry) -> bool:
        still = not_ended(self.cluster.core.coordinator.transactions.values())
        return any(each.identity in still for each in self.attempts if each.number == entry.batch.batch_id)

    # --- parts

    def _watch(self) -> None:
        """Record who ends transactions and who gets epochs of the driver ids, and switch module state per actor."""
        self._watch_ends()
        self.lateness.watch_epochs(
            lambda name: parse_driver_number(PREFIX, name) is not None, lambda: self.stage.current
        )
        self.stage.before_going_on = self._enter_process

    def _watch_ends(self) -> None:
        coordinator = self.cluster.core.coordinator
        write_end = coordinator._write_end

        def watched(transaction: Any, epoch: int, *, commit: bool) -> None:
            by = self.lateness.by or (self.stage.current.name if self.stage.current else "")
            identity = transaction.transactional_id, transaction.producer_id, transaction.epoch
            self.ends.append(End(by, identity, commit))
            write_end(transaction, epoch, commit=commit)

        coordinator._write_end = watched  # type: ignore[method-assign]

    def _enter_process(self, actor: Actor) -> None:
        """What modules remember is of the process that goes on."""
        process = self._process_of.get(actor.name, actor.name)
        if process == self._now_in:
            return
        self._processes[self._now_in] = {place: getattr(*place) for place in _OF_A_PROCESS}
        mine = self._processes.get(process)
        for (module, name), new in _OF_A_PROCESS.items():
            setattr(module, name, new() if mine is None else mine[module, name])
        self._now_in = process


class _ProducerOf(SimulatedProducer):
    """Notes which identity brokers have given to the attempt, also if it begins nothing under it."""

    def __init__(self, attempt: Attempt, *arguments: Any, **named: Any) -> None:
        self._attempt = attempt
        super().__init__(*arguments, **named)

    def init_transactions(self, transactional_id: str | None = None) -> None:
        super().init_transactions(transactional_id)
        given = sender_of(self).idempotence.id_and_epoch
        self._attempt.identity = transactional_id or "", given.producer_id, given.epoch


@contextmanager
def one_process_at_a_time(world: World) -> Iterator[None]:
    """Around `world.stage.play`: what asks for the operating system gets that of the actor which goes on."""

    def system() -> object:
        assert world.stage.current is not None
        return world.stage.current.system

    before = {place: getattr(*place) for place in _OF_A_PROCESS}
    logger = logging.getLogger("spark_kafka_sink")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with patch.object(blocking_client, "OperatingSystem", system), world.log_reads.applied():
            for (module, name), new in _OF_A_PROCESS.items():
                setattr(module, name, new())
            yield
    finally:
        logger.setLevel(level)
        for (module, name), value in before.items():
            setattr(module, name, value)
