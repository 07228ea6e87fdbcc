"""Runs many producers in virtual time: callers and senders take turns, and time passes only when none can continue.

A caller is a thread, like a task in a Spark worker. Only one caller or sender runs at any moment. When a caller would
block (on memory, metadata or an acknowledgement), it gives the turn back and names the condition for which it waits.
Senders have no threads: `Turns.run` runs a round of each sender that has something to read, or whose wait is over.
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
"""Maximum number of rounds in a row without passing time. More of them mean that a caller or sender spins."""


class SharedSystem(FakeSystem):
    """System whose pollers never wait. They record until when they would wait, and others take their turns."""

    newest_poller: TurnPoller

    def poller(self) -> Poller:
        self.newest_poller = TurnPoller(self)
        return self.newest_poller


class TurnPoller(FakePoller):
    """Poller that returns immediately. `wake_at_ms` is the time at which its wait would end."""

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
    """Thread that runs only when it has the turn. `error` is the exception that ended it, or None."""

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
        """Let the thread run until it waits or ends. Called by the thread that runs `Turns.run`."""
        self._turns.current = self
        self._turn.release()
        self._back.acquire()

    def wait(self, may_go_on: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Give the turn back until `may_go_on` returns True or the timeout has passed.

        Return the last result of `may_go_on`. Called by the caller's own thread.
        """
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
        except BaseException as error:  # Turns.run raises it in its own thread
            self.error = error
        self.ended = True
        self._back.release()


class TurnLoop:
    """SenderLoop whose rounds are turns. Only one caller uses its producer."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._woken = False  # True once a caller closes the producer
        self._running = False
        self._ended = False
        self.sender: Sender
        self.poller: TurnPoller

    def start(self, sender: Sender, name: str) -> None:
        self.sender = sender
        self.poller = self._turns.system.newest_poller  # that of the producer, which was just created
        self._turns.loops.append(self)

    @property
    def is_due(self) -> bool:
        """Whether the sender has something to read, has waited long enough, or was woken."""
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
            metadata.await_update(last_version, 0)  # raises MetadataTimeoutError

    def wait(self, event: threading.Event, timeout_ms: float | None) -> bool:
        return self._turns.current.wait(event.is_set, timeout_ms)

    def join(self, timeout_ms: float | None) -> bool:
        if not self._ended:
            self._woken = True  # so that the sender runs and can finish
            if not self._turns.current.wait(lambda: self.sender.is_finished, timeout_ms):
                return False
            self._ended = True
            self._turns.loops.remove(self)
            self.sender.shut_down()
        return True

    def is_current(self) -> bool:
        return self._running


class Turns:
    """Gives turns to callers and senders, and advances the virtual time."""

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
        """Give a turn to each sender and each caller that can continue. Return whether there was one."""
        now = self.system.now()
        loops = [loop for loop in self.loops if loop.is_due]
        for loop in loops:
            loop.run_once()
        callers = [caller for caller in waiting if caller.until_ms <= now or caller.may_go_on()]
        for caller in callers:
            caller.give_turn()
        return bool(loops or callers)

    def _let_time_pass(self, waiting: list[Caller]) -> None:
        """Advance the time to the next event, or to the end of the first wait."""
        upcoming = min(
            self.system.next_event_ms(),
            min((loop.poller.wake_at_ms for loop in self.loops), default=math.inf),
            min(caller.until_ms for caller in waiting),
        )
        assert upcoming < math.inf, "nothing is going to happen, and somebody waits"
        self.system.jump_to(upcoming)
