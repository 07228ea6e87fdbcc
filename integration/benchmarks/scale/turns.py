"""Many producers in one virtual time: who may go on, one after the other, until time has to pass.

A caller is a thread, as the task of a Spark worker is one, and of all callers and senders one runs at any moment. Where
a caller would block (memory, metadata, an acknowledgement) it hands the turn back with what it waits for. Senders have
no threads: `Turns.run` gives a round to each that has something to read, or whose wait is over.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.network.system import Poller
from spark_kafka_sink.producer.sending.sender import Sender
from tests.fake_system import FakePoller, FakeSystem

ROUNDS_MAX = 100_000
"""More turns than this at one moment are a fault: somebody spins."""


class SharedSystem(FakeSystem):
    """Its pollers wait for nothing: they note until when they would, and the turn goes to another."""

    newest_poller: TurnPoller

    def poller(self) -> Poller:
        self.newest_poller = TurnPoller(self)
        return self.newest_poller


class TurnPoller(FakePoller):
    def __init__(self, system: FakeSystem) -> None:
        super().__init__(system)
        self.wake_at_ms = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = self._ready()
        wait_ms = math.inf if timeout is None else max(0.0, timeout * 1000.0)
        self.wake_at_ms = self._system.now() + (0.0 if found else wait_ms)
        return found

    @property
    def is_due(self) -> bool:
        return self.wake_at_ms <= self._system.now() or bool(self._ready())


class Caller:
    """A thread that runs when it is its turn. `ended`: by what, if that was an error."""

    def __init__(self, turns: Turns, work: Callable[[Caller], None]) -> None:
        self.ended = False
        self.error: BaseException | None = None
        self.until_ms = 0.0
        self.may_go_on: Callable[[], bool] = lambda: True
        self._turns = turns
        self._work = work
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give_turn(self) -> None:
        """Let the thread run until it waits or has ended. Called by the thread of Turns."""
        self._turns.current = self
        self._turn.release()
        self._back.acquire()

    def wait(self, may_go_on: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """From its own thread: hand the turn back. Was there what it waited for, or has the time passed?"""
        self.may_go_on = may_go_on
        self.until_ms = math.inf if timeout_ms is None else self._turns.system.now() + timeout_ms
        self._back.release()
        self._turn.acquire()
        return may_go_on()

    def pause(self, pause_ms: float) -> None:
        self.wait(lambda: False, pause_ms)

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._work(self)
        except BaseException as error:  # raised by Turns.run, in the thread of the test
            self.error = error
        self.ended = True
        self._back.release()


class TurnLoop:
    """A SenderLoop whose rounds are turns. Its producer is used by one caller."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._woken = False  # by a caller that closes it
        self._running = False
        self._ended = False
        self.sender: Sender
        self.poller: TurnPoller

    def start(self, sender: Sender, name: str) -> None:
        self.sender = sender
        self.poller = self._turns.system.newest_poller  # each producer has one, and was just made
        self._turns.loops.append(self)

    @property
    def is_due(self) -> bool:
        """Has its sender something to read, waited long enough, or been woken?"""
        return self._woken or self.sender.client._selector._is_wakeup_requested or self.poller.is_due

    def run_once(self) -> None:
        self._running = True
        self._woken = False
        try:
            self.sender.run_once(self._turns.system.now())
        finally:
            self._running = False

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        if not self._turns.current.wait(lambda: metadata.version > last_version, timeout_ms):
            metadata.await_update(last_version, 0)

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool:
        return self._turns.current.wait(event.is_set, timeout_ms)

    def join(self, timeout_ms: float | None) -> bool:
        if not self._ended:
            self._woken = True  # by the close that waits here
            if not self._turns.current.wait(lambda: self.sender.is_finished, timeout_ms):
                return False
            self._ended = True
            self._turns.loops.remove(self)
            self.sender.shut_down()
        return True

    def is_current(self) -> bool:
        return self._running


class Turns:
    def __init__(self, system: SharedSystem) -> None:
        self.system = system
        self.loops: list[TurnLoop] = []
        self.current: Caller
        self.after_round: Callable[[], None] = lambda: None

    def run(self, works: list[Callable[[Caller], None]]) -> None:
        """Run until all threads have ended. Raise the error of the first one that failed."""
        waiting = [Caller(self, work) for work in works]
        for caller in waiting:
            caller.start()
        rounds = 0
        while waiting:
            self.system.run_due()
            ran = self._give_turns(waiting)
            for caller in [caller for caller in waiting if caller.ended]:
                waiting.remove(caller)
                if caller.error is not None:
                    raise caller.error
            self.after_round()
            rounds = rounds + 1 if ran else 0
            assert rounds < ROUNDS_MAX, "somebody spins: time does not pass"
            if not ran and waiting:
                self._let_time_pass(waiting)

    def _give_turns(self, waiting: list[Caller]) -> bool:
        """Give a turn to each thread that can continue. Return whether there was one."""
        now = self.system.now()
        loops = [loop for loop in self.loops if loop.is_due]
        for loop in loops:
            loop.run_once()
        callers = [caller for caller in waiting if caller.until_ms <= now or caller.may_go_on()]
        for caller in callers:
            caller.give_turn()
        return bool(loops or callers)

    def _let_time_pass(self, waiting: list[Caller]) -> None:
        upcoming = min(
            self.system.next_event_ms(),
            min((loop.poller.wake_at_ms for loop in self.loops), default=math.inf),
            min(caller.until_ms for caller in waiting),
        )
        assert upcoming < math.inf, "nothing is going to happen, and somebody waits"
        self.system.jump_to(upcoming)
