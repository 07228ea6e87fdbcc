"""Averages, maxima and rates over the last windows of time. Time is an argument; threads share them under a lock."""

from __future__ import annotations

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
        """Per second. At first it is divided by a whole window, lest one record be a thousand a second."""
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
