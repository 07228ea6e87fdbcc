"""Worlds in which a query has two drivers at the same time, and the checks after them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.exactly_once.entries import EntryState
from tests.exactly_once.invariants import check
from tests.exactly_once.lives import LAST, TASKS, World, one_process_at_a_time
from tests.exactly_once.script import Script

BOTH = pytest.mark.parametrize("version", [1, 2])
BEGIN = range(1, 12)
"""The points of a driver's start and of its first batch."""


def world_after_one_batch(version: int) -> World:
    """Return a world in which driver-1 has written batch 0 and ended."""
    world = World(version=version, batches=3, late_tasks=())
    world.add_driver("driver-1", until=1)
    with one_process_at_a_time(world):
        world.stage.play(lambda point, chosen, others: chosen)
    assert world.checkpoint == 1
    return world


def add_two_drivers(world: World) -> Script:
    """Add driver-2 and driver-3, and return a script that has no instructions for them yet."""
    script = Script(world)
    world.add_driver("driver-2")
    world.add_driver("driver-3")
    return script


def restart_and_check(world: World) -> None:
    """Start the query once more, and check every invariant."""
    world.add_driver(LAST)
    with one_process_at_a_time(world):
        world.stage.play(lambda point, chosen, others: chosen)
    check(world)


def is_decided(world: World, number: int) -> bool:
    return any(entry.state is EntryState.DECIDED and entry.batch.batch_id == number for entry in world.decisions())


def all_have_ended(world: World, driver: str) -> bool:
    """Return whether all tasks of the first batch that this driver writes have ended."""
    own = [each for each in world.attempts if each.driver == driver]
    return len(own) >= TASKS and all(each.ended for each in own[:TASKS])


def fails(promise: Callable[..., None], version: int, *places: int) -> bool:
    """Return whether the test function `promise` fails for this version and these places."""
    try:
        promise(version, *places)
    except (AssertionError, KeyError):
        return True
    return False
