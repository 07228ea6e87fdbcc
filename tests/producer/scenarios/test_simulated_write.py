"""Properties of a write with many tasks, checked on a small simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from integration.benchmarks.scale.served_cluster import Service
from integration.benchmarks.scale.simulated_write import SimulatedWrite, WriteParameters, WriteResult

SMALL = WriteParameters(tasks=8, partitions=40, brokers=4, concurrent_tasks=4, rows=2_000, max_simulated_slots=4)


@pytest.fixture(scope="module")
def spread() -> WriteResult:
    """Return the result of a write in which each task has rows of all partitions."""
    return SimulatedWrite(SMALL).run()


@pytest.fixture(scope="module")
def distributed() -> WriteResult:
    return SimulatedWrite(replace(SMALL, is_distributed=True)).run()


def test_loses_and_duplicates_nothing_with_slow_broker_and_dead_broker(
    spread: WriteResult, distributed: WriteResult
) -> None:
    for result in (spread, distributed):
        assert (result.rows, result.failed_rows, result.lost_rows, result.duplicated_rows) == (16_000, 0, 0, 0)
    assert spread.retried_rows > 0, "no row was on its way to the broker that died"


def test_brokers_handle_fewer_requests_when_each_partition_has_one_task(
    spread: WriteResult, distributed: WriteResult
) -> None:
    assert distributed.requests_per_million_rows < spread.requests_per_million_rows
    assert distributed.batch_bytes > 3 * spread.batch_bytes
    assert spread.producer_states == 4 * 40
    assert distributed.producer_states == 40


def test_each_producer_connects_to_each_broker_without_distribution() -> None:
    result = SimulatedWrite(replace(SMALL, has_dying_broker=False)).run()
    max_bootstrap_connections = SMALL.concurrent_tasks
    assert 0 <= result.max_connections - SMALL.concurrent_tasks * SMALL.brokers <= max_bootstrap_connections


def test_requests_grow_with_tasks_and_brokers_and_producer_states_with_partitions() -> None:
    healthy = replace(SMALL, has_slow_broker=False, has_dying_broker=False)
    base_result = SimulatedWrite(healthy).run()
    twice = {
        "tasks": SimulatedWrite(replace(healthy, tasks=16)).run(),
        "brokers": SimulatedWrite(replace(healthy, brokers=8)).run(),
        "partitions": SimulatedWrite(replace(healthy, partitions=80)).run(),
    }
    assert twice["tasks"].requests == 2 * base_result.requests
    assert twice["brokers"].requests == 2 * base_result.requests
    assert twice["partitions"].requests == base_result.requests
    assert twice["partitions"].producer_states == 2 * base_result.producer_states


def test_slow_broker_slows_down_the_write() -> None:
    heavy = Service(request_ms=20.0)
    healthy = replace(SMALL, service=heavy, has_slow_broker=False, has_dying_broker=False)
    assert (
        SimulatedWrite(replace(healthy, has_slow_broker=True)).run().duration_s
        > SimulatedWrite(healthy).run().duration_s
    )


def test_connection_limit_delays_write_but_loses_nothing() -> None:
    limited = replace(SMALL, service=Service(max_connections=3), has_slow_broker=False, has_dying_broker=False)
    spread = SimulatedWrite(limited).run()
    assert spread.rejected_connections > 0
    assert (spread.failed_rows, spread.lost_rows, spread.duplicated_rows) == (0, 0, 0)
    assert spread.max_connections <= 3 * SMALL.brokers
    few = SimulatedWrite(replace(limited, concurrent_tasks=1)).run()
    assert (few.rejected_connections, few.failed_rows, few.lost_rows) == (0, 0, 0)


def test_sampled_tasks_scale_to_the_whole_write() -> None:
    healthy = replace(SMALL, has_slow_broker=False, has_dying_broker=False)
    whole, sample = SimulatedWrite(healthy).run(), SimulatedWrite(replace(healthy, max_simulated_slots=2)).run()
    assert sample.rows == whole.rows
    assert sample.requests == whole.requests
    assert sample.max_connections == whole.max_connections
    assert sample.producer_states == whole.producer_states
