"""A suspended driver continues while another one decides: the other one succeeds, and its batch is read once.

Each test suspends both drivers at each of their points, in both transaction versions.
"""

from __future__ import annotations

import pytest

from tests.exactly_once import rules
from tests.exactly_once.invariants import current_driver_does_not_give_up
from tests.exactly_once.sampling import mark_always_run
from tests.exactly_once.script import Script
from tests.exactly_once.simulated_processes import run_isolated
from tests.exactly_once.simulation import Simulation
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


@BOTH_VERSIONS
@pytest.mark.parametrize("step", mark_always_run(range(9), {2}))
@pytest.mark.parametrize("point", mark_always_run(START_POINTS[2:], {5}))
def test_driver_suspended_during_start_does_not_prevent_decision_of_newer_driver(
    version: int, point: int, step: int
) -> None:
    """The older driver continues after the newer one has made this number of requests of its commit. Brokers abort the
    open transaction of an id for any client that requests its next epoch.
    """
    simulation = simulate_concurrent_decision(version, point, step)
    assert "driver-3" not in simulation.errors
    assert "newer driver" in str(simulation.errors["driver-2"])
    restart_and_check(simulation)


def simulate_concurrent_decision(version: int, point: int, step: int) -> Simulation:
    simulation = simulate_first_batch(version)
    script = add_two_drivers(simulation)

    def is_committing() -> bool:
        return have_tasks_ended(simulation, "driver-3")

    script.suspend("driver-2", point, until=lambda: is_committing() and script.count_points("driver-3") >= step)
    script.suspend("driver-3", step, until=lambda: script.has_ended("driver-2"), since=is_committing)
    script.run()
    return simulation


@BOTH_VERSIONS
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("point", range(16))
def test_suspended_abort_does_not_prevent_decision_of_newer_driver(version: int, point: int, step: int) -> None:
    simulation = simulate_first_batch(version)
    simulation.should_fail = lambda attempt: attempt.driver == "driver-2" and attempt.partition == 1
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.add_driver("driver-3", suspended=True)

    def is_committing() -> bool:
        return have_tasks_ended(simulation, "driver-3")

    script.suspend(
        "driver-2",
        point,
        until=lambda: is_committing() and script.count_points("driver-3") >= step,
        since=lambda: have_tasks_ended(simulation, "driver-2"),
    )
    script.suspend("driver-3", step, until=lambda: script.has_ended("driver-2"), since=is_committing)
    script.run()
    assert "driver-3" not in simulation.errors
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("second", mark_always_run(range(6), {0}))
@pytest.mark.parametrize("first", mark_always_run(range(5), {0}))
def test_one_of_two_starts_with_the_same_name_decides(version: int, first: int, second: int) -> None:
    """Without `register` all starts in one Spark application have the same name. Each driver is suspended at a point of
    its commit until the other one has reached its own point.
    """
    simulation = Simulation(version=version, batches=2, late_tasks=(), registered=False)
    simulation.add_driver("driver-1", stop_before=1)
    run_isolated(simulation)
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.add_driver("driver-3", suspended=True)
    script.suspend(
        "driver-2",
        first,
        until=lambda: (
            script.has_ended("driver-3")
            or (have_tasks_ended(simulation, "driver-3") and script.count_points("driver-3") >= second)
        ),
        since=lambda: have_tasks_ended(simulation, "driver-2"),
    )
    script.suspend(
        "driver-3",
        second,
        until=lambda: script.has_ended("driver-2") or script.count_points("driver-2") >= first + 3,
        since=lambda: have_tasks_ended(simulation, "driver-3"),
    )
    script.run()
    assert len(simulation.errors) == 1
    assert is_decided(simulation, 1)
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("step", mark_always_run(range(8), {0}))
@pytest.mark.parametrize("point", mark_always_run(range(14), {2}))
def test_suspended_abort_without_reports_keeps_decision(version: int, point: int, step: int) -> None:
    """Spark abandons a batch during its commit. The abort is suspended for three requests of the commit, and then the
    commit for the rest of the abort.
    """
    simulation = simulate_first_batch(version)
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.scheduler.add("stop", lambda actor: simulation.stop_query(actor, "driver-2"), suspended=True)

    def is_committing() -> bool:
        return have_tasks_ended(simulation, "driver-2")

    resumed_step = step + 3
    script.suspend(
        "stop",
        point,
        until=lambda: script.has_ended("driver-2") or script.count_points("driver-2") >= resumed_step,
        since=is_committing,
    )
    script.suspend(
        "driver-2",
        step,
        until=lambda: script.has_ended("stop") or script.count_points("stop") >= point,
        since=is_committing,
    )
    script.suspend("driver-2", resumed_step, until=lambda: script.has_ended("stop"), since=is_committing)
    script.run()
    assert not any("can no longer be committed" in str(error) for error in simulation.errors.values())
    restart_and_check(simulation)


# --- each rule is necessary for one of these tests. Points that detected its removal before are tried first.


@pytest.mark.parametrize("version", [1, 2])
def test_older_driver_prevents_newer_decision_if_fenced_drivers_do_not_reclaim(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.skip_reclaim(monkeypatch)

    def check_current_driver(version: int, point: int, step: int) -> None:
        current_driver_does_not_give_up(simulate_concurrent_decision(version, point, step))

    assert any(
        fails(check_current_driver, version, point, step) for point in (5, *START_POINTS[2:]) for step in (2, 3, 1)
    )


def test_two_starts_with_the_same_name_both_decide_if_batches_share_driver_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.share_driver_name_between_batches(monkeypatch)
    test = test_one_of_two_starts_with_the_same_name_decides
    assert any(fails(test, 2, first, second) for first in range(5) for second in range(6))


def test_abort_without_reports_ends_decided_transactions_if_it_does_not_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.abort_without_claim(monkeypatch)
    test = test_suspended_abort_without_reports_keeps_decision
    assert any(fails(test, 2, point, step) for point in (2, *range(14)) for step in range(8))
