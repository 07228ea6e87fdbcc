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
def test_percentile_exceeds_exact_value_by_at_most_a_sixteenth(latencies: list[float], share: float) -> None:
    found = LatencyHistogram()
    for latency in latencies:
        found.add(latency, 1)
    exact = sorted(latencies)[max(0, math.ceil(share * len(latencies)) - 1)]
    assert exact <= found.percentile(share) <= max(exact, 1 / 16) * 17 / 16


@given(st.lists(LATENCY), st.lists(LATENCY))
def test_merged_counts_equal_counts_of_all_values(first: list[float], second: list[float]) -> None:
    one, other, together = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    for latencies, values in ((one, first), (other, second), (together, first + second)):
        for value in values:
            latencies.add(value, 3)
    one.merge(other)
    assert one.counts == together.counts


def test_difference_of_histograms_contains_later_values() -> None:
    latencies = LatencyHistogram()
    latencies.add(5, 10)
    before = latencies.copy()
    latencies.add(5, 1)
    latencies.add(80, 2)
    assert sum((latencies - before).counts.values()) == 3
    assert before.counts == {52: 10}
    assert (latencies - latencies.copy()).counts == {}


@pytest.mark.parametrize("latency", [-5.0, 0.0, 1e-9, 1 / 16, 1.0, 4.9999, 5.0, 5.25, 16.0, 1e12, math.inf])
def test_bucket_bounds_contain_counted_value(latency: float) -> None:
    latencies = LatencyHistogram()
    latencies.add(latency, 1)
    (bucket,) = latencies.counts
    inside = min(max(latency, 1 / 16), MAX_LATENCY_MS)
    assert compute_bucket_end_ms(bucket - 1) <= inside < compute_bucket_end_ms(bucket)


def test_pickled_counts_of_all_buckets_are_small() -> None:
    latencies = LatencyHistogram()
    random = Random(1)
    for _ in range(200_000):
        latencies.add(2 ** random.uniform(-6, 30), random.randrange(1 << 40))
    assert len(latencies.counts) <= 449
    assert len(pickle.dumps(latencies.counts)) < 8_192


def test_percentile_of_empty_histogram_is_nan() -> None:
    assert math.isnan(LatencyHistogram().percentile(0.99))


def test_forgets_values_before_last_windows() -> None:
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


def test_rate_is_per_second_of_covered_time() -> None:
    windowed = WindowedStat(1000, 2)
    windowed.record(10, 0)
    assert windowed.rate(10) == 10
    windowed.record(20, 1500)
    assert windowed.rate(1600) == 30 / 1.6
