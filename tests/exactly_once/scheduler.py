"""Scheduler: runs several simulated processes in one test, of which exactly one runs at any moment.

    scheduler = Scheduler(FakeSystem())
    cluster = SimulatedCluster(scheduler.system, ...)
    scheduler.add("driver", lambda actor: drive(actor.system))
    scheduler.add("late attempt", lambda actor: attempt(actor.system), suspended=True)
    scheduler.run(choose_actor)

An actor is blocking code in its own thread. Its System yields control to the scheduler before each request that can
affect another actor (SCHEDULED_APIS), and wherever a poll would wait. Between two of these requests an actor changes
nothing that another actor can observe, so a switch at any other place would make no difference. A broker handles the
request and responds before any other actor continues.

All actors share the virtual time of the FakeSystem. Time passes only while the actor that continues waits for it. An
actor can also `wait_for` a condition that another actor makes true.

The same choices produce the same run.
"""

from __future__ import annotations

import errno
import math
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from selectors import SelectorKey

from spark_kafka_sink.network.system import ByteSocket, Poller, SocketAddress, Waker
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages import list_supported_api_keys
from tests.fake_system import FakePoller, FakeSocket, FakeSystem

SCHEDULED_APIS = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.PRODUCE,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.LIST_OFFSETS,
        ApiKey.FETCH,
    }
)
"""Requests that are scheduling points. All other requests neither read nor change a transaction or a log."""
_LOG_READ_APIS = (ApiKey.LIST_OFFSETS, ApiKey.FETCH)
SHORT_WAIT_MS = 5_000
"""An actor that waits for at most this long stays the current actor, unless the schedule chooses another one."""
MAX_POINTS = 5_000
_SUPPORTED_KEYS = frozenset(int(key) for key in list_supported_api_keys())

STARTING = "start"
WAITING = "wait"


def create_acquired_lock() -> threading.Lock:
    """Return a lock that another thread releases to hand over control. It takes a third of a semaphore's time."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class ProcessKilled(BaseException):
    """Raised in an actor's thread to end its simulated process."""


class NoProgressError(AssertionError):
    """No actor can continue, or the run exceeds MAX_POINTS."""


@dataclass(frozen=True)
class SchedulingPoint:
    """A point of a run at which the schedule chooses the actor that continues.

    `actor` is the name of the actor that continues by default, and `action` is its next action.
    """

    index: int
    actor: str
    action: str


class Actor:
    """A simulated process in its own thread."""

    def __init__(self, scheduler: Scheduler, name: str, run: Callable[[Actor], None], *, suspended: bool) -> None:
        self.scheduler = scheduler
        self.name = name
        self.system = ActorSystem(self)
        self.action = STARTING
        """The next action of the actor: STARTING, WAITING, the name of an API, or the text given to `wait_for`."""
        self.resume_at_ms = -math.inf
        """The actor can continue from this time on, or earlier, as soon as `is_ready` returns true."""
        self.is_ready: Callable[[], bool] = lambda: True
        self.has_ended = False
        self.is_killed = False
        self.loses_next_response = False
        """Whether the actor's connections close instead of delivering the response to its next request."""
        self.intercept_next_request: Callable[[FakeSocket, bytes], None] | None = None
        """Receives the actor's next request instead of the broker. The connection is closed afterwards."""
        self.suspended_at = 0 if suspended else -1
        """The number of the suspension: 0 of an actor that was added suspended, otherwise 1 + the index of the point.

        -1: the actor is not suspended. The actor that was suspended last continues first.
        """
        self.error: BaseException | None = None
        self.responses_hash = 0
        """A hash of all responses that the actor has received. They determine its next actions."""
        self._last_api: ApiKey | None = None
        self._run = run
        self._may_run = create_acquired_lock()
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{self.name}: {'ended' if self.has_ended else self.action}"

    def can_continue(self) -> bool:
        return self.scheduler.system.now() >= self.resume_at_ms or self.is_ready()

    # --- in the scheduler's thread

    def resume(self) -> None:
        """Run the actor until it yields control."""
        self.scheduler.current = self
        self._may_run.release()
        self.scheduler.control_returned.acquire()
        self.scheduler.current = None

    def join(self) -> None:
        self._thread.join()

    # --- in the actor's thread

    def wait_for(self, is_ready: Callable[[], bool], action: str) -> None:
        """Wait until `is_ready` returns true. `action` describes the wait in the printed schedule."""
        self._yield_control(action, is_ready, math.inf)

    def before_request(self, sock: FakeSocket, data: bytes) -> None:
        if self.is_killed:
            raise ProcessKilled
        api = parse_api_key(data)
        if api not in SCHEDULED_APIS:
            return
        previous_api, self._last_api = self._last_api, api
        if api is ApiKey.FETCH and previous_api in _LOG_READ_APIS:
            return  # ListOffsets has fixed the range of the read, so later records do not change its result.
        self.scheduler.system.run_due()  # The brokers handle the requests that the actor has sent before.
        self._yield_control(api.name, lambda: True, -math.inf)
        if self.intercept_next_request is not None:
            intercept, self.intercept_next_request = self.intercept_next_request, None
            intercept(sock, data)
            sock.fail(errno.ECONNRESET)
            raise ConnectionResetError(errno.ECONNRESET, "the schedule delays this request")

    def after_response(self, data: memoryview) -> None:
        self.responses_hash = hash((self.responses_hash, bytes(data)))

    def before_wait(self, is_ready: Callable[[], bool], resume_at_ms: float) -> None:
        """Yield control for a long wait; advance the clock for a short one.

        After a short wait the same actor would continue anyway (Scheduler._choose_default).
        """
        system = self.scheduler.system
        if resume_at_ms - system.now() > SHORT_WAIT_MS:
            self._yield_control(WAITING, is_ready, resume_at_ms)
        elif not is_ready():
            system.jump_to(resume_at_ms)

    def _yield_control(self, action: str, is_ready: Callable[[], bool], resume_at_ms: float) -> None:
        if self.is_killed:
            raise ProcessKilled
        self.action, self.is_ready, self.resume_at_ms = action, is_ready, resume_at_ms
        self.scheduler.control_returned.release()
        self._may_run.acquire()
        if self.is_killed:
            raise ProcessKilled

    def _run_thread(self) -> None:
        self._may_run.acquire()
        try:
            if not self.is_killed:
                self._run(self)
        except ProcessKilled:
            pass
        except BaseException as error:  # Scheduler.run raises it again.
            self.error = error
        finally:
            self.system.close_sockets()
            self.has_ended = True
            self.scheduler.control_returned.release()


ChooseActor = Callable[[SchedulingPoint, Actor, Sequence[Actor]], "Actor | None"]
"""Chooses the actor that continues at a point, from the default actor and all other actors that can continue.

Returns None after it has killed the default actor; the scheduler then chooses again.
"""


def choose_default_actor(point: SchedulingPoint, default: Actor, others: Sequence[Actor]) -> Actor:
    """Return the default actor. As the schedule of a run, it never switches between actors."""
    return default


class Scheduler:
    def __init__(self, system: FakeSystem) -> None:
        self.system = system
        self.actors: list[Actor] = []
        self.points: list[SchedulingPoint] = []
        self.current: Actor | None = None
        self.control_returned = create_acquired_lock()
        self.has_killed_actor = False
        self.before_resume: Callable[[Actor], None] = lambda actor: None

    def state_hash(self) -> int:
        """Return a hash of the actors' state and of which actor continues next, without the state of the brokers."""
        now_ms = self.system.now()
        actors = [
            (actor.name, actor.action, actor.has_ended, actor.responses_hash, actor.suspended_at >= 0)
            for actor in self.actors
        ]
        suspended = sorted(
            (actor for actor in self.actors if actor.suspended_at >= 0), key=lambda actor: actor.suspended_at
        )
        return hash((now_ms, tuple(actors), tuple(actor.name for actor in suspended)))

    def add(self, name: str, run: Callable[[Actor], None], *, suspended: bool = False) -> Actor:
        """Add an actor. A `suspended` one starts when no other can continue, or when the schedule chooses it."""
        actor = Actor(self, name, run, suspended=suspended)
        self.actors.append(actor)
        return actor

    def run(self, choose_actor: ChooseActor = choose_default_actor) -> None:
        """Run until all actors have ended."""
        current: Actor | None = None
        try:
            while living := [actor for actor in self.actors if not actor.has_ended]:
                current = self._choose_next(current, living, choose_actor)
                self.has_killed_actor = self.has_killed_actor or current is None
                if current is not None:
                    self.before_resume(current)
                    current.resume()
                    if current.error is not None:
                        raise current.error
        finally:
            self._end_all()

    def kill(self, actor: Actor) -> None:
        """End the actor's process at its current point. Brokers handle the requests that it has already sent."""
        actor.is_killed = True
        actor.resume()

    def _end_all(self) -> None:
        for actor in self.actors:
            while not actor.has_ended:
                self.kill(actor)
            actor.join()

    def _choose_next(self, current: Actor | None, living: list[Actor], choose_actor: ChooseActor) -> Actor | None:
        if len(self.points) >= MAX_POINTS:
            raise NoProgressError(f"the run exceeds {MAX_POINTS} scheduling points: {living}")
        chosen = self._choose_default(current, living)
        if not chosen.can_continue():
            self.system.jump_to(chosen.resume_at_ms)
        elif chosen.action != WAITING:
            others = [actor for actor in living if actor is not chosen and actor.can_continue()]
            point = SchedulingPoint(len(self.points), chosen.name, chosen.action)
            self.points.append(point)
            scheduled = choose_actor(point, chosen, others)
            if scheduled is None or scheduled is not chosen:
                chosen.suspended_at = point.index + 1
            if scheduled is None:
                return None
            chosen = scheduled
        chosen.suspended_at = -1
        return chosen

    def _choose_default(self, current: Actor | None, living: list[Actor]) -> Actor:
        """Return the current actor if it can continue, then one that is not suspended, then the last suspended one."""
        now_ms = self.system.now()
        in_order = sorted(
            living, key=lambda actor: (actor is not current, actor.suspended_at >= 0, -actor.suspended_at)
        )
        for max_wait_ms in (0, SHORT_WAIT_MS):
            for actor in in_order:
                wait_ms = actor.resume_at_ms - now_ms
                if actor.can_continue() or (actor is current and wait_ms <= SHORT_WAIT_MS):
                    return actor
                if actor.suspended_at < 0 and wait_ms <= max_wait_ms:
                    return actor
        chosen = min(in_order, key=lambda actor: actor.resume_at_ms)
        if chosen.resume_at_ms == math.inf:
            raise NoProgressError(f"no actor can continue: {living}")
        return chosen


class ActorSystem:
    """The System of one actor: the shared clock and network, and the actor's own sockets."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._shared = actor.scheduler.system
        self._sockets: list[FakeSocket] = []

    def now(self) -> float:
        return self._shared.now()

    def wall_ms(self) -> int:
        return self._shared.wall_ms()

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        return self._shared.resolve(host, port)

    def find_canonical_name(self, address: SocketAddress) -> str:
        return self._shared.find_canonical_name(address)

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        if self._actor.is_killed:
            raise ProcessKilled
        sock = self._shared.connect(address, send_buffer_bytes, receive_buffer_bytes)
        assert isinstance(sock, FakeSocket)
        sock.before_write = lambda data: self._actor.before_request(sock, data)
        sock.after_read = self._actor.after_response
        self._sockets.append(sock)
        return sock

    def run_in_background(self, run: Callable[[], None], name: str) -> None:
        self._shared.run_in_background(run, name)

    def create_poller(self) -> Poller:
        return _ActorPoller(self._actor)

    def create_waker_pair(self) -> tuple[Waker, Waker]:
        return self._shared.create_waker_pair()

    def at(self, time_ms: float, action: Callable[[], None]) -> None:
        """Schedule an action of the FakeSystem. InlineLoop calls this method."""
        self._shared.at(time_ms, action)

    def close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()

    def lose_responses(self) -> None:
        """Close the connections. Brokers handle the requests that were sent, and their responses are lost."""
        for sock in self._sockets:
            if sock.connection is not None and not sock.closed:
                sock.incoming.clear()
                sock.connection.reset()


class _ActorPoller(FakePoller):
    """A poller that yields control to the scheduler instead of waiting."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.scheduler.system)
        self._actor = actor

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        system = self._system
        deadline_ms = math.inf if timeout is None else system.now() + max(0.0, timeout * 1000.0)
        while True:
            if self._actor.is_killed:
                raise ProcessKilled
            system.run_due()
            ready = self._ready()
            if ready and self._actor.loses_next_response:
                self._actor.loses_next_response = False
                self._actor.system.lose_responses()
                continue
            if ready or system.now() >= deadline_ms:
                return ready
            self._actor.before_wait(self._is_ready, min(deadline_ms, system.next_event_ms()))

    def _is_ready(self) -> bool:
        self._system.run_due()
        return bool(self._ready())


def parse_api_key(data: bytes) -> ApiKey | None:
    """Return the API key of the request that begins with these bytes, or None if it is unknown or incomplete."""
    if len(data) < 6:
        return None
    key = struct.unpack_from(">h", data, 4)[0]
    return ApiKey(key) if key in _SUPPORTED_KEYS else None
