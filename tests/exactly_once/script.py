"""Script: plays one interleaving, by instructions that suspend or kill actors at numbered points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.exactly_once.interleaving import Actor, Point
from tests.exactly_once.lives import World, one_process_at_a_time

Holds = Callable[[], bool]


@dataclass
class _Place:
    actor: str
    since: Holds
    number: int
    until: Holds | None
    """Condition that resumes the actor; None kills the actor instead."""
    passed: int = 0


class Script:
    def __init__(self, world: World) -> None:
        self.world = world
        self._places: list[_Place] = []
        self._in_step: tuple[str, str] | None = None
        self._lead: Counter[str] = Counter()
        self._losing: list[tuple[str, Callable[[Actor], bool]]] = []

    def in_step(self, one: str, other: str, first: int, second: int) -> None:
        """Let one actor pass `first` points and the other `second`, and alternate them from then on."""
        self._in_step = one, other
        self._lead = Counter({one: -first, other: -second})

    def holds(self, actor: str, number: int, until: Holds, *, since: Holds = lambda: True) -> None:
        """Suspend the actor at its point `number`, counted from 0 once `since` is true, until `until` is true."""
        self._places.append(_Place(actor, since, number, until))

    def kills(self, actor: str, *, since: Holds, number: int = 0) -> None:
        self._places.append(_Place(actor, since, number, None))

    def loses_answer(self, actor: str, *, to: Callable[[Actor], bool]) -> None:
        """Let the actor lose the response to its first request for which `to` is true."""
        self._losing.append((actor, to))

    def passed(self, actor: str) -> int:
        """Return the number of points that the actor has passed since the start of one of its instructions."""
        return max((each.passed for each in self._places if each.actor == actor), default=0)

    def ended(self, actor: str) -> bool:
        return any(each.name == actor and each.ended for each in self.world.stage.actors)

    def play(self) -> None:
        with one_process_at_a_time(self.world):
            self.world.stage.play(self._decide)

    def _decide(self, point: Point, chosen: Actor, others: Sequence[Actor]) -> Actor | None:
        free = [actor for actor in (chosen, *others) if not self._is_held(actor)]
        goes_on = self._whose_turn(free) if free else chosen
        here = [each for each in self._places if each.actor == goes_on.name and each.since()]
        if any(each.until is None and each.passed == each.number for each in here):
            self.world.stage.kill(goes_on)
            return None
        for each in here:
            each.passed += 1
        for losing in [each for each in self._losing if each[0] == goes_on.name and each[1](goes_on)]:
            self._losing.remove(losing)
            goes_on.loses_answer = True
        return goes_on

    def _whose_turn(self, free: Sequence[Actor]) -> Actor:
        in_step = [actor for actor in free if self._in_step is not None and actor.name in self._in_step]
        if len(in_step) < len(self._in_step or ()) or not in_step:
            return free[0]
        goes_on = min(in_step, key=lambda actor: (self._lead[actor.name], actor.name))
        self._lead[goes_on.name] += 1
        return goes_on

    def _is_held(self, actor: Actor) -> bool:
        return any(
            each.until is not None and each.passed == each.number and each.since() and not each.until()
            for each in self._places
            if each.actor == actor.name
        )
