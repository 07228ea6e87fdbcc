"""LatencyHistogram: percentiles from counts in buckets, which add up. WindowedStat: rates over the last windows."""

from __future__ import annotations

import math
import pickle
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.producer.windows import MAX_LATENCY_MS, LatencyHistogram, WindowedStat, compute_bucket_end_ms

LATENCY = st.floats(min_value=0, max_value=MAX_LATENCY_MS * 0.9)


@given(st.lists(LATENCY, min_size=1), st.floats(min_value=0, max_value=1))
def test_a_percentile_is_at_most_a_sixteenth_too_high(latencies: list[float], share: float) -> None:
    found = LatencyHistogram()
    for latency in latencies:
        found.add(latency, 1)
    exact = sorted(latencies)[max(0, math.ceil(share * len(latencies)) - 1)]
    assert exact <= found.percentile(share) <= max(exact, 1 / 16) * 17 / 16


@given(st.lists(LATENCY), st.lists(LATENCY))
def test_the_counts_of_two_tasks_add_up_to_those_of_one(first: list[float], second: list[float]) -> None:
    one, other, together = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    for latencies, values in ((one, first), (other, second), (together, first + second)):
        for value in values:
            latencies.add(value, 3)
    one.merge(other)
    assert one.counts == together.counts


def test_what_came_after_a_moment_is_found() -> None:
    latencies = LatencyHistogram()
    latencies.add(5, 10)
    before = latencies.copy()
    latencies.add(5, 1)
    latencies.add(80, 2)
    assert sum((latencies - before).counts.values()) == 3
    assert before.counts == {52: 10}
    assert (latencies - latencies.copy()).counts == {}


@pytest.mark.parametrize("latency", [-5.0, 0.0, 1e-9, 1 / 16, 1.0, 4.9999, 5.0, 5.25, 16.0, 1e12, math.inf])
def test_a_bucket_holds_what_is_counted_in_it(latency: float) -> None:
    latencies = LatencyHistogram()
    latencies.add(latency, 1)
    (bucket,) = latencies.counts
    inside = min(max(latency, 1 / 16), MAX_LATENCY_MS)
    assert compute_bucket_end_ms(bucket - 1) <= inside < compute_bucket_end_ms(bucket)


def test_the_counts_of_the_worst_task_travel_in_a_few_kilobytes() -> None:
    latencies = LatencyHistogram()
    random = Random(1)
    for _ in range(200_000):
        latencies.add(2 ** random.uniform(-6, 30), random.randrange(1 << 40))
    assert len(latencies.counts) <= 449
    assert len(pickle.dumps(latencies.counts)) < 8_192


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(LatencyHistogram().percentile(0.99))


def test_what_lies_before_the_last_windows_is_forgotten() -> None:
    windowed = WindowedStat(1000, 2)
    windowed.record(100, 0)
    windowed.record(10, 1000)
    windowed.record(20, 1500)
    assert (windowed.maximum(1900), windowed.average(1900)) == (100, 130 / 3)
    assert (windowed.maximum(2000), windowed.average(2000)) == (20, 15)
    windowed.record(5, 2000)
    assert windowed.maximum(2999) == 20
    assert math.isnan(windowed.average(9000))
    assert windowed.rate(9000) == 0


def test_a_rate_is_per_second_over_the_time_looked_back_on() -> None:
    windowed = WindowedStat(1000, 2)
    windowed.record(10, 0)
    assert windowed.rate(10) == 10
    windowed.record(20, 1500)
    assert windowed.rate(1600) == 30 / 1.6
