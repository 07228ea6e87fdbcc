"""A driver that stood still goes on while another one decides: that one goes on too, and its batch is there once.

Both are held at each of their places, with transactions of both versions.
"""

from __future__ import annotations

import pytest

from tests.exactly_once import rules
from tests.exactly_once.invariants import current_driver_does_not_give_way
from tests.exactly_once.lives import World, one_process_at_a_time
from tests.exactly_once.sampling import with_noticing
from tests.exactly_once.script import Script
from tests.exactly_once.two_drivers import (
    BEGIN,
    BOTH,
    add_two_drivers,
    all_have_ended,
    fails,
    is_decided,
    restart_and_check,
    world_after_one_batch,
)


@BOTH
@pytest.mark.parametrize("step", with_noticing(range(9), {2}))
@pytest.mark.parametrize("place", with_noticing(BEGIN[2:], {5}))
def test_driver_suspended_in_its_start_does_not_stop_a_decision_of_another(version: int, place: int, step: int) -> None:
    """The newer one has made this number of requests of its commit when the older one goes on. Brokers abort what it
    has open for any client that asks for the next epoch.
    """
    world = met_in_the_decision(version, place, step)
    assert "driver-3" not in world.failed
    assert "newer driver" in str(world.failed["driver-2"])
    restart_and_check(world)


def met_in_the_decision(version: int, place: int, step: int) -> World:
    world = world_after_one_batch(version)
    script = add_two_drivers(world)

    def commits() -> bool:
        return all_have_ended(world, "driver-3")

    script.holds("driver-2", place, lambda: commits() and script.passed("driver-3") >= step)
    script.holds("driver-3", step, lambda: script.ended("driver-2"), since=commits)
    script.play()
    return world


@BOTH
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("place", range(16))
def test_suspended_abort_does_not_stop_a_decision_of_another_driver(version: int, place: int, step: int) -> None:
    world = world_after_one_batch(version)
    world.fails = lambda attempt: attempt.driver == "driver-2" and attempt.partition == 1
    script = Script(world)
    world.add_driver("driver-2")
    world.add_driver("driver-3", latent=True)

    def commits() -> bool:
        return all_have_ended(world, "driver-3")

    script.holds(
        "driver-2",
        place,
        lambda: commits() and script.passed("driver-3") >= step,
        since=lambda: all_have_ended(world, "driver-2"),
    )
    script.holds("driver-3", step, lambda: script.ended("driver-2"), since=commits)
    script.play()
    assert "driver-3" not in world.failed
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("second", range(6))
@pytest.mark.parametrize("first", range(5))
def test_one_of_two_starts_with_the_same_name_decides(version: int, first: int, second: int) -> None:
    """Without `register` starts in one Spark have one name. Each stands still at a place of its commit until the
    other is as far.
    """
    world = World(version=version, batches=2, late_tasks=(), registered=False)
    world.add_driver("driver-1", until=1)
    with one_process_at_a_time(world):
        world.stage.play(lambda point, chosen, others: chosen)
    script = Script(world)
    world.add_driver("driver-2")
    world.add_driver("driver-3", latent=True)
    script.holds(
        "driver-2",
        first,
        lambda: script.ended("driver-3") or (all_have_ended(world, "driver-3") and script.passed("driver-3") >= second),
        since=lambda: all_have_ended(world, "driver-2"),
    )
    script.holds(
        "driver-3",
        second,
        lambda: script.ended("driver-2") or script.passed("driver-2") >= first + 3,
        since=lambda: all_have_ended(world, "driver-3"),
    )
    script.play()
    assert len(world.failed) == 1
    assert is_decided(world, 1)
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("step", with_noticing(range(8), {0}))
@pytest.mark.parametrize("place", with_noticing(range(14), {2}))
def test_suspended_abort_without_reports_keeps_decision(version: int, place: int, step: int) -> None:
    """Spark gives a batch up while its commit is under way. The abort stands still for three requests of the commit,
    and the commit then for what is left of the abort.
    """
    world = world_after_one_batch(version)
    script = Script(world)
    world.add_driver("driver-2")
    world.stage.add("stop", lambda actor: world.stop(actor, "driver-2"), latent=True)

    def commits() -> bool:
        return all_have_ended(world, "driver-2")

    later = step + 3
    script.holds("stop", place, lambda: script.ended("driver-2") or script.passed("driver-2") >= later, since=commits)
    script.holds("driver-2", step, lambda: script.ended("stop") or script.passed("stop") >= place, since=commits)
    script.holds("driver-2", later, lambda: script.ended("stop"), since=commits)
    script.play()
    assert not any("cannot be committed any more" in str(error) for error in world.failed.values())
    restart_and_check(world)


# --- each rule is what makes one of these tests pass. A place that noticed, once, is tried first.


@pytest.mark.parametrize("version", [1, 2])
def test_older_driver_stops_newer_decision_if_fenced_drivers_do_not_reclaim(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.skip_reclaim(monkeypatch)

    def drives(version: int, place: int, step: int) -> None:
        current_driver_does_not_give_way(met_in_the_decision(version, place, step))

    assert any(fails(drives, version, place, step) for place in (5, *BEGIN[2:]) for step in (2, 3, 1))


def test_two_starts_with_one_name_both_decide_if_fenced_drivers_do_not_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.share_driver_name_between_batches(monkeypatch)
    promise = test_one_of_two_starts_with_the_same_name_decides
    assert any(fails(promise, 2, first, second) for first in range(5) for second in range(6))


def test_abort_without_reports_ends_decided_transactions_if_it_does_not_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.abort_without_claim(monkeypatch)
    promise = test_suspended_abort_without_reports_keeps_decision
    assert any(fails(promise, 2, place, step) for place in (2, *range(14)) for step in range(8))
