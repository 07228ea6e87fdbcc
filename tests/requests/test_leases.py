"""Leased clients. A stand-in takes the client's place: only when it is made and closed matters here."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import ClassVar

import pytest

from spark_kafka_sink.requests.leases import Leases
from tests.waiting import PATIENCE_SECONDS

KEY = "a:1"
MAX_IDLE = 8


class StandIn:
    def __init__(self, key: str) -> None:
        self.key = key
        self.closed_with: str | None = None

    def close(self, how: str) -> None:
        assert self.closed_with is None, "closed twice"
        self.closed_with = how


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self) -> None:
        self.made: list[StandIn] = []
        self.clock = Clock()
        self.pool: Leases[StandIn] = Leases(
            lambda client: client.close("close"),
            discard=lambda client: client.close("discard"),
            max_idle=MAX_IDLE,
            clock=self.clock,
        )

    def lease(self, key: str = KEY, idle_seconds: float = 600) -> AbstractContextManager[StandIn]:
        return self.pool.lease(key, lambda: self._make(key), idle_seconds)

    def _make(self, key: str) -> StandIn:
        self.made.append(StandIn(key))
        return self.made[-1]

    def lend(self, key: str = KEY, idle_seconds: float = 600) -> StandIn:
        with self.lease(key, idle_seconds) as client:
            return client


@pytest.fixture
def world() -> Generator[World]:
    made = World()
    yield made
    made.pool.close()


def test_next_task_reuses_producer(world: World) -> None:
    assert world.lend() is world.lend()
    assert len(world.made) == 1


def test_other_options_get_another_producer(world: World) -> None:
    assert world.lend() is not world.lend("b:1")
    assert [made.closed_with for made in world.made] == [None, None]


def test_concurrent_tasks_never_share_a_producer(world: World) -> None:
    with world.lease(KEY, 600) as first, world.lease(KEY, 600) as second:
        assert first is not second
    assert len(world.pool) == 2


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_discards_producer_of_failed_task(world: World, end: type[BaseException]) -> None:
    def task() -> None:
        with world.lease(KEY, 600):
            raise end

    with pytest.raises(end):
        task()
    assert world.made[0].closed_with == "discard"
    assert len(world.pool) == 0
    world.lend()
    assert len(world.made) == 2


def test_closes_idle_producer_after_its_idle_time(world: World) -> None:
    world.lend(idle_seconds=600)
    world.pool.evict(599.9)
    assert len(world.pool) == 1
    world.pool.evict(600)
    assert len(world.pool) == 0
    assert world.made[0].closed_with is not None


def test_leases_most_recently_used_idle_producer(world: World) -> None:
    with world.lease(KEY, 600) as first, world.lease(KEY, 600) as second:
        assert first is not second
    assert world.lend() is first, "the outer block ended last"


def test_closes_the_least_recently_used_producer_when_too_many_are_idle(world: World) -> None:
    client_ids = [str(number) for number in range(60)]
    for key in client_ids[:MAX_IDLE]:
        world.lend(key)
    world.lend(client_ids[0])  # now the second one is the least recently used
    world.lend(client_ids[MAX_IDLE])
    assert [made.key for made in world.made if made.closed_with is not None] == ["1"]
    for key in client_ids[MAX_IDLE + 1 :]:
        world.lend(key)
    assert len(world.pool) == MAX_IDLE
    idle = [made.key for made in world.made if made.closed_with is None]
    assert idle == client_ids[-MAX_IDLE:]


def test_limit_of_idle_producers_ignores_leased_ones(world: World) -> None:
    with contextlib.ExitStack() as tasks:
        for _ in range(2 * MAX_IDLE):
            tasks.enter_context(world.lease(KEY, 600))
        assert [made.closed_with for made in world.made] == [None] * (2 * MAX_IDLE)
    assert len(world.pool) == MAX_IDLE


def test_each_use_restarts_idle_time(world: World) -> None:
    world.lend(idle_seconds=600)
    world.clock.now = 500
    world.lend(idle_seconds=600)
    world.pool.evict(900)
    assert world.made[0].closed_with is None


def test_eviction_thread_closes_idle_producers_and_ends(world: World) -> None:
    before = set(threading.enumerate())
    world.lend(idle_seconds=0)
    for evictor in set(threading.enumerate()) - before:
        evictor.join(PATIENCE_SECONDS)
        assert not evictor.is_alive()
    assert world.made[0].closed_with is not None
    world.lend(idle_seconds=600)
    assert len(world.pool) == 1


class PretendedThread:
    """The pool's thread, run by the test. What it waits for comes at once, and the clock shows the time."""

    made: ClassVar[list[PretendedThread]] = []

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self.run = target
        self.made.append(self)

    def start(self) -> None:
        """The test calls `run`."""

    def is_alive(self) -> bool:
        return True


def test_eviction_thread_sleeps_until_next_producer_expires(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    class Sleeping(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            assert len(slept) < 5, "the thread goes round in circles"
            slept.append(timeout)
            world.clock.now += timeout
            return False

    monkeypatch.setattr(threading, "Condition", Sleeping)
    world.pool._reset()
    monkeypatch.setattr(threading, "Thread", PretendedThread)
    monkeypatch.setattr(PretendedThread, "made", made := list[PretendedThread]())
    with world.lease(KEY, 600), world.lease(KEY, 100):
        assert not made, "there is no thread while nothing is idle"
    (evictor,) = made
    evictor.run()
    assert slept == [100, 500]
    assert [producer.closed_with for producer in world.made] == ["close", "close"]
    assert len(world.pool) == 0
    world.lend()
    assert len(made) == 2, "the thread has ended, and another one is needed"


def test_returned_producer_wakes_eviction_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []

    class Waking(threading.Condition):
        def notify(self, n: int = 1) -> None:
            woken.append(len(world.made))

    monkeypatch.setattr(threading, "Condition", Waking)
    world.pool._reset()
    monkeypatch.setattr(threading, "Thread", PretendedThread)
    with world.lease(KEY, 1), world.lease(KEY, 600):
        pass
    assert woken == [2, 2]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of fork in a process with threads: that is it
def test_forked_child_has_empty_pool_when_lock_was_held(world: World) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with world.pool._changed:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        # Would wait for ever if the lock were the parent's; that takes no longer than the alarm.
        signal.alarm(20)
        os._exit(len(world.pool))
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
