"""A part of the explorer's schedules, and checks that the explorer fails when a rule of exactly once is removed."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import cast

import pytest

from spark_kafka_sink.exactly_once import query_transactions
from tests.exactly_once import rules
from tests.exactly_once.changes import (
    KILL,
    LATE_REQUEST,
    LOSE_RESPONSE,
    STALE_READ,
    STALE_READS,
    Change,
    Changes,
    possible_faults,
)
from tests.exactly_once.explorer import STREAM, Run, draw_run, explore_all, explore_seed, main
from tests.exactly_once.invariants import (
    current_driver_does_not_give_up,
    decided_batches_are_read_exactly_once,
    driver_transactions_have_short_timeouts,
    fenced_attempts_report_newer_driver,
    next_start_succeeds,
    no_transaction_stays_open,
    older_drivers_change_nothing_after_a_newer_start,
    operators_find_open_transactions_of_unnamed_jobs,
    reports_of_jobs_are_true,
)
from tests.exactly_once.rules import RemovedRule
from tests.exactly_once.simulation import Simulation
from tests.exactly_once.workloads import JOBS, Workload

STALE_LEADER_RUNS = 100 if os.environ.get("SOAK") else 1
"""Number of random series of runs with a stale leader, in each transaction version."""
DETECTING_SEEDS: dict[tuple[RemovedRule, Callable[[Simulation], None]], tuple[int, ...]] = {
    (rules.skip_read_after_fence, decided_batches_are_read_exactly_once): (0, 1),
    (rules.ignore_decided_batches, decided_batches_are_read_exactly_once): (30, 34),
    (rules.skip_finishing_decided_batch, decided_batches_are_read_exactly_once): (70,),
    (rules.decide_under_new_epoch, older_drivers_change_nothing_after_a_newer_start): (104, 159),
    (rules.skip_read_after_fence, older_drivers_change_nothing_after_a_newer_start): (44,),
    (rules.restore_short_timeout_late, driver_transactions_have_short_timeouts): (588, 1075),
    (rules.skip_aborting_open_transactions, no_transaction_stays_open): (0, 1),
    (rules.skip_late_attempt_check, no_transaction_stays_open): (21,),
    (rules.skip_fenced_attempt_check, fenced_attempts_report_newer_driver): (151,),
    (rules.skip_wait_for_ending_transaction, next_start_succeeds): (28,),
}
"""Seeds whose runs violated the invariant without the rule.

A change of the code can change the runs of these seeds. The test then searches the seeds below MAX_SEARCHED_SEED.
"""
DETECTING_JOB_SEEDS: dict[tuple[RemovedRule, Callable[[Simulation], None]], tuple[Workload, int]] = {
    (rules.abort_despite_fencing, reports_of_jobs_are_true): (Workload.PREFIXED_JOBS, 6),
    (rules.delete_entry_without_aborts, operators_find_open_transactions_of_unnamed_jobs): (Workload.UNNAMED_JOBS, 0),
}
"""A seed whose run with these jobs violated the invariant without the rule."""
LATE_REQUEST_SEED = 14226
"""A seed in which the driver is suspended before it aborts an attempt whose first write request is delayed."""
SEEDS = sorted({*range(15), *(seeds[0] for seeds in DETECTING_SEEDS.values()), LATE_REQUEST_SEED})
INTERRUPTED_JOB_SEEDS = (664, 721, 80)
"""Seeds in which a job is interrupted after its decision and cannot record that it is done.

In the first two, the job is suspended, and then lists the transactions of the next job with its prefix. In the third,
its process is killed, and an operator finishes the job while the transaction of a superseded attempt is open.
"""
MAX_SEARCHED_SEED = 300
STALE_CLAIMS: tuple[Changes, ...] = (
    (Change(33, KILL), Change(39, f"{STALE_READ} 2 2"), Change(55, KILL)),
    (Change(34, KILL), Change(41, f"{STALE_READ} 2 1"), Change(56, KILL)),
)
"""Changes after which a batch was written twice if claims have the key of decisions."""
UNFINISHED_BATCH = "a start commits a batch that is decided and not done"
REPEATED_FENCING_SEED = 186
"""A seed in which two drivers fence each other more than once."""


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_read_exactly_once_in_schedule_of_seed(seed: int) -> None:
    """A failure names the seed, which `python -m tests.exactly_once.explorer --seed` replays."""
    explore_seed(seed)


@pytest.mark.parametrize("seed", [*range(5), *INTERRUPTED_JOB_SEEDS])
def test_rows_of_jobs_are_read_exactly_once_in_schedule_of_seed(seed: int) -> None:
    """A failure names the seed, which `python -m tests.exactly_once.explorer --jobs --seed` replays."""
    explore_seed(seed, workloads=JOBS)


@pytest.mark.parametrize("version", [1, 2])
def test_next_driver_continues_wherever_a_driver_dies(version: int) -> None:
    """Every other death in each version. `make soak` plays all of them."""
    exploration = explore_all(version, 0, max_faults=1, batches=1, part=(version % 2, 2))
    assert exploration.failures == []
    assert exploration.schedules > 10


def test_explorer_fails_if_required_branch_needs_a_fault_that_it_does_not_play(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the successor of a driver that dies after its decision finishes the batch."""
    reached, not_reached = f"  {UNFINISHED_BATCH}\n", f"not reached by any run: {UNFINISHED_BATCH}\n"
    for faults in ("1", "0"):
        command = ["explorer", "--every", "0", "--faults", faults, "--part", "0:4", "--batches", "1"]
        monkeypatch.setattr(sys, "argv", [*command, "--require-branches"])
        assert main() == 1  # In both cases, these few schedules miss other branches.
        output = capfd.readouterr().out
        assert reached in output
        assert (not_reached in output) == (faults == "0")


def test_explorer_deletes_histories_of_earlier_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise, the histories of a seed in both runs would be checked as one, and would not be linearizable."""
    (tmp_path / "1.jsonl").write_text("a history of an earlier run\n")
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["explorer", "--seeds", "0:1", "--histories", str(tmp_path)])
        assert main() == 0
        logging.disable(logging.NOTSET)
        (file,) = tmp_path.iterdir()
        operations = [json.loads(line) for line in file.read_text().splitlines()]
        assert len([operation for operation in operations if operation["time"] == 0]) == 1


@pytest.mark.parametrize("kind", [LOSE_RESPONSE, LATE_REQUEST])
def test_rows_are_read_exactly_once_wherever_a_response_is_lost_or_a_request_is_late(kind: str) -> None:
    part = (0, 2 if kind == LOSE_RESPONSE else 10)
    exploration = explore_all(1, 0, max_faults=1, kinds=(kind,), batches=1, part=part)
    assert exploration.failures == []
    assert exploration.schedules > 15


def test_rows_are_read_exactly_once_wherever_actors_switch() -> None:
    exploration = explore_all(2, 1, max_faults=0, batches=1, part=(0, 3))
    assert exploration.failures == []
    assert exploration.schedules > 20


@pytest.mark.parametrize("version", [1, 2])
def test_compaction_keeps_decision_after_claim_based_on_stale_leader(version: int) -> None:
    pinned_runs = (Run(version, changes, batches=1).play() for changes in STALE_CLAIMS)
    for run in chain(pinned_runs, _play_with_stale_leader(version, STALE_LEADER_RUNS)):
        run.check()


def test_batch_is_written_twice_if_claims_have_the_key_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    rules.write_claims_with_decision_key(monkeypatch)
    pinned_runs = (Run(2, changes, batches=1).play() for changes in STALE_CLAIMS)
    runs = chain(pinned_runs, _play_with_stale_leader(2, 100))
    assert any(_violates(decided_batches_are_read_exactly_once, run) for run in runs)


def _violates(invariant: Callable[[Simulation], None], run: Run) -> bool:
    try:
        invariant(run.simulation)
    except AssertionError:
        return True
    return False


def _play_with_stale_leader(version: int, count: int) -> Iterator[Run]:
    """Play runs in which the first driver dies, and the second one reads from a stale leader and dies as well."""
    random = Random(0)
    undisturbed = Run(version, batches=1).play()
    for _ in range(count):
        run, changes = undisturbed, cast(Changes, ())
        for kind, actor in ((KILL, "driver-1"), (STALE_READ, "driver-2"), (KILL, "driver-2")):
            points = [step.point for step in run.steps if step.point.actor == actor]
            points = [point for point in points if kind in possible_faults(actor, point.action)]
            if not points:
                break  # The checkpoint of the first driver includes all batches, so the second one does nothing.
            text = kind if kind == KILL else f"{kind} {random.choice(STALE_READS)}"
            changes = (*changes, Change(random.choice(points).index, text))
            run = Run(version, changes, batches=1).play()
            yield run


def test_seed_reproduces_the_same_run() -> None:
    def play_seed() -> list[str]:
        run, play = draw_run(17)
        play()
        return run.lines

    assert play_seed() == play_seed()


def test_changes_reproduce_the_same_run() -> None:
    changes = (Change(6, "driver-2"), Change(31, KILL))
    assert Run(1, changes).play().lines == Run(1, changes).play().lines


@pytest.mark.parametrize(("rule", "invariant"), DETECTING_SEEDS, ids=lambda each: each.__name__)
def test_each_invariant_fails_when_its_rule_is_removed(
    rule: RemovedRule, invariant: Callable[[Simulation], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invariant of skipped batches has its test in test_replays.py."""
    rule(monkeypatch)
    seeds = (*DETECTING_SEEDS[rule, invariant], *range(MAX_SEARCHED_SEED))
    assert any(_fails(seed, invariant) for seed in seeds), "no seed violates the invariant"


@pytest.mark.parametrize(("rule", "invariant"), DETECTING_JOB_SEEDS, ids=lambda each: each.__name__)
def test_each_invariant_of_jobs_fails_when_its_rule_is_removed(
    rule: RemovedRule, invariant: Callable[[Simulation], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, pinned_seed = DETECTING_JOB_SEEDS[rule, invariant]
    assert not _fails(pinned_seed, invariant, [workload])
    rule(monkeypatch)
    seeds = (pinned_seed, *range(MAX_SEARCHED_SEED))
    assert any(_fails(seed, invariant, [workload]) for seed in seeds), "no seed violates the invariant"


@pytest.mark.parametrize("max_tries", [2, query_transactions.MAX_ATTEMPTS])
def test_one_of_two_drivers_continues_after_fencing_each_other_repeatedly(
    max_tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With only two tries, both drivers give up."""
    monkeypatch.setattr(query_transactions, "MAX_ATTEMPTS", max_tries)
    assert _fails(REPEATED_FENCING_SEED, current_driver_does_not_give_up) == (max_tries == 2)


def _fails(seed: int, invariant: Callable[[Simulation], None], workloads: Sequence[Workload] = STREAM) -> bool:
    try:
        explore_seed(seed, [invariant], workloads=workloads)
    except AssertionError:
        return True
    return False
