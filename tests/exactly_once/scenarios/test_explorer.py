"""Some of what the explorer of exactly once plays, and that it does find a fault: a rule is taken out, a seed fails."""

from __future__ import annotations

import pytest

from tests.exactly_once.explorer import DIES, Change, Run, every, explore, seeded
from tests.exactly_once.rules import SEEDS as NOTICED
from tests.exactly_once.rules import TakenOut

SEEDS = 40
SEARCHED_MAX = 300


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_every_order_and_with_every_death_each_row_is_seen_once(seed: int) -> None:
    """One test for each seed: a failure names what `python -m tests.exactly_once.explorer --seed` replays."""
    explore(seed)


@pytest.mark.parametrize("version", [1, 2])
def test_wherever_a_driver_dies_the_next_one_goes_on(version: int) -> None:
    explored = every(version, 0, faults_max=1, batches=1)
    assert explored.failed == []
    assert explored.schedules > 20


def test_wherever_one_change_lets_another_go_on_each_row_is_seen_once() -> None:
    explored = every(2, 1, faults_max=0, batches=1)
    assert explored.failed == []
    assert explored.schedules > 50


def test_a_seed_plays_the_same_run_again() -> None:
    def lines() -> list[str]:
        run, play = seeded(17)
        play()
        return run.lines

    assert lines() == lines()


def test_the_same_changes_play_the_same_run_again() -> None:
    changes = (Change(6, "driver-2"), Change(30, DIES))
    assert Run(1, changes).play().lines == Run(1, changes).play().lines


@pytest.mark.parametrize("rule", NOTICED, ids=lambda rule: rule.__name__)
def test_the_explorer_notices_a_rule_that_is_taken_out(rule: TakenOut, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    assert any(_fails(seed) for seed in (*NOTICED[rule], *range(SEARCHED_MAX))), "no seed notices"


def _fails(seed: int) -> bool:
    try:
        explore(seed)
    except Exception:
        return True
    return False
