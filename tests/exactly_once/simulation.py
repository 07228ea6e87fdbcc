"""The simulated query of the explorer: drivers and tasks of Spark, and operators who use `pykafka transactions`.

A query with two tasks writes batches as Spark runs them, without Spark: the driver begins the batch, the tasks write,
and the driver commits, or aborts if an attempt fails. The checkpoint records committed batches, and the next start of
the query continues after them. All calls to exactly_once/ are in this module.

The batches may also be batch jobs (see `Workload`), whose commit runs in a process of its own. If that process is
killed, Spark aborts the job. A driver is then a user who runs one job after another. Jobs without an idempotency key
are not idempotent: no job is run a second time, and the user runs the next one only if the last one has succeeded, or
if its error or the log says that none of its rows are visible.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, cast

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import CommitLostError, KafkaSinkError
from spark_kafka_sink.exactly_once import operations, query_transactions
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from spark_kafka_sink.exactly_once.timeout_marks import is_marked_fenced
from spark_kafka_sink.exactly_once.transaction_names import parse_task_id
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite, build_driver_name, build_start_name
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from tests.exactly_once.attempts import Attempt as Attempt
from tests.exactly_once.attempts import AttemptProducer, Identity, TransactionEnd
from tests.exactly_once.attempts import SourceReplay as SourceReplay
from tests.exactly_once.committed_entries import CommittedEntries, find_batch_number
from tests.exactly_once.delays import Delays, find_open_identities
from tests.exactly_once.log_read_faults import LogReadFaults
from tests.exactly_once.reports import Reports
from tests.exactly_once.scheduler import Actor, Scheduler
from tests.exactly_once.simulated_processes import ProcessStates
from tests.exactly_once.workloads import LOG, PREFIX, QUERY, TOPIC, Workload
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

TASKS = 2
"""Number of tasks of a batch, and of partitions of the topic."""
FIRST_DRIVER, LAST_DRIVER = "driver-1", "driver-9"
LAST_OPERATOR = "operator-9"
WAITING_FOR_TASKS, WAITING_FOR_COMMIT = "wait for tasks", "wait for commit"

Operation = Callable[[Mapping[str, str], str, str], object]
"""A function of exactly_once/operations.py: (client options, prefix, topic of the decision log)."""


class Simulation:
    """One query on a simulated cluster, and a record of what its actors did."""

    def __init__(  # noqa: PLR0913 - one keyword for each property of a run
        self,
        *,
        version: int,
        batches: int,
        nodes: int = 1,
        late_tasks: Sequence[int] = (0,),
        seed: int = 0,
        marker_delay_ms: float = 0.0,
        source_replay: SourceReplay = SourceReplay.SAME_ROWS,
        registered: bool = True,
        workload: Workload = Workload.STREAM,
    ) -> None:
        """`version`: transaction version of the cluster. `batches`: number of batches, or of jobs of each user.

        `late_tasks`: tasks that have a second, late attempt in each batch. `marker_delay_ms`: see Delays. `registered`:
        whether each start of the query has its own driver name. Without `register`, all starts share one name.
        """
        self.system = FakeSystem()
        self.scheduler = Scheduler(self.system)
        self.cluster = _create_cluster(self.system, nodes, version, seed)
        self.batches, self.late_tasks = batches, late_tasks
        self.registered = registered
        self.workload = workload
        self.source_replay = source_replay
        self.hand_over_epoch = query_transactions.HAND_OVER_EPOCH
        """The first epoch under which a driver hands over to the next driver id."""
        self.was_stopped = False
        """Whether Spark has stopped a start of the query."""
        self.checkpoint = 0
        """The batch with which the next start of the query begins."""
        self.attempts: list[Attempt] = []
        self.started_drivers: list[str] = []
        """The names of the drivers that have begun a batch, in the order of their first batch."""
        self.errors: dict[str, KafkaSinkError] = {}
        """The error with which a driver or an operator failed, by actor."""
        self.actors_without_claim: set[str] = set()
        """Drivers and operators that gave up before they claimed the prefix. They may still have requested an epoch."""
        self.committed_batches: list[tuple[str, int]] = []
        """(driver, batch) for each batch that was committed or skipped successfully."""
        self.reports = Reports()
        self.skipped_batches: list[tuple[str, int, BatchSummary]] = []
        """(driver, batch, row counts of its tasks) for each batch that was skipped because it is decided."""
        self.transaction_ends: list[TransactionEnd] = []
        self.should_fail: Callable[[Attempt], bool] = lambda attempt: False
        """Whether an attempt fails after it has written its rows."""
        self.delays = Delays(self.cluster, marker_delay_ms)
        self.log_read_faults = LogReadFaults(self.cluster, self.scheduler, LOG)
        self._actor_by_driver_name: dict[str, str] = {}
        self._driver_name_by_actor: dict[str, str] = {}  # the name under which the actor began its last batch
        self._processes = ProcessStates()
        self._entries = CommittedEntries(self.cluster, LOG)
        self._log_hashes: dict[tuple[str, int], tuple[int, int]] = {}  # (end offset, hash of the log) by partition
        self._observe_coordinator()
        self.scheduler.before_resume = self._processes.switch_to

    def add_driver(
        self, name: str, *, suspended: bool = False, stop_before: int | None = None, process: str = ""
    ) -> Actor:
        """Add a driver that writes the batches up to, and without, `stop_before`.

        `process`: the name of its process, if an earlier driver ran in the same one.
        """
        self._processes.process_by_actor[name] = process or name
        return self.scheduler.add(name, lambda actor: self.run_driver(actor, name, stop_before), suspended=suspended)

    def add_operator(self, name: str, operation: Operation = operations.abort, *, suspended: bool = True) -> Actor:
        return self.scheduler.add(name, lambda actor: self.run_operation(actor, name, operation), suspended=suspended)

    # --- actions of a driver

    def run_driver(self, actor: Actor, name: str, stop_before: int | None = None) -> None:
        """Run one start of the query: one batch after another, until one fails and the next one must not run."""
        for number in self._list_batches(name, stop_before):
            try:
                self.run_batch(actor, name, number)
            except KafkaSinkError as error:  # noqa: PERF203 - the loop may continue
                self.errors[name] = error
                if not self._handle_failure(name, number, error):
                    return
            else:
                self.errors.pop(name, None)
                self.committed_batches.append((name, number))
                self.checkpoint = max(self.checkpoint, number + 1)

    def _handle_failure(self, name: str, number: int, error: KafkaSinkError) -> bool:
        """Act as the user of a failed job. Return whether the user runs the next job.

        If transactions of an earlier job are lost, the last user gives them up, as the error says.
        """
        if isinstance(error, CommitLostError) and name == LAST_DRIVER and not self.workload.is_idempotent:
            operations.give_up(self.options, PREFIX, LOG)
            return True
        return number in self.reports.invisible

    def _list_batches(self, name: str, stop_before: int | None) -> range:
        if self.workload.is_idempotent:
            return range(self.checkpoint, self.batches if stop_before is None else stop_before)
        first = [*self._processes.process_by_actor].index(name) * self.batches
        return range(first, first + self.batches)

    def run_batch(self, actor: Actor, name: str, number: int) -> None:
        start = self.begin_batch(actor, name, number)
        driver_name = self._driver_name_by_actor[name]
        if driver_name not in self.started_drivers:
            self.started_drivers.append(driver_name)
        attempts = self.run_tasks(actor, name, start, number)
        batch = self.workload.build_batch(number)
        summary = BatchSummary.from_row_counts({TOPIC: TASKS * TASKS * self.rows_per_partition(name)}, 0)
        try:
            for attempt in attempts:
                if not attempt.has_succeeded:
                    raise attempt.error or KafkaSinkError(f"{attempt.name} was killed")
            transactions = [attempt.transaction for attempt in attempts if attempt.transaction is not None]
            if not transactions:
                start.check_skipped_batch(batch, summary, tolerate_mismatch=self.tolerates_mismatch(name))
                self.skipped_batches.append((name, number, summary))
                return
            self._commit(actor, name, number, lambda driver: driver.commit(start, batch, transactions, summary))
        except KafkaSinkError as error:
            self.reports.add_commit_error(number, batch, error)
            with Driver(self._build_batch_settings(number), system=actor.system) as driver:
                if driver.abort(start, batch):
                    self.reports.add_invisible(number, batch)
            raise

    def _commit(self, actor: Actor, name: str, number: int, commit: Callable[[Driver], None]) -> None:
        """Commit a batch. Spark commits a job in a process of its own."""
        errors: list[KafkaSinkError] = []

        def run(actor: Actor) -> None:
            try:
                with Driver(self._build_batch_settings(number), system=actor.system) as driver:
                    commit(driver)
            except KafkaSinkError as error:
                errors.append(error)

        if self.workload is Workload.STREAM:  # in the driver's process, which keeps the runs of pinned seeds
            run(actor)
        else:
            worker = self.scheduler.add(f"{name}'s commit of job {number}", run)
            self._driver_name_by_actor[worker.name] = self._driver_name_by_actor[name]
            actor.wait_for(lambda: worker.has_ended, WAITING_FOR_COMMIT)
            if worker.is_killed:
                errors.append(KafkaSinkError(f"{worker.name} was killed"))
        if errors:
            raise errors[0]

    def begin_batch(self, actor: Actor, name: str, number: int) -> BatchStart:
        """Begin a batch. If the driver gives up before its claim, record that."""
        generations = self._find_claimed_generations(name)
        driver_name = self._build_driver_name(name, number)
        self._actor_by_driver_name[driver_name] = name
        self._driver_name_by_actor[name] = driver_name
        try:
            with Driver(self._build_batch_settings(number), system=actor.system) as driver:
                return driver.begin(driver_name)
        except KafkaSinkError as error:
            self.reports.add_error(number, self.workload.build_batch(number), error)
            if self._find_claimed_generations(name) == generations:
                self.actors_without_claim.add(name)
            raise

    def _find_claimed_generations(self, driver: str) -> set[int]:
        return {entry.generation for entry in self.read_entries() if self.find_actor(entry) == driver}

    def run_tasks(self, actor: Actor, name: str, start: BatchStart, number: int) -> list[Attempt]:
        """Run all tasks of a batch. Return the attempt of each task that Spark accepts: the first that succeeded."""
        driver_name = self._driver_name_by_actor[name]
        attempts = [Attempt(name, driver_name, number, partition, 0, []) for partition in range(TASKS)]
        late_attempts = {
            partition: Attempt(name, driver_name, number, partition, 1, []) for partition in self.late_tasks
        }
        for attempt in (*attempts, *late_attempts.values()):
            self.attempts.append(attempt)
            self.scheduler.add(attempt.name, self._attempt_runner(start, attempt), suspended=attempt.attempt > 0)
        actor.wait_for(lambda: all(attempt.has_ended for attempt in attempts), WAITING_FOR_TASKS)
        accepted: list[Attempt] = []
        for attempt in attempts:
            late = late_attempts.get(attempt.partition, attempt)
            accepted.append(late if late.has_succeeded and not attempt.has_succeeded else attempt)
        return accepted

    def _attempt_runner(self, start: BatchStart, attempt: Attempt) -> Callable[[Actor], None]:
        def run(actor: Actor) -> None:
            try:
                self.run_attempt(actor, start, attempt)
            except KafkaSinkError as error:
                attempt.error = error
                is_newest = self.workload is Workload.UNNAMED_JOBS or self.started_drivers[-1] == attempt.driver_name
                attempt.is_superseded = self.registered and not is_newest
            finally:
                attempt.has_ended = True

        return run

    def rows_per_partition(self, driver: str) -> int:
        """Return the number of rows that each task of this driver writes to each partition."""
        return 1 if self.source_replay is SourceReplay.SAME_ROWS or driver == FIRST_DRIVER else 2

    def tolerates_mismatch(self, driver: str) -> bool:
        """Return whether this driver skips a decided batch with other rows.

        The last driver always does, as if the user had set onReplayMismatch=warn before the last start.
        """
        return self.source_replay is SourceReplay.OTHER_ROWS_WARN or driver == LAST_DRIVER

    # --- actions of a task attempt

    def run_attempt(self, actor: Actor, start: BatchStart, attempt: Attempt) -> None:
        settings = self._build_batch_settings(attempt.batch)
        write = ExactlyOnceWrite(settings, start, is_stream=self.workload is Workload.STREAM)
        task_attempt_id = len(self.attempts)
        task = TaskIdentity(
            attempt.partition, attempt.attempt, task_attempt_id, 0, query_id=QUERY, batch_id=str(attempt.batch)
        )
        report = TaskReport(task)
        if write.is_decided(task):
            attempt.is_skipped = True
            return
        producer = self.create_producer(actor, write, attempt)
        with write.transaction(producer, report):
            for partition in range(TASKS):
                for row in range(self.rows_per_partition(attempt.driver)):
                    value = f"{attempt.batch}/{attempt.partition}/{attempt.driver}/{attempt.attempt}/{row}".encode()
                    attempt.values.append((partition, value))
                    producer.send(ProducerRecord(TOPIC, value, partition=partition))
        if self.should_fail(attempt):
            attempt.error = KafkaSinkError(f"{attempt.name} has failed")
            return  # The Python worker was killed, so nothing aborts the transaction.
        producer.close(timeout=0)
        attempt.transaction = report.transaction

    def create_producer(self, actor: Actor, write: ExactlyOnceWrite, attempt: Attempt) -> KafkaProducer:
        options = {**write.build_producer_options(self.options), "linger.ms": "0"}
        return AttemptProducer(attempt, cast(FakeSystem, actor.system), options, random=Random(0))

    # --- names of drivers

    def _build_driver_name(self, actor: str, number: int) -> str:
        """Return the driver name under which this actor begins this batch."""
        if self.workload is not Workload.STREAM:
            return f"{actor}, job {number}"
        if self.registered or actor == LAST_DRIVER:  # The last start runs in another Spark application.
            return actor
        return build_driver_name(None)

    def find_actor(self, entry: Entry) -> str:
        """Return the actor that is the driver of the entry, or else the driver name in the entry."""
        return self._actor_by_driver_name.get(entry.claimant_name, entry.claimant_name)

    # --- actions of Spark and of operators

    def stop_query(self, actor: Actor, name: str) -> None:
        """Abort the unreported batch of this driver, as Spark does when it stops the query."""
        self.was_stopped = True
        with contextlib.suppress(KafkaSinkError), Driver(self.build_settings(), system=actor.system) as driver:
            driver.abort_unreported(name if self.registered else build_start_name(None))

    def run_operation(self, actor: Actor, name: str, operation: Operation = operations.abort) -> None:
        """Run an operation of `pykafka transactions` as the operator `name`, under each prefix that it lists."""
        try:
            prefixes = [PREFIX]
            if self.workload is Workload.UNNAMED_JOBS:
                prefixes = [status.prefix for status in operations.list_prefixes(self.options, LOG)]
        except KafkaSinkError as error:
            self.errors[name] = error
            return
        for prefix in prefixes:
            try:
                result = operation(self.options, prefix, LOG)
                if result is None and not self._find_claimed_generations(name):
                    self.actors_without_claim.add(name)
                self.reports.add_result(result)
            except KafkaSinkError as error:  # noqa: PERF203 - the operator continues with the next prefix
                self.errors[name] = error

    # --- options

    @property
    def options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.cluster.bootstrap_servers,
            "retry.backoff.ms": "10",
            "retry.backoff.max.ms": "10",
            "request.timeout.ms": "1000",
        }

    def build_settings(self, prefix: str = PREFIX, idempotency_key: str | None = None) -> ExactlyOnceSettings:
        """Return the settings of the query, or of a job with this prefix and key."""
        return self.workload.build_settings(self.options, prefix, idempotency_key)

    def _build_batch_settings(self, number: int) -> ExactlyOnceSettings:
        """Return the settings of this batch."""
        return self.build_settings(self.workload.build_prefix(number), self.workload.build_batch(number).key)

    # --- state

    def read_entries(self) -> list[Entry]:
        """Return all committed entries of the query or the jobs in the decision log, oldest first."""
        return self._entries.read()

    def list_prefixes_with_entry(self) -> set[str]:
        """Return the prefixes whose newest committed entry was not deleted."""
        newest = {entry.prefix: entry for entry in self.read_entries()}
        return {entry.prefix for entry in newest.values() if entry.generation}

    def decided_transactions(self) -> dict[int, list[frozenset[Identity]]]:
        """Return the decided transactions by batch. A batch that was decided again has several sets of them."""
        decided: dict[int, list[frozenset[Identity]]] = {}
        for entry in self.read_entries():
            number = find_batch_number(entry)
            if entry.state is EntryState.DECIDED and number is not None:
                identities = frozenset(
                    (transaction.transactional_id, transaction.producer_id, transaction.epoch)
                    for transaction in entry.transactions
                )
                decisions = decided.setdefault(number, [])
                if identities not in decisions:
                    decisions.append(identities)
        return decided

    def state_hash(self) -> int:
        """Return a hash of all state that determines how the run continues."""
        transactions = [
            (
                transactional_id,
                transaction.producer_id,
                transaction.epoch,
                transaction.previous_epoch,
                transaction.timeout_ms,
                transaction.state.value,
                transaction.version,
            )
            for transactional_id, transaction in sorted(self.cluster.core.coordinator.transactions.items())
        ]
        logs = [self._log_hash(TOPIC, partition) for partition in range(TASKS)] + [self._log_hash(LOG, 0)]
        faults = self.delays.state_hash(), self.log_read_faults.state_hash()
        return hash((self.scheduler.state_hash(), tuple(transactions), tuple(logs), self.checkpoint, faults))

    def _log_hash(self, topic: str, partition: int) -> int:
        log = self.cluster.log(topic, partition)
        end_offset, log_hash = self._log_hashes.get((topic, partition), (0, 0))
        if log.log_end_offset > end_offset:
            for batch in log.read(end_offset, sys.maxsize).batches:
                log_hash = hash((log_hash, bytes(batch)))
            self._log_hashes[topic, partition] = log.log_end_offset, log_hash
        return log_hash

    def pass_time(self, ms: float) -> None:
        """Advance the clock while all actors are suspended, unless an open transaction may not time out now.

        The clock stays while a batch is decided and not done: a transaction that timed out then would be lost, and the
        next start would report it. The clock also stays while attempts of the last batch that were not accepted have
        open transactions or may still begin them: a driver that was suspended while it aborts them gives up, and their
        transactions end with their timeout or with the next batch.

        If the batches are jobs without an idempotency key, transactions may be lost, and the clock always advances.
        """
        self.delays.write_markers()
        last = self.read_entries()[-1] if self.read_entries() else None
        has_decision = last is not None and (last.state is EntryState.DECIDED or self._has_open_attempts(last))
        if not has_decision or not self.workload.is_idempotent:
            self.system.advance(ms)

    def _has_open_attempts(self, entry: Entry) -> bool:
        """Return whether attempts of the entry's batch have open transactions, or may still begin them."""
        open_identities = find_open_identities(self.cluster.core.coordinator.transactions.values())
        return any(
            attempt.identity in open_identities or self._may_begin_transaction(attempt)
            for attempt in self.attempts
            if attempt.batch == find_batch_number(entry)
        )

    def _may_begin_transaction(self, attempt: Attempt) -> bool:
        """Return whether the attempt, or its late request, may still begin a transaction under the attempt's epoch."""
        if attempt.identity is None or (attempt.has_ended and not self.delays.has_delayed_request(attempt.name)):
            return False
        transaction = self.cluster.core.coordinator.transactions[attempt.identity[0]]
        current_identity = transaction.transactional_id, transaction.producer_id, transaction.epoch
        return transaction.state is TransactionState.EMPTY and attempt.identity == current_identity

    # --- observation

    def observe_open_transactions(self) -> None:
        """Record the generated prefixes that have an open transaction and no entry.

        The empty transaction with which a driver fences an id at the leaders is ignored: it times out after 5 s.
        """
        if self.workload is not Workload.UNNAMED_JOBS:
            return
        task_ids = [
            parse_task_id(transaction.transactional_id)
            for transaction in self.cluster.core.coordinator.transactions.values()
            if transaction.state is TransactionState.ONGOING and not is_marked_fenced(transaction.timeout_ms)
        ]
        open_prefixes = {task_id.prefix for task_id in task_ids if task_id is not None}
        self.reports.prefixes_without_entry |= open_prefixes - self.list_prefixes_with_entry()

    def _observe_coordinator(self) -> None:
        """Record who ends transactions, and count driver epochs that two actors share."""
        self._record_transaction_ends()
        self.delays.count_shared_epochs(
            lambda transactional_id: parse_task_id(transactional_id) is None,
            lambda: self.scheduler.current,
        )

    def _record_transaction_ends(self) -> None:
        coordinator = self.cluster.core.coordinator
        write_end = coordinator._write_or_defer_markers

        def recording(transaction: Any, epoch: int, *, commit: bool) -> None:
            current = self.scheduler.current
            sender = self.delays.current_sender or (current.name if current else "")
            requested_by = self._driver_name_by_actor.get(sender, sender)
            identity = transaction.transactional_id, transaction.producer_id, transaction.epoch
            self.transaction_ends.append(TransactionEnd(requested_by, identity, commit, transaction.timeout_ms))
            write_end(transaction, epoch, commit=commit)

        coordinator._write_or_defer_markers = recording  # type: ignore[method-assign]


def _create_cluster(system: FakeSystem, nodes: int, version: int, seed: int) -> SimulatedCluster:
    """Return a cluster with the query's topic and a decision log of one partition."""
    cluster = SimulatedCluster(system, nodes=nodes, topics={TOPIC: TASKS}, seed=seed, transaction_version=version)
    cluster.core.create_topic(LOG, 1, {"cleanup.policy": "compact"})
    return cluster
