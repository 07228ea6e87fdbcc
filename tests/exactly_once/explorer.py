"""The explorer of exactly once: every interleaving within bounds, and seeds beyond them.

    python -m tests.exactly_once.explorer --seeds 0:20000          prints the seeds that fail
    python -m tests.exactly_once.explorer --seed 17                replays one, with what happened
    python -m tests.exactly_once.explorer --every 2                all schedules with at most 2 changes of who goes on
    python -m tests.exactly_once.explorer --replay 1 "31 driver-2, 40 driver-1 dies"     replays one of these

Two starts of one query, each with a driver and two tasks, and with an attempt that comes late, write two batches; in
some seeds a person aborts as well. What they do is decided at each request (interleaving.py): left to itself, one goes
on until it waits; a `change` lets another one go on there, kills the one that would, or loses the answer to what it
asks. When all have ended, a last start of the query writes what is left. Then these hold:

    a decided batch is seen once, and whole; one that is not decided is never seen
    no older driver changes anything after a newer one has begun
    what is passed over is what was decided
    nothing stays open, and the next start works
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from spark_kafka_sink.errors import KafkaSinkError
from tests.exactly_once.interleaving import Actor, Point
from tests.exactly_once.lives import TASKS, TOPIC, World, one_process_at_a_time
from tests.history import History, Outcome, Write
from tests.producer.explorer import command

LAST = "driver-9"
DIES, LOSES = "dies", "loses the answer"


@dataclass(frozen=True)
class Change:
    """At a point, another actor goes on; or the one that would dies, or loses the answer to its request."""

    at: int
    what: str

    def __str__(self) -> str:
        return f"{self.at} {self.what}"


Changes = tuple[Change, ...]


@dataclass
class Step:
    point: Point
    others: tuple[str, ...]
    state: int


class Known(Exception):
    """From here on the run would go on as another one has."""


class Run:
    """One run, by the changes that are given; what else could have been changed is kept."""

    def __init__(self, version: int, changes: Changes = (), *, operator: bool = False, batches: int = 2) -> None:
        self.is_known: Callable[[int], bool] = lambda state: False
        self.world = World(version=version, batches=batches)
        self.steps: list[Step] = []
        self.lines: list[str] = []
        self._changes = {change.at: change.what for change in changes}
        self.world.add_driver("driver-1")
        self.world.add_driver("driver-2", latent=True)
        if operator:
            self.world.add_operator("person")

    def play(self, choose: Callable[[Point, Actor, Sequence[Actor]], str | None] | None = None) -> Run:
        """`choose`: what is changed at a point, if it is not given by the changes."""
        world = self.world

        def decide(point: Point, chosen: Actor, others: Sequence[Actor]) -> Actor | None:
            if not self._changes or point.index > max(self._changes):
                state = world.state()
                if self.is_known(state):
                    raise Known
                self.steps.append(Step(point, tuple(actor.name for actor in others), state))
            what = self._changes.get(point.index) if choose is None else choose(point, chosen, others)
            self.lines.append(f"{point.index:4} {chosen.name}: {chosen.what}{f'   <- {what}' if what else ''}")
            if what is None:
                return chosen
            if what == DIES:
                world.stage.kill(chosen)
                return None
            if what == LOSES:
                chosen.loses_answer = True
                return chosen
            return next((actor for actor in others if actor.name == what), chosen)

        with one_process_at_a_time(world):
            world.stage.play(decide)
            world.add_driver(LAST)
            world.stage.play(lambda point, chosen, others: chosen)
        return self

    def check(self) -> None:
        check(self.world)


# --- invariants


def a_decided_batch_is_seen_once_and_whole_and_an_undecided_one_never(world: World) -> None:
    decided = world.decided()
    in_a_decision = {identity for every in decided.values() for ids in every for identity in ids}
    history = History()
    for each in world.attempts:
        outcome = Outcome.COMMITTED if each.identity in in_a_decision else Outcome.OPEN
        unit = f"task {each.partition} of batch {each.number}"
        history.writes.append(Write(each.name, each.values, outcome, unit, f"batch {each.number}"))
    for number in range(world.batches):
        units = frozenset(f"task {partition} of batch {number}" for partition in range(TASKS))
        history.units[f"batch {number}"] = units
    seen = {
        partition: [value or b"" for value in world.cluster.values(TOPIC, partition, committed=True)]
        for partition in range(TASKS)
    }
    history.check(seen)
    for number in range(world.batches):
        assert decided.get(number), f"batch {number} was never decided"
        assert len(decided[number]) == 1, f"batch {number} was decided anew: {decided[number]}"


def no_older_driver_changes_anything_after_a_newer_one_has_begun(world: World) -> None:
    generations = [entry.generation for entry in world.decisions()]
    assert generations == sorted(generations), f"the log goes back to an older driver: {generations}"
    drivers_of = {each.identity: each.driver for each in world.attempts}
    in_a_decision = {identity for every in world.decided().values() for ids in every for identity in ids}
    for end in world.ends:
        owner = drivers_of.get(end.identity)
        if owner is None or end.by not in world.began or owner not in world.began:
            continue
        is_older = world.began.index(end.by) < world.began.index(owner)
        allowed = end.commit and end.identity in in_a_decision
        assert not is_older or allowed, f"{end.by} has ended {end.identity} of {owner}, which is newer"


def what_is_passed_over_is_what_was_decided(world: World) -> None:
    decided = world.decided()
    for each in world.attempts:
        assert not each.passed_over or each.number in decided, f"{each.name} was passed over, and was never decided"
    for driver, number in world.committed:
        assert number in decided, f"{driver} says that batch {number} is committed, and it was never decided"


def nothing_stays_open(world: World) -> None:
    for partition in range(TASKS):
        log = world.cluster.log(TOPIC, partition)
        assert log.last_stable_offset == log.next_offset, f"partition {partition}: a transaction is left open"
    still = [each for each in world.cluster.core.coordinator.transactions.values() if each.state.value == "Ongoing"]
    assert not still, f"open: {still}"
    assert not world.system.open_sockets, "a socket is left"


def the_next_start_works(world: World) -> None:
    assert LAST not in world.failed, f"the last start fails: {world.failed[LAST]}"
    assert world.checkpoint == world.batches


INVARIANTS: tuple[Callable[[World], None], ...] = (
    no_older_driver_changes_anything_after_a_newer_one_has_begun,
    what_is_passed_over_is_what_was_decided,
    the_next_start_works,
    a_decided_batch_is_seen_once_and_whole_and_an_undecided_one_never,
    nothing_stays_open,
)


def check(world: World) -> None:
    for invariant in INVARIANTS:
        invariant(world)


# --- every schedule within bounds


@dataclass
class Explored:
    schedules: int = 0
    cut: int = 0
    """Of the schedules: those that came to a state from which another one had gone on already."""
    states: int = 0
    failed: list[tuple[Changes, str]] = field(default_factory=list)

    def __str__(self) -> str:
        ends = f"{self.cut} of them came to a state that was known"
        return f"{self.schedules} schedules ({ends}), {self.states} states, {len(self.failed)} failed"


def every(version: int, changes_max: int, *, faults_max: int = 1, operator: bool = False, batches: int = 2) -> Explored:
    """Play all schedules with at most `changes_max` changes of who goes on, and at most `faults_max` deaths."""
    explored = Explored()
    known: set[tuple[int, int, int]] = set()
    left: list[Changes] = [()]
    while left:
        changes = left.pop()
        faults = sum(change.what == DIES for change in changes)
        budget = changes_max - (len(changes) - faults), faults_max - faults
        run = Run(version, changes, operator=operator, batches=batches)
        run.is_known = partial(_is_known, known, budget)
        explored.schedules += 1
        try:
            run.play().check()
        except Known:
            explored.cut += 1
        except (AssertionError, KafkaSinkError) as error:
            explored.failed.append((changes, f"{type(error).__name__}: {error}"))
        known.update((step.state, *budget) for step in run.steps)
        left.extend((*changes, change) for change in _next_changes(run, *budget))
    explored.states = len({state for state, *_ in known})
    return explored


def _is_known(known: set[tuple[int, int, int]], budget: tuple[int, int], state: int) -> bool:
    return (state, *budget) in known


def _next_changes(run: Run, changes_left: int, faults_left: int) -> Iterator[Change]:
    for step in run.steps:
        if changes_left:
            for name in step.others:
                yield Change(step.point.index, name)
        if faults_left and step.point.what not in ("begin", "waits for its tasks"):
            yield Change(step.point.index, DIES)


# --- seeds


def seeded(seed: int) -> tuple[Run, Callable[[], object]]:
    """The run of a seed, and what plays it."""
    random = Random(seed)
    version, operator = random.randint(1, 2), random.random() < 0.2
    run = Run(version, operator=operator)
    # Most runs change little: the more often the actors change, the less each of them does undisturbed. In some the two
    # drivers begin at the same time.
    share, deaths, losses = random.choice((0.03, 0.08, 0.2)), random.choice((0, 0, 1, 2)), random.choice((0, 0, 1, 2))
    together = random.choice((0, 0, 30))
    left = {DIES: deaths, LOSES: losses}

    def choose(point: Point, chosen: Actor, others: Sequence[Actor]) -> str | None:
        for what in (DIES, LOSES):
            if left[what] and random.random() < 0.02 and chosen.what not in ("begin", "waits for its tasks"):
                left[what] -= 1
                return what
        if others and random.random() < (0.4 if point.index < together else share):
            return random.choice([actor.name for actor in others])
        return None

    run.lines.append(f"seed {seed}: version {version}")
    return run, lambda: run.play(choose)


def explore(seed: int) -> None:
    run, play = seeded(seed)
    play()
    run.check()


# --- the command


def _replayed(version: int, text: str) -> int:
    parts = (part.strip().split(" ", 1) for part in text.split(",") if part.strip())
    run = Run(version, tuple(Change(int(at), what) for at, what in parts))
    return 0 if _shown(run, run.play) else 1


def _shown(run: Run, play: Callable[[], object]) -> bool:
    try:
        play()
        run.check()
    except Exception:
        traceback.print_exc()
        return False
    finally:
        print("\n".join(run.lines))
        for name, error in run.world.failed.items():
            print(f"{name} has failed: {error}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:1000", help="from:to")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--processes", type=int, default=1, help="explore as many seeds at a time")
    parser.add_argument("--every", type=int, help="the most changes of who goes on")
    parser.add_argument("--deaths", type=int, default=1, help="the most deaths beside them")
    parser.add_argument("--replay", nargs=2, metavar=("VERSION", "CHANGES"))
    options = parser.parse_args()
    if options.replay is not None:
        return _replayed(int(options.replay[0]), options.replay[1])
    if options.seed is not None:
        run, play = seeded(options.seed)
        return 0 if _shown(run, play) else 1
    if options.every is None:
        return command(explore, __doc__)
    failed = 0
    for version in (1, 2):
        explored = every(version, options.every, faults_max=options.deaths)
        print(f"version {version}: {explored}", flush=True)
        for changes, words in explored.failed:
            print(f'  --replay {version} "{", ".join(map(str, changes))}": {words}')
        failed += len(explored.failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
