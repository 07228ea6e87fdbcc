"""What the client's selector has done, as metrics under the Java client's names: bytes, requests, connections, times.

The selector adds up (network/io_counts.py). What is new since the last time is taken over into the windows ten times
a second while requests go out, and when a user reads them. The caller locks.
"""

from __future__ import annotations

from functools import partial

from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.producer.windows import Gauge, Meter, Windowed

_COUNTED = {
    "request": "sends",
    "response": "receives",
    "outgoing-byte": "bytes_sent",
    "incoming-byte": "bytes_received",
    "network-io": "operations",
    "connection-creation": "connections_opened",
    "connection-close": "connections_closed",
    "select": "selects",
}
"""Rate and total of each, and the number of IoCounts that they follow."""
_TIMED = {"io-time-ns": "io_ms", "io-wait-time-ns": "wait_ms"}
"""Nanoseconds for each select, and the milliseconds of IoCounts."""


class NetworkMetrics:
    """What IoCounts counts, over windows and in total."""

    def __init__(self, counts: IoCounts, window_ms: float, samples_max: int) -> None:
        self._counts = counts
        self._meters = {name: Meter(Windowed(window_ms, samples_max)) for name in _COUNTED}
        self._times = {name: Meter(Windowed(window_ms, samples_max)) for name in _TIMED}
        self._request_size = Windowed(window_ms, samples_max)

    def count(self, now: float) -> None:
        """Add what was counted since the last call."""
        selects_before = self._meters["select"].total
        for name, counted in _COUNTED.items():
            self._meters[name].follow(getattr(self._counts, counted), now)
        selects = self._meters["select"].total - selects_before
        for name, counted in _TIMED.items():
            self._times[name].follow(getattr(self._counts, counted) * 1_000_000, now, selects)
        sizes = self._counts.send_sizes
        while sizes:
            self._request_size.record(sizes.popleft(), now)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {
            "connection-count": lambda now: float(self._counts.connections_open),
            "request-size-avg": self._request_size.average,
            "request-size-max": self._request_size.maximum,
        }
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        for name, meter in self._times.items():
            gauges[f"{name}-avg"] = meter.windowed.average
            gauges[f"{name}-total"] = meter.read_total
            gauges[f"{name.removesuffix('-time-ns')}-ratio"] = partial(_share_of_time, meter)
        return gauges


def _share_of_time(nanoseconds: Meter, now: float) -> float:
    return nanoseconds.windowed.rate(now) / 1e9
