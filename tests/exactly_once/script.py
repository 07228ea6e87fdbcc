"""Script: runs one interleaving, from instructions that suspend or kill actors at numbered points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.exactly_once.scheduler import Actor, SchedulingPoint
from tests.exactly_once.simulated_processes import isolated_processes
from tests.exactly_once.simulation import Simulation

Condition = Callable[[], bool]


def _always() -> bool:
    return True


@dataclass
class _Instruction:
    """Suspends or kills an actor at its point `number`, counted from the time at which `since` became true."""

    actor: str
    since: Condition
    number: int
    until: Condition | None
    """Condition that resumes the actor. None: the instruction kills the actor."""
    points_passed: int = 0

    def is_active(self, actor: Actor) -> bool:
        return self.actor == actor.name and self.since()


class Script:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._instructions: list[_Instruction] = []
        self._alternating: tuple[str, ...] = ()
        self._turns: Counter[str] = Counter()
        self._lost_responses: list[tuple[str, Callable[[Actor], bool]]] = []

    def alternate(self, first: str, second: str, *, first_points: int, second_points: int) -> None:
        """Let two actors pass these numbers of points, and alternate them after each point from then on."""
        self._alternating = first, second
        self._turns = Counter({first: -first_points, second: -second_points})

    def suspend(self, actor: str, point: int, *, until: Condition, since: Condition = _always) -> None:
        """Suspend the actor at its point number `point`, counted from 0 once `since` is true, until `until` is true."""
        self._instructions.append(_Instruction(actor, since, point, until))

    def kill(self, actor: str, *, since: Condition = _always, point: int = 0) -> None:
        """Kill the actor at its point number `point`, counted from 0 once `since` is true."""
        self._instructions.append(_Instruction(actor, since, point, None))

    def lose_response(self, actor: str, *, to: Callable[[Actor], bool]) -> None:
        """Let the actor lose the response to its first request for which `to` is true."""
        self._lost_responses.append((actor, to))

    def count_points(self, actor: str) -> int:
        """Return the number of points that the actor has passed since the start of one of its instructions."""
        return max(
            (instruction.points_passed for instruction in self._instructions if instruction.actor == actor), default=0
        )

    def has_ended(self, actor: str) -> bool:
        return any(each.name == actor and each.has_ended for each in self.simulation.scheduler.actors)

    def run(self) -> None:
        with isolated_processes(self.simulation):
            self.simulation.scheduler.run(self._choose_actor)

    def _choose_actor(self, point: SchedulingPoint, default: Actor, others: Sequence[Actor]) -> Actor | None:
        runnable = [actor for actor in (default, *others) if not self._is_suspended(actor)]
        chosen = self._choose_runnable(runnable) if runnable else default
        active = [instruction for instruction in self._instructions if instruction.is_active(chosen)]
        if any(instruction.until is None and instruction.points_passed == instruction.number for instruction in active):
            self.simulation.scheduler.kill(chosen)
            return None
        for instruction in active:
            instruction.points_passed += 1
        for lost in [lost for lost in self._lost_responses if lost[0] == chosen.name and lost[1](chosen)]:
            self._lost_responses.remove(lost)
            chosen.loses_next_response = True
        return chosen

    def _choose_runnable(self, runnable: Sequence[Actor]) -> Actor:
        """Return the alternating actor whose turn it is if both can continue, else the first runnable actor."""
        alternating = [actor for actor in runnable if actor.name in self._alternating]
        if len(alternating) < len(self._alternating) or not alternating:
            return runnable[0]
        chosen = min(alternating, key=lambda actor: (self._turns[actor.name], actor.name))
        self._turns[chosen.name] += 1
        return chosen

    def _is_suspended(self, actor: Actor) -> bool:
        return any(
            instruction.until is not None
            and instruction.points_passed == instruction.number
            and instruction.since()
            and not instruction.until()
            for instruction in self._instructions
            if instruction.actor == actor.name
        )
