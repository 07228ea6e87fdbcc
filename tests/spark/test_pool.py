"""The pool's promises. A stand-in takes the producer's place: only its being made and closed matters here."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import cast

import pytest

from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.spark.pool import ProducerPool

OPTIONS = {"bootstrap.servers": "a:1"}


class StandIn:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.closed_with: float | None = None

    def close(self, timeout: float | None = None) -> None:
        assert self.closed_with is None, "closed twice"
        self.closed_with = timeout


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self) -> None:
        self.made: list[StandIn] = []
        self.clock = Clock()
        self.pool = ProducerPool(self._make, self.clock)

    def _make(self, options: Mapping[str, str]) -> KafkaProducer:
        self.made.append(StandIn(options))
        return cast(KafkaProducer, self.made[-1])

    def lend(self, options: Mapping[str, str] = OPTIONS, idle_seconds: float = 600) -> KafkaProducer:
        with self.pool.lease(options, idle_seconds) as producer:
            return producer


@pytest.fixture
def world() -> Generator[World]:
    made = World()
    yield made
    made.pool.close()


def test_the_next_task_gets_the_producer_of_the_last(world: World) -> None:
    assert world.lend() is world.lend()
    assert len(world.made) == 1


def test_other_options_get_a_producer_of_their_own(world: World) -> None:
    assert world.lend() is not world.lend({"bootstrap.servers": "b:1"})
    assert [made.closed_with for made in world.made] == [None, None]


def test_two_tasks_never_share_a_producer(world: World) -> None:
    with world.pool.lease(OPTIONS, 600) as first, world.pool.lease(OPTIONS, 600) as second:
        assert first is not second
    assert len(world.pool) == 2


@pytest.mark.parametrize("end", [ValueError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_a_producer_whose_task_did_not_end_well_is_closed_at_once_and_never_lent_again(
    world: World, end: type[BaseException]
) -> None:
    def task() -> None:
        with world.pool.lease(OPTIONS, 600):
            raise end

    with pytest.raises(end):
        task()
    assert world.made[0].closed_with == 0
    assert len(world.pool) == 0
    world.lend()
    assert len(world.made) == 2


def test_a_producer_that_nobody_asked_for_is_closed_after_its_time(world: World) -> None:
    world.lend(idle_seconds=600)
    world.pool.evict(599.9)
    assert len(world.pool) == 1
    world.pool.evict(600)
    assert len(world.pool) == 0
    assert world.made[0].closed_with is not None


def test_time_begins_anew_with_each_use(world: World) -> None:
    world.lend(idle_seconds=600)
    world.clock.now = 500
    world.lend(idle_seconds=600)
    world.pool.evict(900)
    assert world.made[0].closed_with is None


def test_the_pool_evicts_on_its_own_and_its_thread_ends_when_nothing_is_idle(world: World) -> None:
    world.lend(idle_seconds=0)
    evictor = world.pool._evictor
    if evictor is not None:
        evictor.join(10)
        assert not evictor.is_alive()
    assert world.made[0].closed_with is not None
    world.lend(idle_seconds=600)
    assert len(world.pool) == 1
