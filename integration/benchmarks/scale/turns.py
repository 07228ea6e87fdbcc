"""Turns: many producers in virtual time, whose callers and senders take turns. Time passes only when none can continue.

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
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.sending.sender import Sender
from tests.fake_system import FakePoller, FakeSystem

MAX_IDLE_ROUNDS = 100_000
"""Maximum number of rounds in a row without passing time. More of them mean that a caller or sender spins."""


class SharedSystem(FakeSystem):
    """System whose pollers never wait. They record until when they would wait, and others take their turns."""

    newest_poller: TurnPoller

    def create_poller(self) -> Poller:
        self.newest_poller = TurnPoller(self)
        return self.newest_poller


class TurnPoller(FakePoller):
    """Poller that returns immediately. `wake_at_ms` is the time at which its wait would end."""

    def __init__(self, system: FakeSystem) -> None:
        super().__init__(system)
        self.wake_at_ms = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready_sockets = self._ready()
        wait_ms = math.inf if timeout is None else max(0.0, timeout * 1000.0)
        self.wake_at_ms = self._system.now() + (0.0 if ready_sockets else wait_ms)
        return ready_sockets

    @property
    def is_due(self) -> bool:
        return self.wake_at_ms <= self._system.now() or bool(self._ready())


class Caller:
    """Thread that runs only when it has the turn. `error` is the exception that ended it, or None."""

    def __init__(self, turns: Turns, function: Callable[[Caller], None]) -> None:
        self.has_ended = False
        self.error: BaseException | None = None
        self.until_ms = 0.0
        self.can_continue: Callable[[], bool] = lambda: True
        self._turns = turns
        self._function = function
        self._turn = threading.Semaphore(0)
        self._turn_returned = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def give_turn(self) -> None:
        """Let the thread run until it waits or ends. Called by the thread that runs `Turns.run`."""
        self._turns.current = self
        self._turn.release()
        self._turn_returned.acquire()

    def wait(self, can_continue: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Give the turn back until `can_continue` returns True or the timeout has passed.

        Return the last result of `can_continue`. Called by the caller's own thread.
        """
        self.can_continue = can_continue
        self.until_ms = math.inf if timeout_ms is None else self._turns.system.now() + timeout_ms
        self._turn_returned.release()
        self._turn.acquire()
        return can_continue()

    def pause(self, pause_ms: float) -> None:
        self.wait(lambda: False, pause_ms)

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._function(self)
        except BaseException as error:  # Turns.run raises it in its own thread
            self.error = error
        self.has_ended = True
        self._turn_returned.release()


class TurnLoop:
    """SenderLoop whose rounds are turns. Only one caller uses its producer."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_woken = False  # True once a caller closes the producer
        self._is_running = False
        self._has_ended = False
        self.sender: Sender
        self.poller: TurnPoller

    def start(self, sender: Sender, name: str) -> None:
        self.sender = sender
        self.poller = self._turns.system.newest_poller  # that of the producer, which was just created
        self._turns.loops.append(self)

    @property
    def is_due(self) -> bool:
        """Whether the sender has something to read, has waited long enough, or was woken."""
        return self._is_woken or self.sender.client._selector._is_wakeup_requested or self.poller.is_due

    def run_once(self) -> None:
        self._is_running = True
        self._is_woken = False
        try:
            self.sender.run_once(self._turns.system.now())
        finally:
            self._is_running = False

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        if not self._turns.current.wait(lambda: metadata.version > last_version, timeout_ms):
            metadata.await_update(last_version, 0)  # raises MetadataTimeoutError

    def wait(self, event: OneTimeEvent, timeout_ms: float | None) -> bool:
        return self._turns.current.wait(event.is_set, timeout_ms)

    def join(self, timeout_ms: float | None) -> bool:
        if not self._has_ended:
            self._is_woken = True  # so that the sender runs and can finish
            if not self._turns.current.wait(lambda: self.sender.is_finished, timeout_ms):
                return False
            self._has_ended = True
            self._turns.loops.remove(self)
            self.sender.shut_down()
        return True

    def is_current(self) -> bool:
        return self._is_running


class Turns:
    """Gives turns to callers and senders, and advances the virtual time."""

    def __init__(self, system: SharedSystem) -> None:
        self.system = system
        self.loops: list[TurnLoop] = []
        self.current: Caller
        self.after_round: Callable[[], None] = lambda: None

    def run(self, functions: list[Callable[[Caller], None]]) -> None:
        """Run until all threads have ended. Raise the error of the first one that failed."""
        unfinished_callers = [Caller(self, function) for function in functions]
        for caller in unfinished_callers:
            caller.start()
        rounds = 0
        while unfinished_callers:
            self.system.run_due()
            has_run = self._give_turns(unfinished_callers)
            for caller in [caller for caller in unfinished_callers if caller.has_ended]:
                unfinished_callers.remove(caller)
                if caller.error is not None:
                    raise caller.error
            self.after_round()
            rounds = rounds + 1 if has_run else 0
            assert rounds < MAX_IDLE_ROUNDS, "a caller or sender runs forever without waiting"
            if not has_run and unfinished_callers:
                self._advance_time(unfinished_callers)

    def _give_turns(self, unfinished_callers: list[Caller]) -> bool:
        """Give a turn to each sender and each caller that can continue. Return whether there was one."""
        now = self.system.now()
        loops = [loop for loop in self.loops if loop.is_due]
        for loop in loops:
            loop.run_once()
        callers = [caller for caller in unfinished_callers if caller.until_ms <= now or caller.can_continue()]
        for caller in callers:
            caller.give_turn()
        return bool(loops or callers)

    def _advance_time(self, unfinished_callers: list[Caller]) -> None:
        """Advance the time to the next event, or to the end of the first wait."""
        next_event_ms = min(
            self.system.next_event_ms(),
            min((loop.poller.wake_at_ms for loop in self.loops), default=math.inf),
            min(caller.until_ms for caller in unfinished_callers),
        )
        assert next_event_ms < math.inf, "deadlock: a caller waits, and no event is scheduled"
        self.system.jump_to(next_event_ms)
