"""A Script: who stands still, where, and until when; who dies, and where. For tests that tell one interleaving."""

from __future__ import annotations

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
    """None: it dies there."""
    passed: int = 0


class Script:
    def __init__(self, world: World) -> None:
        self.world = world
        self._places: list[_Place] = []

    def holds(self, actor: str, number: int, until: Holds, *, since: Holds = lambda: True) -> None:
        """It stands still at one of its points until that is so; the first one `since` then is 0."""
        self._places.append(_Place(actor, since, number, until))

    def kills(self, actor: str, *, since: Holds, number: int = 0) -> None:
        self._places.append(_Place(actor, since, number, None))

    def ended(self, actor: str) -> bool:
        return any(each.name == actor and each.ended for each in self.world.stage.actors)

    def play(self) -> None:
        with one_process_at_a_time(self.world):
            self.world.stage.play(self._decide)

    def _decide(self, point: Point, chosen: Actor, others: Sequence[Actor]) -> Actor | None:
        free = [actor for actor in (chosen, *others) if not self._is_held(actor)]
        goes_on = free[0] if free else chosen
        here = [each for each in self._places if each.actor == goes_on.name and each.since()]
        if any(each.until is None and each.passed == each.number for each in here):
            self.world.stage.kill(goes_on)
            return None
        for each in here:
            each.passed += 1
        return goes_on

    def _is_held(self, actor: Actor) -> bool:
        return any(
            each.until is not None and each.passed == each.number and each.since() and not each.until()
            for each in self._places
            if each.actor == actor.name
        )
