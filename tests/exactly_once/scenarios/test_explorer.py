"""Some of what the explorer of exactly once plays, and that it does find a fault: a rule is taken out, a seed fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from random import Random
from typing import cast

import pytest

from spark_kafka_sink.exactly_once import query_transactions
from tests.exactly_once import rules
from tests.exactly_once.explorer import (
    DIES,
    LATE,
    LOSES,
    STALE,
    STALE_READS,
    Change,
    Changes,
    Run,
    every,
    explore,
    faults_of,
    seeded,
)
from tests.exactly_once.invariants import (
    a_decided_batch_is_seen_once_and_whole_and_an_undecided_one_never as is_seen_once,
)
from tests.exactly_once.invariants import (
    current_driver_does_not_give_way,
    nothing_stays_open,
    the_next_start_works,
)
from tests.exactly_once.invariants import (
    fenced_attempts_report_newer_driver as who_is_fenced_says_so,
)
from tests.exactly_once.invariants import (
    no_older_driver_changes_anything_after_a_newer_one_has_begun as no_older_driver,
)
from tests.exactly_once.lives import World
from tests.exactly_once.rules import RemovedRule

SEEDS = 50
STALE_LEADERS = 100 if os.environ.get("SOAK") else 5
"""How many times a driver asks a stale leader, in each transaction version."""
NOTICED: dict[tuple[RemovedRule, Callable[[World], None]], tuple[int, ...]] = {
    (rules.skip_read_after_fence, is_seen_once): (0, 1),
    (rules.ignore_decided_batches, is_seen_once): (10, 25),
    (rules.skip_finishing_decided_batch, is_seen_once): (70, 154, 192),
    (rules.decide_under_new_epoch, no_older_driver): (73, 104),
    (rules.skip_read_after_fence, no_older_driver): (44,),
    (rules.skip_aborting_open_transactions, nothing_stays_open): (0, 1),
    (rules.skip_late_attempt_check, nothing_stays_open): (21, 106),
    (rules.skip_fenced_attempt_check, who_is_fenced_says_so): (151,),
    (
        rules.skip_wait_for_ending_transaction,
        the_next_start_works,
    ): (199, 213),
}
"""Seeds that noticed, once. A change of the code may well make other runs of them; then others are tried."""
SEARCHED_MAX = 300
STALE_CLAIMS: tuple[Changes, ...] = (
    (Change(33, DIES), Change(39, f"{STALE} 2 2"), Change(55, DIES)),
    (Change(34, DIES), Change(41, f"{STALE} 2 1"), Change(56, DIES)),
)
"""Changes after which a batch was written twice, once, where claims have the key of decisions."""
DUELS = (1033, 2836)
"""Seeds in which two drivers fence each other in more than five turns."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_row_is_seen_once_in_every_order_and_with_every_death(seed: int) -> None:
    """One test for each seed: a failure names what `python -m tests.exactly_once.explorer --seed` replays."""
    explore(seed)


@pytest.mark.parametrize("version", [1, 2])
def test_next_driver_continues_wherever_a_driver_dies(version: int) -> None:
    explored = every(version, 0, faults_max=1, batches=1)
    assert explored.failed == []
    assert explored.schedules > 20


@pytest.mark.parametrize("kind", [LOSES, LATE])
def test_each_row_is_seen_once_wherever_a_response_is_lost_or_a_request_is_late(kind: str) -> None:
    explored = every(1, 0, faults_max=1, kinds=(kind,), batches=1, part=(0, 2 if kind == LOSES else 10))
    assert explored.failed == []
    assert explored.schedules > 15


def test_each_row_is_seen_once_wherever_actors_switch() -> None:
    explored = every(2, 1, faults_max=0, batches=1, part=(0, 3))
    assert explored.failed == []
    assert explored.schedules > 20


@pytest.mark.parametrize("version", [1, 2])
def test_compaction_keeps_decision_after_claim_based_on_stale_leader(version: int) -> None:
    for run in _runs_with_a_stale_leader(version, STALE_LEADERS):
        run.check()


def test_batch_is_written_twice_if_claims_have_the_key_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.write_claims_with_key_of_decisions(monkeypatch)
    noticed = (Run(2, changes, batches=1).play() for changes in STALE_CLAIMS)
    assert any(_is_violated(is_seen_once, run) for run in chain(noticed, _runs_with_a_stale_leader(2, 100)))


def _is_violated(invariant: Callable[[World], None], run: Run) -> bool:
    try:
        invariant(run.world)
    except AssertionError:
        return True
    return False


def _runs_with_a_stale_leader(version: int, count: int) -> Iterator[Run]:
    """The first driver dies; the second one asks a stale leader, and dies as well."""
    random = Random(0)
    first = Run(version, batches=1).play()
    for _ in range(count):
        run, changes = first, cast(Changes, ())
        for kind, actor in ((DIES, "driver-1"), (STALE, "driver-2"), (DIES, "driver-2")):
            points = [step.point for step in run.steps if step.point.actor == actor]
            points = [point for point in points if kind in faults_of(actor, point.what)]
            if not points:
                break  # the first driver had noted in the checkpoint that all is written
            what = kind if kind == DIES else f"{kind} {random.choice(STALE_READS)}"
            changes = (*changes, Change(random.choice(points).index, what))
            run = Run(version, changes, batches=1).play()
            yield run


def test_seed_reproduces_the_same_run() -> None:
    def lines() -> list[str]:
        run, play = seeded(17)
        play()
        return run.lines

    assert lines() == lines()


def test_changes_reproduce_the_same_run() -> None:
    changes = (Change(6, "driver-2"), Change(30, DIES))
    assert Run(1, changes).play().lines == Run(1, changes).play().lines


@pytest.mark.parametrize(("rule", "invariant"), NOTICED, ids=lambda each: each.__name__)
def test_each_invariant_fails_when_its_rule_is_removed(
    rule: RemovedRule, invariant: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of what is passed over: test_replays.py."""
    rule(monkeypatch)
    assert any(_fails(seed, invariant) for seed in (*NOTICED[rule, invariant], *range(SEARCHED_MAX))), "no seed notices"


@pytest.mark.parametrize("turns", [5, query_transactions.MAX_TRIES])
def test_one_of_two_drivers_continues_after_fencing_each_other_repeatedly(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few turns both give way."""
    monkeypatch.setattr(query_transactions, "MAX_TRIES", turns)
    both_give_way = [_fails(seed, current_driver_does_not_give_way) for seed in DUELS]
    assert any(both_give_way) == (turns == 5), both_give_way


def _fails(seed: int, invariant: Callable[[World], None]) -> bool:
    try:
        explore(seed, [invariant])
    except AssertionError:
        return True
    return False
