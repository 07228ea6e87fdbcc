"""The explorer of exactly-once delivery: plays schedules of one query under faults, and checks invariants after each.

    python -m tests.exactly_once.explorer --seeds 0:20000     prints the seeds that fail
    python -m tests.exactly_once.explorer --seed 17           replays one seed and prints its schedule
    python -m tests.exactly_once.explorer --require-branches  fails if no run reaches one of the rare branches
    python -m tests.exactly_once.explorer --every 2           plays all schedules with at most 2 switches and 1 fault
    python -m tests.exactly_once.explorer --jobs              plays batch jobs of all kinds (workloads.py)
    python -m tests.exactly_once.explorer --jobs prefixed     plays batch jobs of one kind
    python -m tests.exactly_once.explorer --replay 1 "31 driver-2, 40 kill"
                                                              replays one of these in transaction version 1

Two starts of one query write two batches. Each start has a driver and two tasks, one of which has a late attempt. In
some seeds an operator intervenes, Spark stops the query, the source returns other rows when a batch is run again, or
each driver id has few epochs.

The schedule decides at each scheduling point (scheduler.py) which actor continues. By default this is the actor that
ran before, until it waits. A change deviates from the default at one point:

    NAME               a switch: the actor NAME continues
    kill               the process of the actor is killed before its request
    lose-response      the request is handled, the connection ends, and the client retries the request
    stale-read B R     a stale leader: the decision log ends B batches too early in the next R reads of the driver
    late-request N     the connection ends, the client retries, and the first request is handled too, N points later
    write-markers      brokers write the markers of ended transactions, which otherwise follow 100 ms after the end
    pass-time MS       the clock advances, by more than the transaction timeout or a little less

After all actors have ended, the decision log is compacted, and a last start of the query writes the remaining batches.
invariants.py lists what must hold then.

Jobs with an idempotency key are written like the batches of a stream: the key is the number of the batch. Jobs without
one are never run again: each start, including the last one, writes jobs of its own (simulation.py). If each job has a
generated prefix, an operator ends all that `pykafka transactions` lists before the last start.

Not played: a late InitProducerId request of a task. Brokers abort the open transaction of an id for every client that
requests the id, with or without an expected epoch. So a decided transaction would be lost, and the next start would
report it.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.exactly_once import operations
from tests.branch_counter import BranchCounts, counted_branches, report_counts, take_reached
from tests.exactly_once.changes import (
    FAULT_KINDS,
    KILL,
    LATE_REQUEST,
    LOSE_RESPONSE,
    PASS_TIME,
    STALE_READ,
    WRITE_MARKERS,
    Change,
    Changes,
    ChooseChange,
    draw_schedule,
    expand_arguments,
    interrupt_epoch_changes,
    possible_faults,
)
from tests.exactly_once.invariants import INVARIANTS, check_invariants
from tests.exactly_once.log_history import delete_histories, record_simulation
from tests.exactly_once.scheduler import Actor, SchedulingPoint
from tests.exactly_once.simulated_processes import isolated_processes
from tests.exactly_once.simulation import (
    LAST_DRIVER,
    LAST_OPERATOR,
    Operation,
    Simulation,
    SourceReplay,
)
from tests.exactly_once.workloads import JOBS, Workload
from tests.explorer_command import RUNS_PER_LINE, add_seed_arguments, explore_seeds
from tests.rare_branches import EXACTLY_ONCE_BRANCHES

STREAM = (Workload.STREAM,)
MARKER_DELAY_MS = 100.0
STOP_QUERY = "stop"
"""Spark stops the query: it aborts a batch of which no task has reported."""
OPERATIONS: dict[str, Operation] = {
    "abort": operations.abort,
    "finish": operations.finish,
    "give up": operations.give_up,
}
"""Operations of an operator."""


def end_transactions(options: Mapping[str, str], prefix: str, log_topic: str) -> object:
    """Commit the transactions of a job that is decided, and give up those that are lost, or else abort all of them."""
    result = operations.finish(options, prefix, log_topic)
    if result is None:
        return operations.abort(options, prefix, log_topic)
    return operations.give_up(options, prefix, log_topic) if result.lost_transaction_errors else result


@dataclass
class Step:
    """A scheduling point of a run, with the changes that were possible there."""

    point: SchedulingPoint
    other_actors: tuple[str, ...]
    state: int
    has_pending_markers: bool


class StateExploredError(Exception):
    """The run has reached a state from which another run has already continued."""


class Run:
    """One run of the query under a schedule."""

    def __init__(  # noqa: PLR0913 - one keyword for each property of a run
        self,
        version: int,
        changes: Changes = (),
        *,
        intervention: str = "",
        batches: int = 2,
        marker_delay_ms: float = MARKER_DELAY_MS,
        source_replay: SourceReplay = SourceReplay.SAME_ROWS,
        registered: bool = True,
        workload: Workload = Workload.STREAM,
    ) -> None:
        """`version`: transaction version. `intervention`: a key of OPERATIONS, STOP_QUERY, or none."""
        self.is_explored: Callable[[int], bool] | None = None
        """Whether a state is explored. None: the run records no states."""
        self.simulation = Simulation(
            version=version,
            batches=batches,
            marker_delay_ms=marker_delay_ms,
            source_replay=source_replay,
            registered=registered,
            workload=workload,
        )
        self.steps: list[Step] = []
        """The points after the last change."""
        self.lines: list[str] = []
        """The schedule, as the command prints it."""
        self._changes = {change.point: change.text for change in changes}
        self.simulation.add_driver("driver-1")
        self.simulation.add_driver("driver-2", suspended=True)
        if intervention in OPERATIONS:
            self.simulation.add_operator("operator", OPERATIONS[intervention])
        if intervention == STOP_QUERY:
            self.simulation.scheduler.add(
                "spark", lambda actor: self.simulation.stop_query(actor, "driver-1"), suspended=True
            )

    def play(self, choose_change: ChooseChange | None = None) -> Run:
        """Run the schedule and the last start. `choose_change` replaces the changes of the constructor."""
        simulation = self.simulation

        def choose_actor(point: SchedulingPoint, default: Actor, other_actors: Sequence[Actor]) -> Actor | None:
            simulation.delays.deliver_requests(point.index)
            simulation.observe_open_transactions()
            if not self._changes or point.index > max(self._changes):
                self._record_step(point, other_actors)
            if choose_change is None:
                change = self._changes.get(point.index)
            else:
                change = choose_change(point, default, other_actors)
            suffix = f"   <- {change}" if change else ""
            self.lines.append(f"{point.index:4} {default.name}: {default.action}{suffix}")
            if change is None:
                return default
            if change == KILL:
                simulation.scheduler.kill(default)
                return None
            if self._apply_without_switch(change, default, point):
                return default
            return next((actor for actor in other_actors if actor.name == change), default)

        with isolated_processes(simulation):
            simulation.scheduler.run(choose_actor)
            simulation.delays.deliver_requests()
            simulation.log_read_faults.compact()
            if simulation.workload is Workload.UNNAMED_JOBS:
                simulation.system.run_due()  # Brokers handle the requests that dead processes have sent.
                simulation.delays.write_markers()
                simulation.add_operator(LAST_OPERATOR, end_transactions)
                simulation.scheduler.run()
            simulation.add_driver(LAST_DRIVER)
            simulation.scheduler.run()
            simulation.delays.write_markers()
        return self

    def _record_step(self, point: SchedulingPoint, other_actors: Sequence[Actor]) -> None:
        state = 0
        if self.is_explored is not None:
            state = self.simulation.state_hash()
            if self.is_explored(state):
                raise StateExploredError
        names = tuple(actor.name for actor in other_actors)
        self.steps.append(Step(point, names, state, self.simulation.delays.has_pending_markers))

    def _apply_without_switch(self, change: str, actor: Actor, point: SchedulingPoint) -> bool:
        """Apply a change after which the same actor continues. Return False if the change is a switch."""
        kind, *arguments = change.split()
        if change == LOSE_RESPONSE:
            actor.loses_next_response = True
        elif change == WRITE_MARKERS:
            self.simulation.delays.write_markers()
        elif kind == PASS_TIME:
            self.simulation.pass_time(float(arguments[0]))
        elif kind == STALE_READ:
            missing_batches, reads = map(int, arguments)
            self.simulation.log_read_faults.read_from_stale_leader(actor.name, missing_batches, reads)
        elif kind == LATE_REQUEST:
            self.simulation.delays.delay_next_request(actor, point.index + int(arguments[0]))
        else:
            return False
        return True

    def check(self) -> None:
        check_invariants(self.simulation)


# --- every schedule within bounds


@dataclass
class Exploration:
    """The counts and failures of an exploration within bounds."""

    schedules: int = 0
    pruned: int = 0
    """Number of schedules that ended in a state from which another one had already continued."""
    states: int = 0
    branch_counts: BranchCounts = field(default_factory=lambda: BranchCounts(EXACTLY_ONCE_BRANCHES))
    failures: list[tuple[Changes, str]] = field(default_factory=list)
    """The changes of each failed schedule, and its error."""

    def __str__(self) -> str:
        pruned = f"{self.pruned} of them reached an explored state"
        return f"{self.schedules} schedules ({pruned}), {self.states} states, {len(self.failures)} failed"


def explore_all(  # noqa: PLR0913 - one keyword for each bound
    version: int,
    max_switches: int,
    *,
    max_faults: int = 1,
    kinds: Sequence[str] = (KILL,),
    batches: int = 2,
    workload: Workload = Workload.STREAM,
    part: tuple[int, int] = (0, 1),
    report_progress: Callable[[Exploration], None] = lambda exploration: None,
) -> Exploration:
    """Play all schedules with at most these numbers of switches between actors and of faults.

    `kinds`: the kinds of faults. `part`: (m, n) explores every n-th of the first changes, from the m-th on.
    `report_progress` is called after each schedule.
    """
    exploration = Exploration()
    explored: set[tuple[int, int, int]] = set()
    """(state, switches left, faults left)"""
    pending: list[Changes] = [()]
    while pending:
        changes = pending.pop()
        faults = sum(change.is_fault for change in changes)
        budget = max_switches - (len(changes) - faults), max_faults - faults
        run = Run(version, changes, batches=batches, workload=workload)
        run.is_explored = partial(_is_explored, explored, budget)
        exploration.schedules += 1
        try:
            run.play().check()
        except StateExploredError:
            exploration.pruned += 1
        except (AssertionError, KafkaSinkError) as error:
            exploration.failures.append((changes, f"{type(error).__name__}: {error}"))
        exploration.branch_counts.add_run(take_reached())
        explored.update((step.state, *budget) for step in run.steps)
        next_changes = list(_iterate_next_changes(run, *budget, kinds))
        if not changes:
            next_changes = next_changes[part[0] :: part[1]]
        pending.extend((*changes, change) for change in next_changes)
        report_progress(exploration)
    exploration.states = len({state for state, *_ in explored})
    return exploration


def _is_explored(explored: set[tuple[int, int, int]], budget: tuple[int, int], state: int) -> bool:
    return (state, *budget) in explored


def _iterate_next_changes(run: Run, switches_left: int, faults_left: int, kinds: Sequence[str]) -> Iterator[Change]:
    for step in run.steps:
        point = step.point
        if switches_left:
            for name in step.other_actors:
                yield Change(point.index, name)
            if step.has_pending_markers:
                yield Change(point.index, WRITE_MARKERS)
        for kind in possible_faults(point.actor, point.action) if faults_left else ():
            if kind in kinds:
                for text in expand_arguments(kind):
                    yield Change(point.index, text)


# --- seeds


def draw_run(seed: int, workloads: Sequence[Workload] = STREAM) -> tuple[Run, Callable[[], object]]:
    """Draw a run from its seed. Return the run and a function that plays it.

    `workloads`: the workloads from which the seed chooses one.

    The order of the draws determines the run of a seed. Later additions draw from `later_random`, so that the pinned
    seeds keep their runs.
    """
    random = Random(seed)
    later_random = Random(f"{seed}, and what came later")
    workload = workloads[seed % len(workloads)]
    is_stream = workload is Workload.STREAM
    version, has_intervention = random.randint(1, 2), random.random() < (0.2 if is_stream else 0.33)
    # Spark does not stop jobs.
    interventions = (*OPERATIONS, STOP_QUERY) if is_stream else (*OPERATIONS,)
    intervention = later_random.choice(interventions) if has_intervention else ""
    marker_delay_ms = random.choice((0.0, 5.0, MARKER_DELAY_MS, MARKER_DELAY_MS))
    source_replay = random.choice((SourceReplay.SAME_ROWS, *SourceReplay))
    registered = source_replay is not SourceReplay.SAME_ROWS or later_random.choice((True, True, True, False))
    registered = registered or not is_stream  # each job has its own driver name
    run = Run(
        version,
        intervention=intervention,
        marker_delay_ms=marker_delay_ms,
        source_replay=source_replay,
        registered=registered,
        workload=workload,
    )
    run.simulation.late_tasks = later_random.choice(((0,), (1,), (0, 1)))
    epoch_random = Random(f"{seed}, and its epochs")
    if epoch_random.random() < 0.1:
        run.simulation.hand_over_epoch = epoch_random.randint(2, 9)
    run.lines.append(
        f"seed {seed}: {workload.value}, transaction version {version}, markers after {marker_delay_ms} ms, "
        f"{source_replay.value}, intervention: {intervention or 'none'}, "
        f"{'one driver name per start' if registered else 'one driver name'}, "
        f"hand-over from epoch {run.simulation.hand_over_epoch}"
    )
    choose_change = draw_schedule(random)
    interrupt_random = Random(f"{seed}, and its interrupted changes of epochs")
    if interrupt_random.random() < 0.15:
        choose_change = interrupt_epoch_changes(choose_change, interrupt_random)
    return run, lambda: run.play(choose_change)


def explore_seed(
    seed: int,
    invariants: Sequence[Callable[[Simulation], None]] = INVARIANTS,
    *,
    histories: Path | None = None,
    workloads: Sequence[Workload] = STREAM,
) -> None:
    """Play the run of a seed, and check the invariants. `histories`: the folder of `record_simulation`, if any."""
    run, play = draw_run(seed, workloads)
    with nullcontext() if histories is None else record_simulation(run.simulation.scheduler, f"seed {seed}", histories):
        play()
    for invariant in invariants:
        invariant(run.simulation)


# --- the command


def _replay(version: int, changes: str, workload: Workload) -> int:
    """Replay the run with these changes ("31 driver-2, 40 kill"). Return the exit status."""
    parts = (part.strip().split(" ", 1) for part in changes.split(",") if part.strip())
    run = Run(version, tuple(Change(int(point), text) for point, text in parts), workload=workload)
    return 0 if _play_and_print(run, run.play) else 1


def _explore_version(options: argparse.Namespace, workload: Workload, version: int) -> Exploration:
    first, step = map(int, options.part.split(":"))

    def report_progress(exploration: Exploration) -> None:
        if exploration.schedules % RUNS_PER_LINE == 0:
            counts = f"{exploration.schedules} schedules, {len(exploration.failures)} failed"
            print(f"version {version}, so far: {counts}", flush=True)

    with counted_branches(EXACTLY_ONCE_BRANCHES):
        return explore_all(
            version,
            options.every,
            max_faults=options.faults,
            kinds=tuple(options.kinds),
            batches=options.batches,
            workload=workload,
            part=(first, step),
            report_progress=report_progress,
        )


def _play_and_print(run: Run, play: Callable[[], object]) -> bool:
    """Play a run, and print its schedule and errors. Return whether all invariants hold."""
    try:
        play()
        run.check()
    except Exception:
        traceback.print_exc()
        return False
    finally:
        print("\n".join(run.lines))
        for name, error in run.simulation.errors.items():
            print(f"{name} failed: {error}")
    return True


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_seed_arguments(parser)
    parser.add_argument(
        "--histories",
        type=Path,
        metavar="FOLDER",
        help="write the operations on the decision log of each seed, and delete the files of an earlier run",
    )
    parser.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="play all schedules with at most N switches between actors, with --jobs only for a single kind",
    )
    parser.add_argument(
        "--faults", type=int, default=1, metavar="N", help="with --every: at most N faults (default: 1)"
    )
    parser.add_argument(
        "--kinds", nargs="+", default=[KILL], choices=FAULT_KINDS, help="with --every: kinds of faults (default: kill)"
    )
    parser.add_argument(
        "--part", default="0:1", metavar="M:N", help="with --every: play every N-th first change, from the M-th on"
    )
    parser.add_argument(
        "--jobs",
        nargs="*",
        type=Workload,
        choices=JOBS,
        metavar="KIND",
        default=STREAM,
        help="the batches are batch jobs of these kinds, by default of all kinds in turn, not those of a stream; with "
        "--every or --replay, name one kind",
    )
    parser.add_argument("--batches", type=int, default=2, help="with --every: number of batches (default: 2)")
    parser.add_argument(
        "--replay",
        nargs=2,
        metavar=("VERSION", "CHANGES"),
        help="replay the schedule that a failure of --every has printed, with the same --jobs",
    )
    options = parser.parse_args()
    options.workloads = options.jobs or JOBS
    if len(options.workloads) > 1 and (options.every is not None or options.replay is not None):
        parser.error("--every and --replay play a single kind of jobs: name one, for example --jobs prefixed")
    return options


def main() -> int:
    options = _parse_options()
    workloads = options.workloads
    if options.replay is not None:
        return _replay(int(options.replay[0]), options.replay[1], workloads[0])
    if options.seed is not None:
        run, play = draw_run(options.seed, workloads)
        return 0 if _play_and_print(run, play) else 1
    if options.every is None:
        if options.histories is not None:
            delete_histories(options.histories)
        explore = partial(explore_seed, histories=options.histories, workloads=workloads)
        return explore_seeds(explore, EXACTLY_ONCE_BRANCHES, options)
    failure_count, counts = 0, BranchCounts(EXACTLY_ONCE_BRANCHES)
    versions = (1, 2)
    with ProcessPoolExecutor(min(options.processes, len(versions))) as processes:
        explorations = processes.map(partial(_explore_version, options, workloads[0]), versions)
        for version, exploration in zip(versions, explorations, strict=True):
            print(f"version {version}, {options.part} of the first changes: {exploration}", flush=True)
            for changes, error in exploration.failures:
                print(f'  --replay {version} "{", ".join(map(str, changes))}": {error}')
            counts.add(exploration.branch_counts)
            failure_count += len(exploration.failures)
    are_reached = report_counts(counts, required=options.require_branches)
    return 1 if failure_count or not are_reached else 0


if __name__ == "__main__":
    sys.exit(main())
