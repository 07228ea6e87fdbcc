"""Leased clients. A fake client records when it is created and closed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import ClassVar

import pytest

from spark_kafka_sink.requests.idle_clients import IdleClients
from tests.waiting import WAIT_TIMEOUT_SECONDS

KEY = "a:1"
MAX_IDLE = 8


class FakeClient:
    def __init__(self, key: str) -> None:
        self.key = key
        self.closed_with: str | None = None

    def close(self, method: str) -> None:
        assert self.closed_with is None, "the client was closed twice"
        self.closed_with = method


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class LeasePool:
    def __init__(self) -> None:
        self.clients: list[FakeClient] = []
        self.clock = Clock()
        self.idle_clients: IdleClients[FakeClient] = IdleClients(
            lambda client: client.close("close"),
            discard=lambda client: client.close("discard"),
            max_idle=MAX_IDLE,
            clock=self.clock,
        )

    def lease(self, key: str = KEY, idle_seconds: float = 600) -> AbstractContextManager[FakeClient]:
        return self.idle_clients.lease(key, lambda: self._make(key), idle_seconds)

    def _make(self, key: str) -> FakeClient:
        self.clients.append(FakeClient(key))
        return self.clients[-1]

    def lend(self, key: str = KEY, idle_seconds: float = 600) -> FakeClient:
        with self.lease(key, idle_seconds) as client:
            return client


@pytest.fixture
def lease_pool() -> Generator[LeasePool]:
    pool = LeasePool()
    yield pool
    pool.idle_clients.close()


def test_close_closes_idle_clients(lease_pool: LeasePool) -> None:
    client = lease_pool.lend()
    lease_pool.idle_clients.close()
    assert (client.closed_with, len(lease_pool.idle_clients)) == ("close", 0)


def test_next_task_reuses_producer(lease_pool: LeasePool) -> None:
    assert lease_pool.lend() is lease_pool.lend()
    assert len(lease_pool.clients) == 1


def test_other_options_get_another_producer(lease_pool: LeasePool) -> None:
    assert lease_pool.lend() is not lease_pool.lend("b:1")
    assert [client.closed_with for client in lease_pool.clients] == [None, None]


def test_concurrent_tasks_never_share_a_producer(lease_pool: LeasePool) -> None:
    with lease_pool.lease(KEY, 600) as first, lease_pool.lease(KEY, 600) as second:
        assert first is not second
    assert len(lease_pool.idle_clients) == 2


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_discards_producer_of_failed_task(lease_pool: LeasePool, end: type[BaseException]) -> None:
    def task() -> None:
        with lease_pool.lease(KEY, 600):
            raise end

    with pytest.raises(end):
        task()
    assert lease_pool.clients[0].closed_with == "discard"
    assert len(lease_pool.idle_clients) == 0
    lease_pool.lend()
    assert len(lease_pool.clients) == 2


def test_closes_idle_producer_after_its_idle_time(lease_pool: LeasePool) -> None:
    lease_pool.lend(idle_seconds=600)
    lease_pool.idle_clients.evict(599.9)
    assert len(lease_pool.idle_clients) == 1
    lease_pool.idle_clients.evict(600)
    assert len(lease_pool.idle_clients) == 0
    assert lease_pool.clients[0].closed_with is not None


def test_leases_most_recently_used_idle_producer(lease_pool: LeasePool) -> None:
    with lease_pool.lease(KEY, 600) as first, lease_pool.lease(KEY, 600) as second:
        assert first is not second
    assert lease_pool.lend() is first, "the outer block ended last"


def test_closes_the_least_recently_used_producer_when_too_many_are_idle(lease_pool: LeasePool) -> None:
    client_ids = [str(number) for number in range(60)]
    for key in client_ids[:MAX_IDLE]:
        lease_pool.lend(key)
    lease_pool.lend(client_ids[0])  # now the second client is the least recently used
    lease_pool.lend(client_ids[MAX_IDLE])
    assert [client.key for client in lease_pool.clients if client.closed_with is not None] == ["1"]
    for key in client_ids[MAX_IDLE + 1 :]:
        lease_pool.lend(key)
    assert len(lease_pool.idle_clients) == MAX_IDLE
    idle = [client.key for client in lease_pool.clients if client.closed_with is None]
    assert idle == client_ids[-MAX_IDLE:]


def test_limit_of_idle_producers_ignores_leased_ones(lease_pool: LeasePool) -> None:
    with contextlib.ExitStack() as tasks:
        for _ in range(2 * MAX_IDLE):
            tasks.enter_context(lease_pool.lease(KEY, 600))
        assert [client.closed_with for client in lease_pool.clients] == [None] * (2 * MAX_IDLE)
    assert len(lease_pool.idle_clients) == MAX_IDLE


def test_each_use_restarts_idle_time(lease_pool: LeasePool) -> None:
    lease_pool.lend(idle_seconds=600)
    lease_pool.clock.now = 500
    lease_pool.lend(idle_seconds=600)
    lease_pool.idle_clients.evict(900)
    assert lease_pool.clients[0].closed_with is None


def test_eviction_thread_closes_idle_producers_and_ends(lease_pool: LeasePool) -> None:
    before = set(threading.enumerate())
    lease_pool.lend(idle_seconds=0)
    for evictor in set(threading.enumerate()) - before:
        evictor.join(WAIT_TIMEOUT_SECONDS)
        assert not evictor.is_alive()
    assert lease_pool.clients[0].closed_with is not None
    lease_pool.lend(idle_seconds=600)
    assert len(lease_pool.idle_clients) == 1


class FakeThread:
    """The eviction thread, which the test runs. Waits return at once and advance the clock."""

    instances: ClassVar[list[FakeThread]] = []

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self.run = target
        self.name = name
        self.instances.append(self)

    def start(self) -> None:
        """Do nothing: the test calls `run`."""

    def is_alive(self) -> bool:
        return True


def test_eviction_thread_sleeps_until_next_producer_expires(
    lease_pool: LeasePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    class Sleeping(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            assert len(slept) < 5, "the thread spins"
            slept.append(timeout)
            lease_pool.clock.now += timeout
            return False

    monkeypatch.setattr(threading, "Condition", Sleeping)
    lease_pool.idle_clients._reset()
    monkeypatch.setattr(threading, "Thread", FakeThread)
    monkeypatch.setattr(FakeThread, "instances", threads := list[FakeThread]())
    with lease_pool.lease(KEY, 600), lease_pool.lease(KEY, 100):
        assert not threads, "there is no thread while nothing is idle"
    (evictor,) = threads
    assert evictor.name == "pykafka-idle-clients"
    evictor.run()
    assert slept == [100, 500]
    assert [client.closed_with for client in lease_pool.clients] == ["close", "close"]
    assert len(lease_pool.idle_clients) == 0
    lease_pool.lend()
    assert len(threads) == 2, "the first thread has ended"


def test_returned_producer_wakes_eviction_thread(lease_pool: LeasePool, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []

    class Waking(threading.Condition):
        def notify(self, n: int = 1) -> None:
            woken.append(len(lease_pool.clients))

    monkeypatch.setattr(threading, "Condition", Waking)
    lease_pool.idle_clients._reset()
    monkeypatch.setattr(threading, "Thread", FakeThread)
    with lease_pool.lease(KEY, 1), lease_pool.lease(KEY, 600):
        pass
    assert woken == [2, 2]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forks with threads on purpose
def test_forked_child_has_empty_pool_when_lock_was_held(lease_pool: LeasePool) -> None:
    is_lock_held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lease_pool.idle_clients._condition:
            is_lock_held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_lock_held.wait()
    child = os.fork()
    if not child:
        # The child would wait forever for the parent's lock, but the alarm ends it.
        signal.alarm(20)
        os._exit(len(lease_pool.idle_clients))
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
