"""The explorer of exactly once: every interleaving within bounds, and seeds beyond them.

    python -m tests.exactly_once.explorer --seeds 0:20000          prints the seeds that fail
    python -m tests.exactly_once.explorer --seed 17                replays one, with what happened
    python -m tests.exactly_once.explorer --every 2                all schedules with at most 2 changes of who goes on
    python -m tests.exactly_once.explorer --replay 1 "31 driver-2, 40 dies"     replays one of these

Two starts of one query, each with a driver and two tasks, and with an attempt that comes late, write two batches; in
some seeds a person aborts as well, and sources give other rows when a batch is run again. What they do is decided at
each request (interleaving.py): left to itself, one goes on until it waits. A `change` is one of these:

    another one goes on
    dies                the process that was about to ask
    loses the answer    the request is carried out, the connection ends, and the request is repeated
    asks a stale leader the decision log ends n batches too soon, in the next m reads of a driver
    sends late by n     the connection ends, the request is repeated, and n points later it is carried out once more
    markers             brokers write those of the transactions whose end they have answered; else 100 ms later
    time passes         more than a transaction may last, or not much less

When all have ended, the decision log is compacted, and a last start of the query writes what is left. Then these hold:

    a decided batch is seen once, and whole; one that is not decided is never seen
    no older driver changes anything after a newer one has begun
    who has the last word in the log does not give way
    what is passed over is what was decided
    nothing stays open, and the next start works

Not played: a request of a task for its producer id that comes late. Brokers abort what is open under an id for all who
ask for it, with or without an expected epoch, so a decided transaction would be lost, and the next start says so.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.exactly_once import operations
from tests.exactly_once.interleaving import Actor, Point
from tests.exactly_once.invariants import INVARIANTS, check
from tests.exactly_once.lives import LAST, TIMEOUT_MS, Operation, Replay, World, one_process_at_a_time
from tests.producer.explorer import RUNS_PER_LINE, command

DIES, LOSES, LATE, MARKERS, TIME = "dies", "loses the answer", "sends late by", "markers", "time passes, ms:"
STALE = "asks a stale leader,"
STALE_READS = ("2 1", "2 2", "4 2", "4 3", "6 4")
"""How many batches of the decision log are missing, and in how many reads."""
LATE_BY = (1, 2, 4, 8, 16, 32, 64)
"""Of how many points it is tried that a request comes so much later, and again before that."""
MARKERS_MS = 100.0
STOPS = "stop"
OPERATIONS: dict[str, Operation] = {
    "abort": operations.abort,
    "finish": operations.finish,
    "give up": operations.give_up,
}
"""What a person may do. STOPS is what Spark does: it aborts a batch of which no task has reported."""
TIMES_MS = (TIMEOUT_MS + 1_000, TIMEOUT_MS - 5_000)
"""How long all stand still: longer than transactions may last, or not much shorter."""


@dataclass(frozen=True)
class Change:
    """At a point, another actor goes on; or the one that would dies, or loses the answer to its request."""

    at: int
    what: str

    def __str__(self) -> str:
        return f"{self.at} {self.what}"

    @property
    def is_fault(self) -> bool:
        return self.what in (DIES, LOSES) or self.what.startswith((LATE, STALE))


Changes = tuple[Change, ...]


@dataclass
class Step:
    point: Point
    others: tuple[str, ...]
    state: int
    has_markers: bool
    """Transactions have ended, and not all of their markers are written."""


class Known(Exception):
    """From here on the run would go on as another one has."""


class Run:
    """One run, by the changes that are given; what else could have been changed is kept."""

    def __init__(  # noqa: PLR0913 - each thing that a run can be given, by its name
        self,
        version: int,
        changes: Changes = (),
        *,
        operator: str = "",
        batches: int = 2,
        markers_ms: float = MARKERS_MS,
        replay: Replay = Replay.EQUAL,
        registered: bool = True,
    ) -> None:
        """`operator`: somebody who does one of OPERATIONS."""
        self.is_known: Callable[[int], bool] | None = None
        self.world = World(
            version=version, batches=batches, markers_ms=markers_ms, replay=replay, registered=registered
        )
        self.steps: list[Step] = []
        self.lines: list[str] = []
        self._changes = {change.at: change.what for change in changes}
        self.world.add_driver("driver-1")
        self.world.add_driver("driver-2", latent=True)
        if operator in OPERATIONS:
            self.world.add_operator("person", OPERATIONS[operator])
        if operator == STOPS:
            self.world.stage.add("spark", lambda actor: self.world.stop(actor, "driver-1"), latent=True)

    def play(self, choose: Callable[[Point, Actor, Sequence[Actor]], str | None] | None = None) -> Run:
        """`choose`: what is changed at a point, if it is not given by the changes."""
        world = self.world

        def decide(point: Point, chosen: Actor, others: Sequence[Actor]) -> Actor | None:
            world.lateness.arrive(point.index)
            if not self._changes or point.index > max(self._changes):
                state = 0 if self.is_known is None else world.state()
                if self.is_known is not None and self.is_known(state):
                    raise Known
                names = tuple(actor.name for actor in others)
                self.steps.append(Step(point, names, state, world.lateness.has_markers_to_write))
            what = self._changes.get(point.index) if choose is None else choose(point, chosen, others)
            self.lines.append(f"{point.index:4} {chosen.name}: {chosen.what}{f'   <- {what}' if what else ''}")
            if what is None:
                return chosen
            if what == DIES:
                world.stage.kill(chosen)
                return None
            if self._disturb(what, chosen, point):
                return chosen
            return next((actor for actor in others if actor.name == what), chosen)

        with one_process_at_a_time(world):
            world.stage.play(decide)
            world.lateness.arrive()
            world.log_reads.compact()
            world.add_driver(LAST)
            world.stage.play(lambda point, chosen, others: chosen)
            world.lateness.write_markers()
        return self

    def _disturb(self, what: str, chosen: Actor, point: Point) -> bool:
        """Apply a change after which the same actor goes on. Return whether it is one."""
        if what == LOSES:
            chosen.loses_answer = True
        elif what == MARKERS:
            self.world.lateness.write_markers()
        elif what.startswith(TIME):
            self.world.let_time_pass(float(what.removeprefix(TIME)))
        elif what.startswith(STALE):
            batches, reads = map(int, what.removeprefix(STALE).split())
            self.world.log_reads.ask_stale_leader(chosen.name, batches, reads)
        elif what.startswith(LATE):
            self.world.lateness.sends_late(chosen, point.index + int(what.removeprefix(LATE)))
        else:
            return False
        return True

    def check(self) -> None:
        check(self.world)


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


def every(  # noqa: PLR0913 - each bound, by its name
    version: int,
    changes_max: int,
    *,
    faults_max: int = 1,
    kinds: Sequence[str] = (DIES,),
    batches: int = 2,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[Explored], None] = lambda explored: None,
) -> Explored:
    """Play all schedules with at most `changes_max` changes of who goes on, and at most `faults_max` faults.

    `part`: of the first changes, every n-th from the m-th on. `progress`: called after each schedule.
    """
    explored = Explored()
    known: set[tuple[int, int, int]] = set()
    left: list[Changes] = [()]
    while left:
        changes = left.pop()
        faults = sum(change.is_fault for change in changes)
        budget = changes_max - (len(changes) - faults), faults_max - faults
        run = Run(version, changes, batches=batches)
        run.is_known = partial(_is_known, known, budget)
        explored.schedules += 1
        try:
            run.play().check()
        except Known:
            explored.cut += 1
        except (AssertionError, KafkaSinkError) as error:
            explored.failed.append((changes, f"{type(error).__name__}: {error}"))
        known.update((step.state, *budget) for step in run.steps)
        following = list(_next_changes(run, *budget, kinds))
        left.extend((*changes, change) for change in (following if changes else following[part[0] :: part[1]]))
        progress(explored)
    explored.states = len({state for state, *_ in known})
    return explored


def _is_known(known: set[tuple[int, int, int]], budget: tuple[int, int], state: int) -> bool:
    return (state, *budget) in known


def _next_changes(run: Run, changes_left: int, faults_left: int, kinds: Sequence[str]) -> Iterator[Change]:
    for step in run.steps:
        point = step.point
        if changes_left:
            for name in step.others:
                yield Change(point.index, name)
            if step.has_markers:
                yield Change(point.index, MARKERS)
        for kind in faults_of(point.actor, point.what) if faults_left else ():
            if kind in kinds:
                for words in _variants(kind):
                    yield Change(point.index, words)


def _variants(kind: str) -> Sequence[str]:
    if kind == STALE:
        return [f"{kind} {reads}" for reads in STALE_READS]
    return [f"{kind} {by}" for by in LATE_BY] if kind == LATE else [kind]


def faults_of(actor: str, what: str) -> Sequence[str]:
    """What can go wrong where this actor is about to do that.

    A request of a task for its producer id does not come late: brokers abort what is open under an id for all who ask.
    """
    if what in ("begin", "waits for its tasks"):
        return ()
    changes_nothing = what in ("DESCRIBE_TRANSACTIONS", "LIST_TRANSACTIONS", "LIST_OFFSETS", "FETCH")
    if what == "LIST_OFFSETS" and "attempt" not in actor and "task" not in actor:
        return DIES, LOSES, STALE
    if changes_nothing or (what == "INIT_PRODUCER_ID" and "attempt" in actor):
        return DIES, LOSES
    return DIES, LOSES, LATE


# --- seeds


def seeded(seed: int) -> tuple[Run, Callable[[], object]]:
    """The run of a seed, and what plays it."""
    random = Random(seed)
    more = Random(f"{seed}, and what came later")
    version, acts = random.randint(1, 2), random.random() < 0.2
    operator = more.choice((*OPERATIONS, STOPS)) if acts else ""
    markers_ms, replay = random.choice((0.0, 5.0, MARKERS_MS, MARKERS_MS)), random.choice((Replay.EQUAL, *Replay))
    registered = replay is not Replay.EQUAL or more.choice((True, True, True, False))
    run = Run(version, operator=operator, markers_ms=markers_ms, replay=replay, registered=registered)
    run.world.late_tasks = more.choice(((0,), (1,), (0, 1)))
    # Most runs change little: the more often the actors change, the less each of them does undisturbed. In some the two
    # drivers begin at the same time.
    share, deaths, losses = random.choice((0.03, 0.08, 0.2)), random.choice((0, 0, 1, 2)), random.choice((0, 0, 1, 2))
    together = random.choice((0, 0, 30))
    left = {DIES: deaths, LOSES: losses, LATE: random.choice((0, 0, 1, 2)), TIME: random.choice((0, 0, 0, 1))}

    def choose(point: Point, chosen: Actor, others: Sequence[Actor]) -> str | None:
        for what in (DIES, LOSES, LATE):
            if left[what] and random.random() < 0.02 and what in faults_of(chosen.name, chosen.what):
                left[what] -= 1
                return what if what != LATE else f"{what} {random.choice(LATE_BY)}"
        if random.random() < 0.03:
            return MARKERS
        if left[TIME] and random.random() < 0.02:
            left[TIME] -= 1
            return f"{TIME} {random.choice(TIMES_MS)}"
        if others and random.random() < (0.4 if point.index < together else share):
            return random.choice([actor.name for actor in others])
        return None

    who = f"{operator or 'no person'} acts, drivers are {'numbered' if registered else 'of one name'}"
    run.lines.append(f"seed {seed}: version {version}, markers after {markers_ms} ms, {replay.value}, {who}")
    return run, lambda: run.play(choose)


def explore(seed: int, invariants: Sequence[Callable[[World], None]] = INVARIANTS) -> None:
    run, play = seeded(seed)
    play()
    for invariant in invariants:
        invariant(run.world)


# --- the command


def _replayed(version: int, text: str) -> int:
    parts = (part.strip().split(" ", 1) for part in text.split(",") if part.strip())
    run = Run(version, tuple(Change(int(at), what) for at, what in parts))
    return 0 if _shown(run, run.play) else 1


def _every(options: argparse.Namespace, version: int) -> Explored:
    first, step = map(int, options.part.split(":"))

    def progress(explored: Explored) -> None:
        if explored.schedules % RUNS_PER_LINE == 0:
            words = f"{explored.schedules} schedules, {len(explored.failed)} failed"
            print(f"version {version}, so far: {words}", flush=True)

    return every(
        version,
        options.every,
        faults_max=options.faults,
        kinds=tuple(options.kinds),
        batches=options.batches,
        part=(first, step),
        progress=progress,
    )


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
    parser.add_argument("--processes", type=int, default=1, help="explore as many seeds, or versions, at a time")
    parser.add_argument("--every", type=int, help="the most changes of who goes on")
    parser.add_argument("--faults", type=int, default=1, help="the most faults beside them")
    parser.add_argument("--kinds", nargs="+", default=[DIES], choices=[DIES, LOSES, LATE, STALE], help="of faults")
    parser.add_argument(
        "--part", default="0:1", metavar="M:N", help="of the first changes every N-th, from the M-th on"
    )
    parser.add_argument("--batches", type=int, default=2)
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
    versions = (1, 2)
    with ProcessPoolExecutor(min(options.processes, len(versions))) as processes:
        for version, explored in zip(versions, processes.map(partial(_every, options), versions), strict=True):
            print(f"version {version}, {options.part} of the first changes: {explored}", flush=True)
            for changes, words in explored.failed:
                print(f'  --replay {version} "{", ".join(map(str, changes))}": {words}')
            failed += len(explored.failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
