"""Runs in which two drivers of one query, or a driver and a person, meet at the worst moment.

One of them stands still, at each of its requests in turn, until the others have done their part; then it goes on. All
places are played, with transactions of both versions.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.producer.record import ProducerRecord
from tests.exactly_once import rules
from tests.exactly_once.interleaving import Actor
from tests.exactly_once.lives import LOG, TASKS, World, one_process_at_a_time
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
from tests.producer.virtual_time import simulated_producer


def committed_by(world: World, driver: str) -> list[str]:
    """The transactions of tasks that this driver has committed."""
    return [end.identity[0] for end in world.ends if end.by == driver and end.commit and end.identity[0] != "p-driver"]


def is_open(world: World, transactional_id: str) -> bool:
    transaction = world.cluster.core.coordinator.transactions.get(transactional_id)
    return transaction is not None and transaction.state is TransactionState.ONGOING


@BOTH
@pytest.mark.parametrize("place", BEGIN)
def test_driver_suspended_in_its_start_duplicates_nothing_of_its_successor(version: int, place: int) -> None:
    world = world_after_one_batch(version)
    script = add_two_drivers(world)
    script.holds("driver-2", place, lambda: script.ended("driver-3"))
    script.play()
    assert "driver-3" not in world.failed
    assert [number for driver, number in world.committed if driver == "driver-3"] == [1, 2]
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("place", BEGIN[1:])
def test_driver_suspended_in_its_start_is_rejected_and_its_successor_continues(version: int, place: int) -> None:
    world = world_after_one_batch(version)
    script = add_two_drivers(world)
    script.holds("driver-2", place, lambda: ("driver-3", 1) in world.committed)
    script.holds("driver-3", 0, lambda: script.ended("driver-2"), since=lambda: ("driver-3", 1) in world.committed)
    script.play()
    assert "driver-3" not in world.failed
    assert isinstance(world.failed["driver-2"], ExactlyOnceError)
    assert "newer driver" in str(world.failed["driver-2"])
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("place", BEGIN)
@pytest.mark.parametrize("ended", range(TASKS + 1))
def test_decision_of_dead_newer_driver_is_neither_duplicated_nor_aborted(version: int, place: int, ended: int) -> None:
    """`ended`: of the two transactions that were decided, when it died."""
    world = world_after_one_batch(version)
    script = add_two_drivers(world)
    script.holds("driver-2", place, lambda: script.ended("driver-3"))
    script.kills("driver-3", since=lambda: is_decided(world, 1) and len(committed_by(world, "driver-3")) >= ended)
    script.play()
    assert is_decided(world, 1)
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("place", with_noticing(range(16), {10, 11}))
def test_suspended_abort_keeps_decision_of_newer_driver(version: int, place: int) -> None:
    world = world_after_one_batch(version)
    world.fails = lambda attempt: attempt.driver == "driver-2" and attempt.partition == 1
    script = Script(world)
    world.add_driver("driver-2")
    world.add_driver("driver-3", latent=True)
    script.holds("driver-2", place, lambda: script.ended("driver-3"), since=lambda: all_have_ended(world, "driver-2"))
    script.kills("driver-3", since=lambda: is_decided(world, 1))
    script.play()
    assert is_decided(world, 1)
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("place", range(1, 14))
def test_suspended_manual_abort_keeps_decision_of_newer_driver(version: int, place: int) -> None:
    world = world_after_one_batch(version)
    script = Script(world)
    world.add_operator("person", latent=False)
    world.add_driver("driver-3")
    script.holds("person", place, lambda: script.ended("driver-3"))
    script.kills("driver-3", since=lambda: is_decided(world, 1))
    script.play()
    assert is_decided(world, 1)
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("place", range(1, 12))
def test_fenced_driver_with_decision_in_doubt_aborts_nothing(version: int, place: int) -> None:
    """It loses the answer to its decision, and is fenced when it asks again. The newer driver stands still at
    each place between its fence and the commit of what was decided.
    """
    world = world_after_one_batch(version)
    script = Script(world)
    world.add_driver("driver-2")
    world.add_driver("driver-3", latent=True)
    script.loses_answer("driver-2", to=lambda each: each.what == "END_TXN" and all_have_ended(world, "driver-2"))
    script.holds("driver-3", place, lambda: script.ended("driver-2"), since=lambda: is_decided(world, 1))
    script.holds("driver-2", 0, lambda: script.passed("driver-3") >= place, since=lambda: is_decided(world, 1))
    script.play()
    assert is_decided(world, 1)
    restart_and_check(world)


@pytest.mark.parametrize("markers_ms", [0.0, 100.0])
@BOTH
def test_start_waits_for_the_claim_of_a_dead_driver(version: int, markers_ms: float) -> None:
    """Else it finds the claim after its epoch was given, and takes the dead driver for a newer one that works."""
    world = world_after_one_batch(version)
    world.lateness.markers_ms = markers_ms
    script = Script(world)
    world.add_driver("driver-2")
    script.kills("driver-2", since=lambda: any(end.by == "driver-2" for end in world.ends))
    script.play()
    assert world.failed == {}
    restart_and_check(world)


@BOTH
def test_two_long_lived_drivers_take_turns_on_one_checkpoint(version: int) -> None:
    world = World(version=version, batches=3, late_tasks=())
    for until, (name, process) in enumerate((("driver-1", "A"), ("driver-2", "B"), ("driver-3", "A")), 1):
        world.add_driver(name, until=until, process=process)
        with one_process_at_a_time(world):
            world.stage.play(lambda point, chosen, others: chosen)
    assert world.failed == {}
    assert world.committed == [("driver-1", 0), ("driver-2", 1), ("driver-3", 2)]
    restart_and_check(world)


@BOTH
def test_dead_driver_with_open_decision_delays_no_other_query(version: int) -> None:
    world = world_after_one_batch(version)
    script = Script(world)
    world.add_driver("driver-2")
    script.kills("driver-2", since=lambda: is_open(world, "p-driver") and all_have_ended(world, "driver-2"))
    script.play()
    assert is_open(world, "p-driver")
    waited_ms: list[float] = []

    def begin(actor: Actor) -> None:
        began_ms = actor.system.now()
        with Driver(world.delivery_of("another"), system=actor.system) as driver:
            driver.begin("driver-of-another")
        waited_ms.append(actor.system.now() - began_ms)

    world.stage.add("another query", begin)
    script.play()
    assert waited_ms[0] < 1_000
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("value", [b"", b"{}", b"[" * 5000, b"\xff"], ids=["empty", "no entry", "deep", "no text"])
def test_foreign_records_in_the_log_stop_no_query(version: int, value: bytes) -> None:
    world = world_after_one_batch(version)
    stranger = simulated_producer(world.cluster)
    for key in (None, b"another", b"p"):
        stranger.send(ProducerRecord(LOG, value, key=key, partition=0))
        stranger.flush()  # each in a batch of its own
    stranger.close()
    world.add_driver("driver-2")
    Script(world).play()
    assert world.failed == {}
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("place", with_noticing(BEGIN[2:], {8}))
def test_driver_suspended_in_its_start_aborts_nothing_of_newer_tasks(version: int, place: int) -> None:
    world = world_after_one_batch(version)
    script = add_two_drivers(world)
    script.holds("driver-2", place, lambda: all_have_ended(world, "driver-3"))
    script.holds("driver-3", 0, lambda: script.ended("driver-2"), since=lambda: all_have_ended(world, "driver-3"))
    script.play()
    assert "driver-3" not in world.failed
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize(("first", "second"), [(first, second) for first in range(1, 9) for second in (1, 2, 4)])
def test_only_one_of_two_drivers_that_start_in_step_works(version: int, first: int, second: int) -> None:
    """driver-2 does this many requests, driver-3 that many; then they take turns, one request each."""
    world = world_after_one_batch(version)
    script = add_two_drivers(world)
    script.in_step("driver-2", "driver-3", first, second)
    script.play()
    restart_and_check(world)


@BOTH
@pytest.mark.parametrize("decides_at", [10, 11])
@pytest.mark.parametrize("place", range(8, 15))
def test_suspended_driver_of_two_that_start_in_step_aborts_no_decision_of_the_other(
    version: int, place: int, decides_at: int
) -> None:
    """driver-2 waits with its decision until driver-3 has come to this place, which waits until that is made."""
    world = world_after_one_batch(version)
    script = add_two_drivers(world)
    script.in_step("driver-2", "driver-3", 1, 1)
    script.holds("driver-2", decides_at, lambda: script.passed("driver-3") >= place or script.ended("driver-3"))
    script.holds("driver-3", place, lambda: is_decided(world, 1) or script.ended("driver-2"))
    script.play()
    restart_and_check(world)


# --- each rule is what makes one of these tests pass. A place that noticed, once, is tried first.


def test_two_drivers_work_if_claims_are_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.skip_reading_claim_back(monkeypatch)
    with pytest.raises(AssertionError):
        test_only_one_of_two_drivers_that_start_in_step_works(2, 1, 1)


def test_aborts_open_transactions_of_newer_driver_if_not_claimed_after_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.abort_before_claim(monkeypatch)
    promise = test_driver_suspended_in_its_start_aborts_nothing_of_newer_tasks
    assert any(fails(promise, 2, place) for place in (8, *BEGIN))


def test_fenced_driver_aborts_newer_decision_if_aborts_ignore_fencing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.abort_despite_fencing(monkeypatch)
    promise = test_suspended_abort_keeps_decision_of_newer_driver
    assert any(fails(promise, 2, place) for place in range(16))


def test_claim_of_dead_driver_stops_next_start_if_start_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.skip_wait_for_ending_transaction(monkeypatch)
    with pytest.raises(AssertionError, match="the last start fails"):
        test_start_waits_for_the_claim_of_a_dead_driver(2, 100.0)


def test_aborts_decision_of_newer_driver_if_list_follows_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.list_after_claim(monkeypatch)
    promise = test_suspended_abort_keeps_decision_of_newer_driver
    assert any(fails(promise, 2, place) for place in (10, *range(16)))
