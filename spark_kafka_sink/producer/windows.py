"""Averages, maxima and rates over the last windows of time, and how latencies are spread since the beginning.

Time is an argument; threads share them under a lock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

NAN = float("nan")

Gauge = Callable[[float], float]
"""From the time to the value of a metric."""


class Windowed:
    """Count, sum and maximum over the last windows."""

    __slots__ = ("_samples", "_samples_max", "_window_ms")

    def __init__(self, window_ms: float, samples_max: int) -> None:
        self._window_ms = window_ms
        self._samples_max = samples_max
        self._samples: deque[list[float]] = deque(maxlen=samples_max)  # start, count, sum, maximum

    def record(self, value: float, now: float, count: float = 1, maximum: float | None = None) -> None:
        """Add a value, or the sum of `count` values."""
        top = value if maximum is None else maximum
        sample = self._samples[-1] if self._samples else None
        if sample is None or now - sample[0] >= self._window_ms:
            self._samples.append([now, count, value, top])
            return
        sample[1] += count
        sample[2] += value
        if top > sample[3]:
            sample[3] = top

    def average(self, now: float) -> float:
        samples = self._recent(now)
        count = sum(sample[1] for sample in samples)
        return sum(sample[2] for sample in samples) / count if count else NAN

    def maximum(self, now: float) -> float:
        return max((sample[3] for sample in self._recent(now)), default=NAN)

    def rate(self, now: float) -> float:
        """Per second. At first it is divided by a whole window, so that one early record is not a thousand a second."""
        samples = self._recent(now)
        if not samples:
            return 0.0
        elapsed_ms = max(now - samples[0][0], self._window_ms * max(1, self._samples_max - 1))
        return 1000 * sum(sample[2] for sample in samples) / elapsed_ms if elapsed_ms else 0.0

    def _recent(self, now: float) -> list[list[float]]:
        oldest = now - self._window_ms * self._samples_max
        return [sample for sample in self._samples if sample[0] > oldest]


class Meter:
    """A rate and a total of the same thing."""

    __slots__ = ("total", "windowed")

    def __init__(self, windowed: Windowed) -> None:
        self.windowed = windowed
        self.total = 0.0

    def mark(self, value: float, now: float, count: float = 1) -> None:
        """Add a value, or the sum of `count` values."""
        self.total += value
        self.windowed.record(value, now, count)

    def follow(self, total: float, now: float, count: float = 1) -> None:
        """Add what is new of a number that is added up elsewhere."""
        if total != self.total:
            self.mark(total - self.total, now, count)
            self.total = total  # exactly, whatever the sums of fractions are

    def read_total(self, now: float) -> float:
        return self.total

    def gauges(self, name: str) -> dict[str, Gauge]:
        return {f"{name}-rate": self.windowed.rate, f"{name}-total": self.read_total}


def share_of_time(nanoseconds: Meter, now: float) -> float:
    """Return the share of the last windows, 1 for all of their time, that a meter of nanoseconds has counted."""
    return nanoseconds.windowed.rate(now) / 1e9


LATENCY_MS_MIN = 1 / 16
LATENCY_MS_MAX = float(1 << 24)
_STEPS = 16
"""Buckets between a power of two and the next one."""


class Latencies:
    """How many records took how long, counted in buckets.

    A bucket ends at most 1/16 above its beginning, so a percentile is at most that much too high. Counts of several
    tasks or micro-batches add up. Latencies below LATENCY_MS_MIN (1/16 ms) or above LATENCY_MS_MAX (4.6 hours) are
    counted in the first or last bucket, which bounds their number at 449.
    """

    __slots__ = ("counts",)

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        """`counts` has the records by the number of their bucket."""
        self.counts: dict[int, int] = {} if counts is None else counts

    def add(self, latency_ms: float, records: int) -> None:
        # 5 ms is 0.625 * 2^3: step (0.625 - 0.5) * 32 = 4 of those after 2^2 ms.
        mantissa, exponent = math.frexp(min(max(latency_ms, LATENCY_MS_MIN), LATENCY_MS_MAX))
        bucket = exponent * _STEPS + int((mantissa - 0.5) * (2 * _STEPS))
        self.counts[bucket] = self.counts.get(bucket, 0) + records

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Latencies) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Latencies) -> Latencies:
        both = self.copy()
        both.merge(other)
        return both

    def merge(self, other: Latencies) -> None:
        for bucket, records in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + records

    def __sub__(self, earlier: Latencies) -> Latencies:
        """Return what was added after `earlier` was copied."""
        counts = {bucket: records - earlier.counts.get(bucket, 0) for bucket, records in self.counts.items()}
        return Latencies({bucket: records for bucket, records in counts.items() if records})

    def copy(self) -> Latencies:
        return Latencies(dict(self.counts))

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share (0 to 1) of the records was acknowledged; nan if there are none."""
        total = sum(self.counts.values())
        below = 0
        for bucket, records in sorted(self.counts.items()):
            below += records
            if below >= share * total:
                return bucket_end_ms(bucket)
        return NAN


def bucket_end_ms(bucket: int) -> float:
    """Where a bucket ends, and the next one begins."""
    exponent, step = divmod(bucket, _STEPS)
    return math.ldexp((_STEPS + step + 1) / (2 * _STEPS), exponent)
