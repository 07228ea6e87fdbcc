"""The invariants of exactly-once delivery, which the explorer checks after all actors have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError
from spark_kafka_sink.exactly_once.timeout_marks import compute_claimed_timeout_ms
from spark_kafka_sink.exactly_once.transaction_names import parse_driver_number
from spark_kafka_sink.requests.verdicts import BATCH_OWNERSHIP_LOST_ERRORS
from tests.exactly_once.attempts import Identity
from tests.exactly_once.simulation import (
    LAST_DRIVER,
    PREFIX,
    TASKS,
    TIMEOUT_MS,
    TOPIC,
    Simulation,
    SourceReplay,
    find_batch_number,
)
from tests.history import History, Outcome, Write


def decided_batches_are_read_exactly_once(simulation: Simulation) -> None:
    """Check that a read_committed consumer reads each decided batch once and completely, and no attempt that was not
    decided.

    Each batch is decided, and only once.
    """
    decided_identities = _find_decided_identities(simulation)
    history = History()
    for attempt in simulation.attempts:
        outcome = Outcome.COMMITTED if attempt.identity in decided_identities else Outcome.OPEN
        unit = f"task {attempt.partition} of batch {attempt.batch}"
        writer = f"task {attempt.partition} in batch {attempt.batch}"
        history.writes.append(Write(attempt.name, attempt.values, outcome, unit, f"batch {attempt.batch}", writer))
    for number in range(simulation.batches):
        units = frozenset(f"task {partition} of batch {number}" for partition in range(TASKS))
        history.units[f"batch {number}"] = units
    history.check(
        {
            partition: [value or b"" for value in simulation.cluster.values(TOPIC, partition, committed=True)]
            for partition in range(TASKS)
        }
    )
    decided = simulation.decided_transactions()
    for number in range(simulation.batches):
        assert decided.get(number), f"batch {number} was never decided"
        assert len(decided[number]) == 1, f"batch {number} was decided more than once: {decided[number]}"


def _find_decided_identities(simulation: Simulation) -> set[Identity]:
    decisions = simulation.decided_transactions().values()
    return {identity for batch_decisions in decisions for identities in batch_decisions for identity in identities}


def older_drivers_change_nothing_after_a_newer_start(simulation: Simulation) -> None:
    """Check that an older driver writes no entry and ends no newer transaction, except to commit a decided one."""
    generations = [entry.generation for entry in simulation.read_entries()]
    assert generations == sorted(generations), f"the log returns to an older driver: {generations}"
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
    longest_ms = compute_claimed_timeout_ms(TIMEOUT_MS)
    for end in simulation.transaction_ends:
        if end.commit and parse_driver_number(PREFIX, end.identity[0]) is not None:
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
        find_batch_number(entry.batch): entry.summary
        for entry in simulation.read_entries()
        if entry.summary is not None
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
      requests an epoch and the broker returns the epoch of the attempt's own driver, because it takes the request for a
      retry. The driver id then looks as if nothing had been decided under it.
    """
    version = simulation.cluster.core.coordinator.version
    if simulation.delays.late_additions or (version == 1 and simulation.delays.shared_epochs):
        simulation.system.advance(TIMEOUT_MS)
        simulation.delays.write_markers()
    for partition in range(TASKS):
        log = simulation.cluster.log(TOPIC, partition)
        assert log.last_stable_offset == log.log_end_offset, f"partition {partition}: a transaction is open"
    open_transactions = [
        transaction
        for transaction in simulation.cluster.core.coordinator.transactions.values()
        if parse_driver_number(PREFIX, transaction.transactional_id) is None and transaction.state.value == "Ongoing"
    ]
    assert not open_transactions, f"open transactions: {open_transactions}"
    assert not simulation.system.open_sockets, "a socket is open"


def next_start_succeeds(simulation: Simulation) -> None:
    """Check that the last start of the query writes all remaining batches."""
    assert LAST_DRIVER not in simulation.errors, f"the last start fails: {simulation.errors[LAST_DRIVER]}"
    assert simulation.checkpoint == simulation.batches


INVARIANTS: tuple[Callable[[Simulation], None], ...] = (
    older_drivers_change_nothing_after_a_newer_start,
    driver_transactions_have_short_timeouts,
    current_driver_does_not_give_up,
    fenced_attempts_report_newer_driver,
    skipped_batches_are_decided,
    next_start_succeeds,
    decided_batches_are_read_exactly_once,
    no_transaction_stays_open,
)


def check_invariants(simulation: Simulation) -> None:
    for invariant in INVARIANTS:
        invariant(simulation)
