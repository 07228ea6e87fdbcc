"""Two concurrent drivers of one query, or a driver and an operator.

One of them is suspended at one of its requests until the others have finished, and then continues. The tests play every
such point, in both transaction versions.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.producer.record import ProducerRecord
from tests.exactly_once import rules
from tests.exactly_once.sampling import mark_always_run
from tests.exactly_once.scheduler import Actor
from tests.exactly_once.script import Script
from tests.exactly_once.simulated_processes import run_isolated
from tests.exactly_once.simulation import TASKS, Simulation
from tests.exactly_once.two_driver_simulation import (
    BOTH_VERSIONS,
    START_POINTS,
    add_two_drivers,
    fails,
    have_tasks_ended,
    is_decided,
    restart_and_check,
    simulate_first_batch,
)
from tests.exactly_once.workloads import LOG
from tests.producer.virtual_time import create_simulated_producer


def committed_ids(simulation: Simulation, driver: str) -> list[str]:
    """Return the ids of the task transactions that this driver has committed."""
    return [
        end.identity[0]
        for end in simulation.transaction_ends
        if end.requested_by == driver and end.commit and end.identity[0] != "p-driver"
    ]


def is_open(simulation: Simulation, transactional_id: str) -> bool:
    transaction = simulation.cluster.core.coordinator.transactions.get(transactional_id)
    return transaction is not None and transaction.state is TransactionState.ONGOING


@BOTH_VERSIONS
@pytest.mark.parametrize("point", START_POINTS)
def test_driver_suspended_during_start_duplicates_no_rows(version: int, point: int) -> None:
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)
    script.suspend("driver-2", point, until=lambda: script.has_ended("driver-3"))
    script.run()
    assert "driver-3" not in simulation.errors
    assert [number for driver, number in simulation.committed_batches if driver == "driver-3"] == [1, 2]
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", START_POINTS[1:])
def test_driver_suspended_during_start_is_rejected_and_newer_driver_continues(version: int, point: int) -> None:
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)
    script.suspend("driver-2", point, until=lambda: ("driver-3", 1) in simulation.committed_batches)
    script.suspend(
        "driver-3",
        0,
        until=lambda: script.has_ended("driver-2"),
        since=lambda: ("driver-3", 1) in simulation.committed_batches,
    )
    script.run()
    assert "driver-3" not in simulation.errors
    assert isinstance(simulation.errors["driver-2"], ExactlyOnceError)
    assert "newer driver" in str(simulation.errors["driver-2"])
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", START_POINTS)
@pytest.mark.parametrize("ended", range(TASKS + 1))
def test_decision_of_dead_newer_driver_is_neither_duplicated_nor_aborted(version: int, point: int, ended: int) -> None:
    """`ended`: number of decided transactions, of two, that were committed when the driver died."""
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)
    script.suspend("driver-2", point, until=lambda: script.has_ended("driver-3"))
    script.kill(
        "driver-3", since=lambda: is_decided(simulation, 1) and len(committed_ids(simulation, "driver-3")) >= ended
    )
    script.run()
    assert is_decided(simulation, 1)
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", mark_always_run(range(16), {0, 10, 11}))
def test_suspended_abort_keeps_decision_of_newer_driver(version: int, point: int) -> None:
    simulation = simulate_first_batch(version)
    simulation.should_fail = lambda attempt: attempt.driver == "driver-2" and attempt.partition == 1
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.add_driver("driver-3", suspended=True)
    script.suspend(
        "driver-2",
        point,
        until=lambda: script.has_ended("driver-3"),
        since=lambda: have_tasks_ended(simulation, "driver-2"),
    )
    script.kill("driver-3", since=lambda: is_decided(simulation, 1))
    script.run()
    assert is_decided(simulation, 1)
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", range(1, 14))
def test_suspended_manual_abort_keeps_decision_of_newer_driver(version: int, point: int) -> None:
    simulation = simulate_first_batch(version)
    script = Script(simulation)
    simulation.add_operator("operator", suspended=False)
    simulation.add_driver("driver-3")
    script.suspend("operator", point, until=lambda: script.has_ended("driver-3"))
    script.kill("driver-3", since=lambda: is_decided(simulation, 1))
    script.run()
    assert is_decided(simulation, 1)
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", range(1, 12))
def test_fenced_driver_with_decision_in_doubt_aborts_nothing(version: int, point: int) -> None:
    """The driver loses the response to its decision, and is fenced when it retries. The newer driver is suspended at
    each point between its fence and the commit of the decided batch.
    """
    simulation = simulate_first_batch(version)
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.add_driver("driver-3", suspended=True)
    script.lose_response(
        "driver-2", to=lambda actor: actor.action == "END_TXN" and have_tasks_ended(simulation, "driver-2")
    )
    script.suspend(
        "driver-3", point, until=lambda: script.has_ended("driver-2"), since=lambda: is_decided(simulation, 1)
    )
    script.suspend(
        "driver-2", 0, until=lambda: script.count_points("driver-3") >= point, since=lambda: is_decided(simulation, 1)
    )
    script.run()
    assert is_decided(simulation, 1)
    restart_and_check(simulation)


@pytest.mark.parametrize("markers_ms", [0.0, 100.0])
@BOTH_VERSIONS
def test_start_waits_for_the_claim_of_a_dead_driver(version: int, markers_ms: float) -> None:
    """Otherwise it reads the claim after it got its epoch, and takes the dead driver for a newer one that is alive."""
    simulation = simulate_first_batch(version)
    simulation.delays.marker_delay_ms = markers_ms
    script = Script(simulation)
    simulation.add_driver("driver-2")
    script.kill("driver-2", since=lambda: any(end.requested_by == "driver-2" for end in simulation.transaction_ends))
    script.run()
    assert simulation.errors == {}
    restart_and_check(simulation)


@BOTH_VERSIONS
def test_two_long_lived_drivers_take_turns_on_one_checkpoint(version: int) -> None:
    simulation = Simulation(version=version, batches=3, late_tasks=())
    for stop_before, (name, process) in enumerate((("driver-1", "A"), ("driver-2", "B"), ("driver-3", "A")), 1):
        simulation.add_driver(name, stop_before=stop_before, process=process)
        run_isolated(simulation)
    assert simulation.errors == {}
    assert simulation.committed_batches == [("driver-1", 0), ("driver-2", 1), ("driver-3", 2)]
    restart_and_check(simulation)


@BOTH_VERSIONS
def test_dead_driver_with_open_decision_delays_no_other_query(version: int) -> None:
    simulation = simulate_first_batch(version)
    script = Script(simulation)
    simulation.add_driver("driver-2")
    script.kill("driver-2", since=lambda: is_open(simulation, "p-driver") and have_tasks_ended(simulation, "driver-2"))
    script.run()
    assert is_open(simulation, "p-driver")
    waited_ms: list[float] = []

    def begin(actor: Actor) -> None:
        began_ms = actor.system.now()
        with Driver(simulation.build_settings("another"), system=actor.system) as driver:
            driver.begin("driver-of-another")
        waited_ms.append(actor.system.now() - began_ms)

    simulation.scheduler.add("another query", begin)
    script.run()
    assert waited_ms[0] < 1_000
    restart_and_check(simulation)


@BOTH_VERSIONS
def test_foreign_records_in_the_log_stop_no_query(version: int) -> None:
    simulation = simulate_first_batch(version)
    other_producer = create_simulated_producer(simulation.cluster)
    for value in (b"", b"{}", b"[" * 5000, b"\xff"):
        for key in (None, b"another", b"p"):
            other_producer.send(ProducerRecord(LOG, value, key=key, partition=0))
            other_producer.flush()  # each in its own batch
    other_producer.close()
    simulation.add_driver("driver-2")
    Script(simulation).run()
    assert simulation.errors == {}
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", mark_always_run(START_POINTS[2:], {8}))
def test_driver_suspended_during_start_aborts_no_transactions_of_newer_driver(version: int, point: int) -> None:
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)
    script.suspend("driver-2", point, until=lambda: have_tasks_ended(simulation, "driver-3"))
    script.suspend(
        "driver-3",
        0,
        until=lambda: script.has_ended("driver-2"),
        since=lambda: have_tasks_ended(simulation, "driver-3"),
    )
    script.run()
    assert "driver-3" not in simulation.errors
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("first", "second"),
    mark_always_run([(first, second) for first in range(1, 9) for second in (1, 2, 4)], {(1, 1)}),
)
def test_one_of_two_drivers_that_start_concurrently_continues(version: int, first: int, second: int) -> None:
    """driver-2 makes the first number of requests, then driver-3 the second. Then they alternate."""
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)
    script.alternate("driver-2", "driver-3", first_points=first, second_points=second)
    script.run()
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("decision_point", [10, 11])
@pytest.mark.parametrize("point", range(8, 15))
def test_driver_suspended_during_concurrent_start_keeps_decision_of_the_other(
    version: int, point: int, decision_point: int
) -> None:
    """driver-2 decides when driver-3 has reached this point. driver-3 waits there for the decision."""
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)
    script.alternate("driver-2", "driver-3", first_points=1, second_points=1)
    script.suspend(
        "driver-2",
        decision_point,
        until=lambda: script.count_points("driver-3") >= point or script.has_ended("driver-3"),
    )
    script.suspend("driver-3", point, until=lambda: is_decided(simulation, 1) or script.has_ended("driver-2"))
    script.run()
    restart_and_check(simulation)


# --- each rule is necessary for one of these tests. Points that detected its removal before are tried first.


def test_two_drivers_continue_if_claims_are_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.skip_reading_claim_back(monkeypatch)
    with pytest.raises(AssertionError):
        test_one_of_two_drivers_that_start_concurrently_continues(2, 1, 1)


def test_aborts_transactions_of_newer_driver_if_aborts_precede_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.abort_before_claim(monkeypatch)
    test = test_driver_suspended_during_start_aborts_no_transactions_of_newer_driver
    assert any(fails(test, 2, point) for point in (8, *START_POINTS))


def test_fenced_driver_aborts_newer_decision_if_aborts_ignore_fencing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.abort_despite_fencing(monkeypatch)
    test = test_suspended_abort_keeps_decision_of_newer_driver
    assert any(fails(test, 2, point) for point in range(16))


def test_claim_of_dead_driver_stops_next_start_if_start_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.skip_wait_for_ending_transaction(monkeypatch)
    with pytest.raises(AssertionError, match="the last start fails"):
        test_start_waits_for_the_claim_of_a_dead_driver(2, 100.0)


def test_aborts_decision_of_newer_driver_if_the_list_follows_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.list_after_claim(monkeypatch)
    test = test_suspended_abort_keeps_decision_of_newer_driver
    assert any(fails(test, 2, point) for point in (10, *range(16)))
