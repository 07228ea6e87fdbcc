"""Statistics for metrics: averages, maxima and rates over the most recent sample windows, and a latency histogram.

Nothing here reads a clock or takes a lock. Callers pass the time in milliseconds, and guard the objects with a lock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

NAN = float("nan")
"""The value of an average, a maximum or a percentile without values, as in the Java client."""
NANOSECONDS_PER_MS = 1_000_000
_NANOSECONDS_PER_SECOND = 1_000_000_000
_MS_PER_SECOND = 1_000

Gauge = Callable[[float], float]
"""A function that takes the time in milliseconds and returns the value of a metric."""


class _Sample:
    """Count, sum and maximum of the values in one window."""

    __slots__ = ("count", "maximum", "start_ms", "sum")

    def __init__(self, start_ms: float) -> None:
        self.start_ms = start_ms
        self.count: float = 0
        self.sum = 0.0
        self.maximum = -math.inf  # -inf until the first value is added


class WindowedStat:
    """Count, sum and maximum of the values in the last `window_count` windows of `window_ms` each.

    A window begins with the first value that is recorded after the previous window has ended.
    """

    __slots__ = ("_samples", "_window_count", "_window_ms")

    def __init__(self, window_ms: float, window_count: int) -> None:
        self._window_ms = window_ms
        self._window_count = window_count
        self._samples: deque[_Sample] = deque(maxlen=window_count)

    def record(self, value: float, now_ms: float, count: float = 1, maximum: float | None = None) -> None:
        """Add one value, or the sum of `count` values, with their maximum."""
        sample = self._samples[-1] if self._samples else None
        if sample is None or now_ms - sample.start_ms >= self._window_ms:
            sample = _Sample(now_ms)
            self._samples.append(sample)
        sample.count += count
        sample.sum += value
        if maximum is None:
            maximum = value
        if maximum > sample.maximum:  # faster than max()
            sample.maximum = maximum

    def average(self, now_ms: float) -> float:
        """Return the average of the recent values, or nan if there are none."""
        samples = self._select_recent_samples(now_ms)
        count = sum(sample.count for sample in samples)
        return sum(sample.sum for sample in samples) / count if count else NAN

    def maximum(self, now_ms: float) -> float:
        """Return the maximum of the recent values, or nan if there are none."""
        return max((sample.maximum for sample in self._select_recent_samples(now_ms)), default=NAN)

    def rate(self, now_ms: float) -> float:
        """Return the sum of the recent values, divided by the elapsed seconds; 0 if there are none.

        The elapsed time counts as at least `window_count` - 1 windows, and as at least one window. Otherwise, a single
        record in the first millisecond would be a rate of a thousand per second.
        """
        samples = self._select_recent_samples(now_ms)
        if not samples:
            return 0.0
        min_elapsed_ms = self._window_ms * max(1, self._window_count - 1)
        elapsed_ms = max(now_ms - samples[0].start_ms, min_elapsed_ms)
        total = sum(sample.sum for sample in samples)
        return _MS_PER_SECOND * total / elapsed_ms if elapsed_ms else 0.0  # the window length may be 0

    def _select_recent_samples(self, now_ms: float) -> list[_Sample]:
        """Return the samples of the windows that are not too old to count, oldest first."""
        oldest_ms = now_ms - self._window_ms * self._window_count
        return [sample for sample in self._samples if sample.start_ms > oldest_ms]


class Meter:
    """The total of one quantity over the producer's lifetime, and its recent rate."""

    __slots__ = ("total", "windowed_stat")

    def __init__(self, windowed_stat: WindowedStat) -> None:
        self.windowed_stat = windowed_stat
        self.total = 0.0

    def record(self, value: float, now_ms: float, count: float = 1) -> None:
        """Add one value, or the sum of `count` values."""
        self.total += value
        self.windowed_stat.record(value, now_ms, count)

    def record_increase(self, total: float, now_ms: float, count: float = 1) -> None:
        """Record by how much a total that is kept elsewhere has grown since the previous call.

        `total`: the current value of that total, which never decreases.
        `count`: the number of events that caused the increase.
        """
        if total != self.total:
            self.record(total - self.total, now_ms, count)
            self.total = total  # `record` adds differences, whose rounding errors would accumulate

    def read_total(self, now_ms: float) -> float:
        """Return the total. `now_ms` is not used, but is part of the Gauge signature."""
        return self.total

    def gauges(self, name: str) -> dict[str, Gauge]:
        """Return the gauges of the rate and the total, by metric name."""
        return {f"{name}-rate": self.windowed_stat.rate, f"{name}-total": self.read_total}


def compute_time_ratio(nanoseconds: Meter, now_ms: float) -> float:
    """Return the recently recorded time as a fraction of the elapsed time. With several threads, it may exceed 1.

    `nanoseconds`: the meter that records the time.
    """
    return nanoseconds.windowed_stat.rate(now_ms) / _NANOSECONDS_PER_SECOND


# Do not change these numbers. Reports of writes contain the buckets, and can only be added up if all have the same
# buckets.
MIN_LATENCY_MS = 1 / 16
MAX_LATENCY_MS = float(1 << 24)
_BUCKETS_PER_OCTAVE = 16
"""The number of buckets between two successive powers of two."""


class LatencyHistogram:
    """A histogram of record latencies with logarithmic buckets.

    The histograms of several tasks or micro-batches can be added up. The upper bound of a bucket is at most 1/16 above
    its lower bound, so percentiles are too high by at most 1/16. A latency below MIN_LATENCY_MS (1/16 ms) is counted in
    the first bucket, and a latency above MAX_LATENCY_MS (4.6 hours) in the last, so there are at most 449 buckets.
    """

    __slots__ = ("counts",)

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        """Create a histogram. `counts` maps the number of each bucket to how many records it has; empty by default."""
        self.counts: dict[int, int] = {} if counts is None else counts

    def add(self, latency_ms: float, record_count: int) -> None:
        """Count records that all have the same latency."""
        # Example: 5 ms is 0.625 * 2^3, so it belongs to the octave from 2^2 to 2^3 ms, and there to bucket
        # (0.625 - 0.5) * 32 = 4.
        mantissa, exponent = math.frexp(min(max(latency_ms, MIN_LATENCY_MS), MAX_LATENCY_MS))
        bucket_in_octave = int((mantissa - 0.5) * (2 * _BUCKETS_PER_OCTAVE))
        bucket = exponent * _BUCKETS_PER_OCTAVE + bucket_in_octave
        self.counts[bucket] = self.counts.get(bucket, 0) + record_count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatencyHistogram) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: LatencyHistogram) -> LatencyHistogram:
        merged_histogram = self.copy()
        merged_histogram.merge(other)
        return merged_histogram

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram to this one, in place."""
        for bucket, record_count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + record_count

    def __sub__(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return the latencies that were added since the copy `earlier` was made."""
        counts = {bucket: count - earlier.counts.get(bucket, 0) for bucket, count in self.counts.items()}
        return LatencyHistogram({bucket: count for bucket, count in counts.items() if count})

    def copy(self) -> LatencyHistogram:
        return LatencyHistogram(dict(self.counts))

    def percentile(self, fraction: float) -> float:
        """Return the latency in ms that this fraction (0 to 1) of the records did not exceed; nan if there are none."""
        total_count = sum(self.counts.values())
        cumulative_count = 0
        for bucket, record_count in sorted(self.counts.items()):
            cumulative_count += record_count
            if cumulative_count >= fraction * total_count:
                return compute_bucket_end_ms(bucket)
        return NAN


def compute_bucket_end_ms(bucket: int) -> float:
    """Return the upper bound of a bucket in milliseconds."""
    exponent, bucket_in_octave = divmod(bucket, _BUCKETS_PER_OCTAVE)
    mantissa = 0.5 + (bucket_in_octave + 1) / (2 * _BUCKETS_PER_OCTAVE)
    return math.ldexp(mantissa, exponent)
