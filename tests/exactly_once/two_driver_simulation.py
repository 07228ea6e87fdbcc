"""Simulations in which a query has two drivers at the same time, and the checks after them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.exactly_once.entries import EntryState
from tests.exactly_once.invariants import check_invariants
from tests.exactly_once.script import Script
from tests.exactly_once.simulated_processes import run_isolated
from tests.exactly_once.simulation import LAST_DRIVER, TASKS, Simulation

BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2])
START_POINTS = range(1, 12)
"""The points of a driver's start and of its first batch."""


def simulate_first_batch(version: int) -> Simulation:
    """Return a simulation in which driver-1 has written batch 0 and ended."""
    simulation = Simulation(version=version, batches=3, late_tasks=())
    simulation.add_driver("driver-1", stop_before=1)
    run_isolated(simulation)
    assert simulation.checkpoint == 1
    return simulation


def add_two_drivers(simulation: Simulation) -> Script:
    """Add driver-2 and driver-3, and return a script that has no instructions for them yet."""
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.add_driver("driver-3")
    return script


def restart_and_check(simulation: Simulation) -> None:
    """Start the query once more, and check every invariant."""
    simulation.add_driver(LAST_DRIVER)
    run_isolated(simulation)
    check_invariants(simulation)


def is_decided(simulation: Simulation, batch: int) -> bool:
    return any(
        entry.state is EntryState.DECIDED and entry.batch.batch_id == batch for entry in simulation.read_entries()
    )


def have_tasks_ended(simulation: Simulation, driver: str) -> bool:
    """Return whether all tasks of the first batch that this driver writes have ended."""
    attempts = [attempt for attempt in simulation.attempts if attempt.driver == driver]
    return len(attempts) >= TASKS and all(attempt.has_ended for attempt in attempts[:TASKS])


def fails(test: Callable[..., None], version: int, *points: int) -> bool:
    """Return whether a test function fails for this version and these points."""
    try:
        test(version, *points)
    except (AssertionError, KeyError):
        return True
    return False
