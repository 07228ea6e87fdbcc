"""Stage: runs several simulated processes in one test, of which exactly one runs at any moment.

    stage = Stage(FakeSystem())
    cluster = SimulatedCluster(stage.system, ...)
    stage.add("driver", lambda actor: drive(actor.system))
    stage.add("late attempt", lambda actor: attempt(actor.system), latent=True)
    stage.play(decide)

An actor is blocking code in a thread of its own. It has a System of its own, whose sockets give the baton back before
each request that matters (MATTERS) and whose polls give it back where they would wait. Between two requests an actor
changes nothing that others could see, so these are all the places where it can matter who goes on. The request itself
is carried out and answered before any other actor goes on.

Time is that of the FakeSystem. It passes only where the actor that goes on waits for it. An actor that `wait_for`s
something which another one does goes on when that is so.

The same decisions make the same run.
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
from spark_kafka_sink.protocol.messages import supported_api_keys
from tests.fake_system import FakePoller, FakeSocket, FakeSystem

MATTERS = frozenset(
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
"""The others change nothing of a transaction or of the log, and do not ask for it."""
_READS_THE_LOG = (ApiKey.LIST_OFFSETS, ApiKey.FETCH)
SHORT_WAIT_MS = 5_000
"""An actor that waits for so long is still the one that goes on, unless it is decided otherwise."""
STEPS_MAX = 5_000
_KNOWN = frozenset(int(key) for key in supported_api_keys())


def new_baton() -> threading.Lock:
    """A lock that is released by the thread which lets another one go on: in a third of the time of a semaphore."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class Death(BaseException):
    """Raised in an actor to end its simulated process."""


class Stuck(AssertionError):
    """Raised when no actor can continue."""


@dataclass(frozen=True)
class Point:
    """A point at which the stage chooses the actor that continues. `actor` is about to do `what`."""

    index: int
    actor: str
    what: str


class Actor:
    """A simulated process, in a thread of its own."""

    def __init__(self, stage: Stage, name: str, run: Callable[[Actor], None], *, latent: bool) -> None:
        self.stage = stage
        self.name = name
        self.system = ActorSystem(self)
        self.what = "begin"
        self.until_ms = -math.inf
        """The actor may continue from this time on, or as soon as `is_ready` returns true."""
        self.is_ready: Callable[[], bool] = lambda: True
        self.ended = False
        self.dies = False
        self.loses_answer = False
        """Whether the actor's connections close instead of delivering the response to its next request."""
        self.sends_late: Callable[[FakeSocket, bytes], None] | None = None
        """Receives the actor's next request instead of the broker, and the connection closes."""
        self.stalled_at = 0 if latent else -1
        """The point at which the actor was suspended; -1 if it is not. The last suspended actor continues first."""
        self.error: BaseException | None = None
        self.known = 0
        """A hash of all responses that the actor has received, which determine its next steps."""
        self.api: ApiKey | None = None
        self._run = run
        self._go = new_baton()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{self.name}: {'ended' if self.ended else self.what}"

    def can_go(self) -> bool:
        return self.stage.system.now() >= self.until_ms or self.is_ready()

    # --- in the stage's thread

    def go_on(self) -> None:
        """Let the actor run until it returns the baton."""
        self.stage.current = self
        self._go.release()
        self.stage.baton.acquire()
        self.stage.current = None

    def join(self) -> None:
        self._thread.join()

    # --- in its own thread

    def wait_for(self, is_ready: Callable[[], bool], what: str) -> None:
        self._give_back(what, is_ready, math.inf)

    def before_request(self, sock: FakeSocket, data: bytes) -> None:
        if self.dies:
            raise Death
        api = api_of(data)
        if api not in MATTERS:
            return
        before, self.api = self.api, api
        if api is ApiKey.FETCH and before in _READS_THE_LOG:
            return  # what it reads was fixed by its end
        self.stage.system.run_due()  # what it has sent before is carried out
        self._give_back(api.name, lambda: True, -math.inf)
        if self.sends_late is not None:
            late, self.sends_late = self.sends_late, None
            late(sock, data)
            sock.fail(errno.ECONNRESET)
            raise ConnectionResetError(errno.ECONNRESET, "the request comes late")

    def after_answer(self, data: memoryview) -> None:
        self.known = hash((self.known, bytes(data)))

    def before_wait(self, is_ready: Callable[[], bool], until_ms: float) -> None:
        """After a short wait it goes on in any case (Stage._by_default): so nothing is given back for one."""
        system = self.stage.system
        if until_ms - system.now() > SHORT_WAIT_MS:
            self._give_back("wait", is_ready, until_ms)
        elif not is_ready():
            system.jump_to(until_ms)

    def _give_back(self, what: str, is_ready: Callable[[], bool], until_ms: float) -> None:
        if self.dies:
            raise Death
        self.what, self.is_ready, self.until_ms = what, is_ready, until_ms
        self.stage.baton.release()
        self._go.acquire()
        if self.dies:
            raise Death

    def _live(self) -> None:
        self._go.acquire()
        try:
            if not self.dies:
                self._run(self)
        except Death:
            pass
        except BaseException as error:  # raised again by the stage
            self.error = error
        finally:
            self.system.die()
            self.ended = True
            self.stage.baton.release()


Decide = Callable[[Point, Actor, Sequence[Actor]], "Actor | None"]
"""At a point: the actor that would go on, and all others that could. Return the one that does; None to be asked again,
when the first was killed."""


class Stage:
    def __init__(self, system: FakeSystem) -> None:
        self.system = system
        self.actors: list[Actor] = []
        self.points: list[Point] = []
        self.current: Actor | None = None
        self.baton = new_baton()
        self.has_killed = False
        """Whether an actor was killed."""
        self.before_going_on: Callable[[Actor], None] = lambda actor: None

    def state(self) -> int:
        """Return a hash of the actors' state and of which one continues next, without the state of the brokers."""
        now = self.system.now()
        actors = [(each.name, each.what, each.ended, each.known, each.stalled_at >= 0) for each in self.actors]
        stalled = sorted((each for each in self.actors if each.stalled_at >= 0), key=lambda each: each.stalled_at)
        return hash((now, tuple(actors), tuple(each.name for each in stalled)))

    def add(self, name: str, run: Callable[[Actor], None], *, latent: bool = False) -> Actor:
        """Add an actor. A `latent` one begins when no other can continue, or when `decide` chooses it."""
        actor = Actor(self, name, run, latent=latent)
        self.actors.append(actor)
        return actor

    def play(self, decide: Decide) -> None:
        """Run until all actors have ended."""
        current: Actor | None = None
        try:
            while living := [actor for actor in self.actors if not actor.ended]:
                current = self._next(current, living, decide)
                self.has_killed = self.has_killed or current is None
                if current is not None:
                    self.before_going_on(current)
                    current.go_on()
                    if current.error is not None:
                        raise current.error
        finally:
            self.end()

    def kill(self, actor: Actor) -> None:
        """End the actor's process at its current point. Its sent requests are executed, and it closes nothing."""
        actor.dies = True
        actor.go_on()

    def end(self) -> None:
        for actor in self.actors:
            while not actor.ended:
                self.kill(actor)
            actor.join()

    def _next(self, current: Actor | None, living: list[Actor], decide: Decide) -> Actor | None:
        if len(self.points) >= STEPS_MAX:
            raise Stuck(f"this never ends: {living}")
        chosen = self._by_default(current, living)
        if not chosen.can_go():
            self.system.jump_to(chosen.until_ms)
        elif chosen.what != "wait":
            others = [actor for actor in living if actor is not chosen and actor.can_go()]
            point = Point(len(self.points), chosen.name, chosen.what)
            self.points.append(point)
            decided = decide(point, chosen, others)
            if decided is None or decided is not chosen:
                chosen.stalled_at = point.index + 1
            if decided is None:
                return None
            chosen = decided
        chosen.stalled_at = -1
        return chosen

    def _by_default(self, current: Actor | None, living: list[Actor]) -> Actor:
        """Return the current actor if it can continue, then one that is not suspended, then the last suspended one."""
        now = self.system.now()
        in_order = sorted(living, key=lambda actor: (actor is not current, actor.stalled_at >= 0, -actor.stalled_at))
        for longest_ms in (0, SHORT_WAIT_MS):
            for actor in in_order:
                if actor.can_go() or (actor is current and actor.until_ms - now <= SHORT_WAIT_MS):
                    return actor
                if actor.stalled_at < 0 and actor.until_ms - now <= longest_ms:
                    return actor
        chosen = min(in_order, key=lambda actor: actor.until_ms)
        if chosen.until_ms == math.inf:
            raise Stuck(f"no actor can go on: {living}")
        return chosen


class ActorSystem:
    """The System of one actor: the shared clock and network, and its own sockets."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._all = actor.stage.system
        self._sockets: list[FakeSocket] = []

    def now(self) -> float:
        return self._all.now()

    def wall_ms(self) -> int:
        return self._all.wall_ms()

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        return self._all.resolve(host, port)

    def canonical_name(self, address: SocketAddress) -> str:
        return self._all.canonical_name(address)

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        if self._actor.dies:
            raise Death
        sock = self._all.connect(address, send_buffer_bytes, receive_buffer_bytes)
        assert isinstance(sock, FakeSocket)
        sock.before_write = lambda data: self._actor.before_request(sock, data)
        sock.after_read = self._actor.after_answer
        self._sockets.append(sock)
        return sock

    def run_in_background(self, run: Callable[[], None], name: str) -> None:
        self._all.run_in_background(run, name)

    def poller(self) -> Poller:
        return _ActorPoller(self._actor)

    def waker(self) -> tuple[Waker, Waker]:
        return self._all.waker()

    # of a FakeSystem, for InlineLoop

    def at(self, time_ms: float, action: Callable[[], None]) -> None:
        self._all.at(time_ms, action)

    def die(self) -> None:
        for sock in self._sockets:
            sock.close()

    def lose_answers(self) -> None:
        """Close the connections: requests that were sent are executed, and their responses are lost."""
        for sock in self._sockets:
            if sock.connection is not None and not sock.closed:
                sock.incoming.clear()
                sock.connection.reset()


class _ActorPoller(FakePoller):
    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.stage.system)
        self._actor = actor

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        system = self._system
        deadline = math.inf if timeout is None else system.now() + max(0.0, timeout * 1000.0)
        while True:
            if self._actor.dies:
                raise Death
            system.run_due()
            ready = self._ready()
            if ready and self._actor.loses_answer:
                self._actor.loses_answer = False
                self._actor.system.lose_answers()
                continue
            if ready or system.now() >= deadline:
                return ready
            until = min(deadline, system.next_event_ms())
            self._actor.before_wait(self._is_ready, until)

    def _is_ready(self) -> bool:
        self._system.run_due()
        return bool(self._ready())


def api_of(data: bytes) -> ApiKey | None:
    """Return the API key of the request that begins with these bytes."""
    if len(data) < 6:
        return None
    key = struct.unpack_from(">h", data, 4)[0]
    return ApiKey(key) if key in _KNOWN else None
