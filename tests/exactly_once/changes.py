"""The changes by which a schedule deviates from the default, and random schedules of changes.

The explorer's docstring describes the effects of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.exactly_once.scheduler import STARTING, Actor, SchedulingPoint
from tests.exactly_once.simulation import WAITING_FOR_COMMIT, WAITING_FOR_TASKS
from tests.exactly_once.workloads import TIMEOUT_MS

KILL, LOSE_RESPONSE, LATE_REQUEST, STALE_READ = "kill", "lose-response", "late-request", "stale-read"
FAULT_KINDS = (KILL, LOSE_RESPONSE, LATE_REQUEST, STALE_READ)
WRITE_MARKERS, PASS_TIME = "write-markers", "pass-time"
STALE_READS = ("2 1", "2 2", "4 2", "4 3", "6 4")
"""Arguments of STALE_READ: the number of missing batches, and the number of reads."""
LATE_BY_POINTS = (1, 2, 4, 8, 16, 32, 64)
"""Arguments of LATE_REQUEST."""
PASSED_TIMES_MS = (TIMEOUT_MS + 1_000, TIMEOUT_MS - 5_000)
"""Arguments of PASS_TIME: longer than a transaction may last, or a little less."""


@dataclass(frozen=True)
class Change:
    """A deviation from the default schedule: the name of an actor, or one of the other changes of the explorer."""

    point: int
    text: str

    def __str__(self) -> str:
        return f"{self.point} {self.text}"

    @property
    def is_fault(self) -> bool:
        return self.text.startswith(FAULT_KINDS)


Changes = tuple[Change, ...]
ChooseChange = Callable[[SchedulingPoint, Actor, Sequence[Actor]], "str | None"]
"""Returns the text of the change at a point, or None. Arguments: the point, the default actor, the other actors."""


def expand_arguments(kind: str) -> Sequence[str]:
    """Return the texts of all faults of a kind."""
    if kind == STALE_READ:
        return [f"{kind} {arguments}" for arguments in STALE_READS]
    return [f"{kind} {points}" for points in LATE_BY_POINTS] if kind == LATE_REQUEST else [kind]


def possible_faults(actor: str, action: str) -> Sequence[str]:
    """Return the kinds of faults that are possible before this action of this actor.

    An InitProducerId request of a task is never late: see the explorer's docstring.
    """
    if action in (STARTING, WAITING_FOR_TASKS, WAITING_FOR_COMMIT):
        return ()
    is_read = action in ("DESCRIBE_TRANSACTIONS", "LIST_TRANSACTIONS", "LIST_OFFSETS", "FETCH")
    if action == "LIST_OFFSETS" and "attempt" not in actor and "task" not in actor:
        return KILL, LOSE_RESPONSE, STALE_READ
    if is_read or (action == "INIT_PRODUCER_ID" and "attempt" in actor):
        return KILL, LOSE_RESPONSE
    return KILL, LOSE_RESPONSE, LATE_REQUEST


# --- random schedules


def draw_schedule(random: Random) -> ChooseChange:
    """Draw how often actors switch and how many faults of each kind occur. Return a function that draws the changes.

    Most runs have few switches, because frequent switches leave each actor little undisturbed progress. In some runs
    the two drivers start at the same time.
    """
    switch_probability = random.choice((0.03, 0.08, 0.2))
    kills, lost_responses = random.choice((0, 0, 1, 2)), random.choice((0, 0, 1, 2))
    concurrent_start_points = random.choice((0, 0, 30))
    late_requests, time_passes = random.choice((0, 0, 1, 2)), random.choice((0, 0, 0, 1))
    faults_left = {KILL: kills, LOSE_RESPONSE: lost_responses, LATE_REQUEST: late_requests, PASS_TIME: time_passes}

    def choose_change(point: SchedulingPoint, default: Actor, others: Sequence[Actor]) -> str | None:
        for kind in (KILL, LOSE_RESPONSE, LATE_REQUEST):
            can_fail = faults_left[kind] and random.random() < 0.02
            if can_fail and kind in possible_faults(default.name, default.action):
                faults_left[kind] -= 1
                return kind if kind != LATE_REQUEST else f"{kind} {random.choice(LATE_BY_POINTS)}"
        if random.random() < 0.03:
            return WRITE_MARKERS
        if faults_left[PASS_TIME] and random.random() < 0.02:
            faults_left[PASS_TIME] -= 1
            return f"{PASS_TIME} {random.choice(PASSED_TIMES_MS)}"
        if others and random.random() < (0.4 if point.index < concurrent_start_points else switch_probability):
            return random.choice([actor.name for actor in others])
        return None

    return choose_change


def interrupt_epoch_changes(choose_change: ChooseChange, random: Random) -> ChooseChange:
    """Return a function that also loses responses to EndTxn, and suspends actors after that or after a new epoch.

    Drivers then meet more often a driver that was granted an epoch and has not claimed the prefix.
    """
    suspended_actor = ""
    """The actor that is to be suspended at its next point."""

    def choose(point: SchedulingPoint, default: Actor, others: Sequence[Actor]) -> str | None:
        nonlocal suspended_actor
        is_suspended, suspended_actor = default.name == suspended_actor, ""
        if is_suspended and others:
            return random.choice([actor.name for actor in others])
        is_interrupted = "driver" in default.name and random.random() < 0.2
        if is_interrupted and default.action in ("END_TXN", "INIT_PRODUCER_ID"):
            suspended_actor = default.name
            return LOSE_RESPONSE if default.action == "END_TXN" else None
        return choose_change(point, default, others)

    return choose
