"""Properties of a write with many tasks, checked on a small simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.benchmarks.scale.served_cluster import Service
from integration.benchmarks.scale.simulated_write import SimulatedWrite, Write, Written

SMALL = Write(tasks=8, partitions=40, brokers=4, at_once=4, rows=2_000, sampled=4)


@pytest.fixture(scope="module")
def spread() -> Written:
    """Return the result of a write in which each task has rows of all partitions."""
    return SimulatedWrite(SMALL).run()


@pytest.fixture(scope="module")
def distributed() -> Written:
    return SimulatedWrite(replace(SMALL, distributed=True)).run()


def test_loses_and_duplicates_nothing_with_slow_broker_and_dead_broker(spread: Written, distributed: Written) -> None:
    for written in (spread, distributed):
        assert (written.rows, written.failed, written.lost, written.doubled) == (16_000, 0, 0, 0)
    assert spread.retried > 0, "no row was on its way to the broker that died"


def test_brokers_handle_fewer_requests_when_each_partition_has_one_task(spread: Written, distributed: Written) -> None:
    assert distributed.requests_per_million_rows < spread.requests_per_million_rows
    assert distributed.batch_bytes > 3 * spread.batch_bytes
    assert spread.producer_states == 4 * 40
    assert distributed.producer_states == 40


def test_each_producer_connects_to_each_broker_without_distribution() -> None:
    written = SimulatedWrite(replace(SMALL, dying_broker=False)).run()
    of_bootstrap = SMALL.at_once
    assert 0 <= written.connections - SMALL.at_once * SMALL.brokers <= of_bootstrap


def test_requests_grow_with_tasks_and_brokers_and_producer_states_with_partitions() -> None:
    healthy = replace(SMALL, slow_broker=False, dying_broker=False)
    base = SimulatedWrite(healthy).run()
    twice = {
        "tasks": SimulatedWrite(replace(healthy, tasks=16)).run(),
        "brokers": SimulatedWrite(replace(healthy, brokers=8)).run(),
        "partitions": SimulatedWrite(replace(healthy, partitions=80)).run(),
    }
    assert twice["tasks"].requests == 2 * base.requests
    assert twice["brokers"].requests == 2 * base.requests
    assert twice["partitions"].requests == base.requests
    assert twice["partitions"].producer_states == 2 * base.producer_states


def test_slow_broker_slows_down_the_write() -> None:
    heavy = Service(request_ms=20.0)
    healthy = replace(SMALL, service=heavy, slow_broker=False, dying_broker=False)
    assert SimulatedWrite(replace(healthy, slow_broker=True)).run().seconds > SimulatedWrite(healthy).run().seconds


def test_connection_limit_delays_write_but_loses_nothing() -> None:
    limited = replace(SMALL, service=Service(max_connections=3), slow_broker=False, dying_broker=False)
    spread = SimulatedWrite(limited).run()
    assert spread.refused > 0
    assert (spread.failed, spread.lost, spread.doubled) == (0, 0, 0)
    assert spread.connections <= 3 * SMALL.brokers
    few = SimulatedWrite(replace(limited, at_once=1)).run()
    assert (few.refused, few.failed, few.lost) == (0, 0, 0)


def test_sampled_tasks_scale_to_the_whole_write() -> None:
    healthy = replace(SMALL, slow_broker=False, dying_broker=False)
    whole, sample = SimulatedWrite(healthy).run(), SimulatedWrite(replace(healthy, sampled=2)).run()
    assert sample.rows == whole.rows
    assert sample.requests == whole.requests
    assert sample.connections == whole.connections
    assert sample.producer_states == whole.producer_states
