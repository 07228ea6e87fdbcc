"""The invariants of exactly-once delivery, which the explorer checks after all actors have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError
from spark_kafka_sink.exactly_once.timeout_marks import compute_driver_claimed_timeout_ms
from spark_kafka_sink.exactly_once.transaction_names import parse_task_id
from spark_kafka_sink.requests.verdicts import BATCH_OWNERSHIP_LOST_ERRORS
from tests.exactly_once.attempts import Identity
from tests.exactly_once.committed_entries import find_batch_number
from tests.exactly_once.simulation import (
    LAST_DRIVER,
    LAST_OPERATOR,
    TASKS,
    Simulation,
    SourceReplay,
)
from tests.exactly_once.workloads import TIMEOUT_MS, TOPIC, Workload
from tests.history import History, Outcome, Write


def decided_batches_are_read_exactly_once(simulation: Simulation) -> None:
    """Check that a read_committed consumer reads each decided batch once and completely, and no attempt that was not
    decided.

    Each batch is decided only once, and each idempotent batch is decided. Transactions of a decided job may be lost if
    that was reported, but not if its commit has succeeded.
    """
    decided_identities = _find_decided_identities(simulation)
    visible_values = {
        partition: [value or b"" for value in simulation.cluster.values(TOPIC, partition, committed=True)]
        for partition in range(TASKS)
    }
    lost_batches = {
        attempt.batch
        for attempt in simulation.attempts
        if simulation.reports.has_lost_transactions
        and attempt.identity in decided_identities
        and not all(value in visible_values[partition] for partition, value in attempt.values)
    } - {number for _, number in simulation.committed_batches}
    history = History()
    for attempt in simulation.attempts:
        is_lost = attempt.batch in lost_batches
        decided_outcome = Outcome.UNKNOWN if is_lost else Outcome.COMMITTED
        outcome = decided_outcome if attempt.identity in decided_identities else Outcome.OPEN
        unit = f"task {attempt.partition} of batch {attempt.batch}"
        writer = f"task {attempt.partition} in batch {attempt.batch}"
        batch = None if is_lost else f"batch {attempt.batch}"
        history.writes.append(Write(attempt.name, attempt.values, outcome, unit, batch, writer))
    for number in {attempt.batch for attempt in simulation.attempts}:
        units = frozenset(f"task {partition} of batch {number}" for partition in range(TASKS))
        history.units[f"batch {number}"] = units
    history.check(visible_values)
    decided = simulation.decided_transactions()
    for number in range(simulation.batches) if simulation.workload.is_idempotent else ():
        assert decided.get(number), f"batch {number} was never decided"
    for number, decisions in decided.items():
        assert len(decisions) == 1, f"batch {number} was decided more than once: {decisions}"


def _find_decided_identities(simulation: Simulation) -> set[Identity]:
    decisions = simulation.decided_transactions().values()
    return {identity for batch_decisions in decisions for identities in batch_decisions for identity in identities}


def older_drivers_change_nothing_after_a_newer_start(simulation: Simulation) -> None:
    """Check that an older driver writes no entry and ends no newer transaction, except to commit a decided one."""
    for prefix in {entry.prefix for entry in simulation.read_entries()}:
        generations = [entry.generation for entry in simulation.read_entries() if entry.prefix == prefix]
        is_sorted = all(earlier <= later or not later for earlier, later in pairwise(generations))
        assert is_sorted, f"the log returns to an older driver: {generations}"
    if not simulation.registered:
        return  # Each batch has its own driver name, so an actor that started first may have the newer driver.
    drivers = {attempt.identity: attempt.driver_name for attempt in simulation.attempts}
    decided_identities = _find_decided_identities(simulation)
    started = simulation.started_drivers
    for end in simulation.transaction_ends:
        owner = drivers.get(end.identity)
        if owner is None or end.requested_by not in started or owner not in started:
            continue
        is_older = started.index(end.requested_by) < started.index(owner)
        is_allowed = end.commit and end.identity in decided_identities
        assert not is_older or is_allowed, f"{end.requested_by} ended {end.identity} of the newer driver {owner}"


def driver_transactions_have_short_timeouts(simulation: Simulation) -> None:
    """Check that each transaction that a driver commits would time out before those of its tasks.

    A driver may be suspended before it commits its decision. If the tasks' transactions then timed out first, the
    decided rows would be lost.
    """
    longest_ms = compute_driver_claimed_timeout_ms(TIMEOUT_MS)
    for end in simulation.transaction_ends:
        if end.commit and parse_task_id(end.identity[0]) is None:
            assert end.timeout_ms <= longest_ms, f"{end.requested_by} commits {end.identity} with {end.timeout_ms} ms"


def current_driver_does_not_give_up(simulation: Simulation) -> None:
    """Check that the driver with the last entry in the log does not fail because of a newer driver.

    A broker aborts the open transaction of the current driver when an older driver requests an epoch. The current
    driver must continue all the same, so that one of the living drivers works.

    The check does not apply if a driver was killed, or gave up before its claim: it may have fenced another driver,
    whose tasks then fail as late attempts. Nor does it apply if Spark has stopped the query.
    """
    if simulation.scheduler.has_killed_actor or simulation.was_stopped:
        return
    entries = [entry for entry in simulation.read_entries() if simulation.find_actor(entry) != LAST_DRIVER]
    current = simulation.find_actor(entries[-1]) if entries else ""
    error = simulation.errors.get(current)
    gave_up = error is not None and any(text in str(error) for text in ("newer driver", "in favor of another driver"))
    drivers_in_log = {simulation.find_actor(entry) for entry in entries}
    failed_actors_without_entry = simulation.errors.keys() - drivers_in_log
    if "came too late" in str(error) and (failed_actors_without_entry or simulation.actors_without_claim):
        return
    assert not gave_up, f"{current} wrote the last entry in the log, and gave up: {error}"


def fenced_attempts_report_newer_driver(simulation: Simulation) -> None:
    """Check that a fenced actor raises ExactlyOnceError, and the error of the broker is at most its cause.

    Attempts without a newer driver are not checked. Another attempt of the same number can fence them, if it was
    suspended before it requested its id. Their driver then waits, and only the broker's error is known.
    """
    unchecked = {id(attempt.error) for attempt in simulation.attempts if not attempt.is_superseded}
    attempt_errors = [attempt.error for attempt in simulation.attempts if attempt.error is not None]
    for error in (*simulation.errors.values(), *attempt_errors):
        if id(error) in unchecked:
            continue
        fencing_errors = [
            cause
            for cause in _iterate_causes(error)
            if isinstance(cause, BrokerError) and cause.code in BATCH_OWNERSHIP_LOST_ERRORS
        ]
        assert not fencing_errors or isinstance(error, ExactlyOnceError), f"{error!r}, caused by {fencing_errors}"


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def skipped_batches_are_decided(simulation: Simulation) -> None:
    """Check that actors skip only decided batches, with the decided row counts unless the driver tolerates a mismatch.

    A driver fails with a mismatch only if the source returned other rows.
    """
    decided = simulation.decided_transactions()
    for attempt in simulation.attempts:
        assert not attempt.is_skipped or attempt.batch in decided, f"{attempt.name} was skipped, and never decided"
    for driver, number in simulation.committed_batches:
        assert number in decided, f"{driver} reports batch {number} as committed, and it was never decided"
    summaries = {
        find_batch_number(entry): entry.summary for entry in simulation.read_entries() if entry.summary is not None
    }
    for driver, number, summary in simulation.skipped_batches:
        assert simulation.tolerates_mismatch(driver) or summaries[number].has_same_row_counts(summary), (
            f"{driver} skipped {summary}; decided was {summaries[number]}"
        )
    for driver, error in simulation.errors.items():
        is_mismatch = "but with different rows" in str(error)
        assert not is_mismatch or simulation.source_replay is SourceReplay.OTHER_ROWS_FAIL, (
            f"{driver} fails although its rows are the same: {error}"
        )


def no_transaction_stays_open(simulation: Simulation) -> None:
    """Check that no transaction of a task stays open. Drivers write only to the decision log, so no reader waits for
    theirs.

    Two cases end by the transaction timeout, or when the next driver aborts them:

    - Version 1: a late AddPartitionsToTxn request opens a transaction without rows under the epoch of an ended one.
    - Version 1: a late attempt begins although its batch is decided. This happens if another driver or an operator
      requests an epoch, or a request of the attempt's own driver is late, and the broker returns the epoch of that
      driver, because it takes the request for a retry. The driver id then looks as if nothing was decided under it.
    """
    if simulation.delays.begins_late_transactions:
        simulation.system.advance(TIMEOUT_MS)
        simulation.delays.write_markers()
    for partition in range(TASKS):
        log = simulation.cluster.log(TOPIC, partition)
        assert log.last_stable_offset == log.log_end_offset, f"partition {partition}: a transaction is open"
    open_transactions = [
        transaction
        for transaction in simulation.cluster.core.coordinator.transactions.values()
        if parse_task_id(transaction.transactional_id) is not None and transaction.state.value == "Ongoing"
    ]
    assert not open_transactions, f"open transactions: {open_transactions}"
    assert not simulation.system.open_sockets, "a socket is open"


def next_start_succeeds(simulation: Simulation) -> None:
    """Check that the last start of the query writes all remaining batches."""
    assert LAST_DRIVER not in simulation.errors, f"the last start fails: {simulation.errors[LAST_DRIVER]}"
    if simulation.workload.is_idempotent:
        assert simulation.checkpoint == simulation.batches


def reports_of_jobs_are_true(simulation: Simulation) -> None:
    """Check that a job is decided if its error says so, and not if an error or the log says that no rows are visible.

    `decided_batches_are_read_exactly_once` checks that the rows of decided jobs are visible, and no others.
    """
    decided = simulation.decided_transactions().keys()
    reports = simulation.reports
    assert reports.decided <= decided, f"batches {reports.decided - decided} are not decided"
    visible = reports.invisible & decided
    assert not visible, f"jobs {visible} are decided, although it was reported that none of their rows are visible"


def operators_find_open_transactions_of_unnamed_jobs(simulation: Simulation) -> None:
    """Check that an unnamed job has an entry as long as its tasks have open transactions, and that the last operator,
    who needs the entry, can end all of them. No entry remains.

    The check does not apply if a transaction may begin when its job is over: see `no_transaction_stays_open`.
    """
    if simulation.workload is not Workload.UNNAMED_JOBS or simulation.delays.begins_late_transactions:
        return
    unknown_prefixes = simulation.reports.prefixes_without_entry
    assert not unknown_prefixes, f"open transactions without an entry: {unknown_prefixes}"
    assert LAST_OPERATOR not in simulation.errors, f"the last operator fails: {simulation.errors[LAST_OPERATOR]}"
    remaining_prefixes = simulation.list_prefixes_with_entry()
    assert not remaining_prefixes, f"entries remain: {remaining_prefixes}"


INVARIANTS: tuple[Callable[[Simulation], None], ...] = (
    older_drivers_change_nothing_after_a_newer_start,
    driver_transactions_have_short_timeouts,
    current_driver_does_not_give_up,
    fenced_attempts_report_newer_driver,
    skipped_batches_are_decided,
    reports_of_jobs_are_true,
    next_start_succeeds,
    no_transaction_stays_open,
    decided_batches_are_read_exactly_once,
    operators_find_open_transactions_of_unnamed_jobs,
)


def check_invariants(simulation: Simulation) -> None:
    for invariant in INVARIANTS:
        invariant(simulation)
