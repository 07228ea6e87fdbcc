"""What the client's selector has done, as metrics under the Java client's names: bytes, requests, connections, times.

The selector adds up (network/io_counts.py). What is new since the last time is taken over into the windows ten times
a second while requests go out, and when a user reads them. The caller locks.

Requests, responses and their bytes are also those of each node. As in the Java client its id is the one under which
the client connects: `node-3` is broker 3, `node--1` the first of the bootstrap servers.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from spark_kafka_sink.network.io_counts import IoCounts, TrafficCounts
from spark_kafka_sink.producer.windows import Gauge, Meter, WindowedStat, compute_time_ratio

_TRAFFIC = {
    "request": "sends",
    "response": "receives",
    "outgoing-byte": "bytes_sent",
    "incoming-byte": "bytes_received",
}
"""Rate and total of each, and the number of TrafficCounts that they follow."""
_COUNTED = {
    "network-io": "operations",
    "connection-creation": "connections_opened",
    "connection-close": "connections_closed",
    "successful-authentication": "successful_authentications",
    "failed-authentication": "failed_authentications",
    "successful-reauthentication": "successful_reauthentications",
    "failed-reauthentication": "failed_reauthentications",
    "select": "selects",
}
"""Rate and total of each, and the number of IoCounts that they follow."""
_TIMED = {"io-time-ns": "io_ms", "io-wait-time-ns": "wait_ms"}
"""Nanoseconds for each select, and the milliseconds of IoCounts."""


class TrafficMetrics:
    """Requests, responses and their bytes over windows and in total, of one node or of all."""

    def __init__(self, counts: TrafficCounts, window_ms: float, num_samples: int) -> None:
        self._counts = counts
        self._meters = {name: Meter(WindowedStat(window_ms, num_samples)) for name in _TRAFFIC}
        self._request_size = WindowedStat(window_ms, num_samples)

    def count(self, now: float) -> None:
        """Add what was counted since the last call."""
        for name, counted in _TRAFFIC.items():
            self._meters[name].mark_total(getattr(self._counts, counted), now)
        sizes = self._counts.send_sizes
        while sizes:
            self._request_size.record(sizes.popleft(), now)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {
            "request-size-avg": self._request_size.average,
            "request-size-max": self._request_size.maximum,
        }
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        return gauges


class NetworkMetrics:
    """What IoCounts counts, over windows and in total."""

    def __init__(self, counts: IoCounts, window_ms: float, num_samples: int) -> None:
        self._counts = counts
        self._window = (window_ms, num_samples)
        self._traffic = TrafficMetrics(counts, window_ms, num_samples)
        self._node_traffic: dict[str, TrafficMetrics] = {}
        self._node_latencies: defaultdict[str, WindowedStat] = defaultdict(lambda: WindowedStat(window_ms, num_samples))
        """Milliseconds until the responses to produce requests."""
        self._meters = {name: Meter(WindowedStat(window_ms, num_samples)) for name in _COUNTED}
        self._times = {name: Meter(WindowedStat(window_ms, num_samples)) for name in _TIMED}

    def count(self, now: float) -> None:
        """Add what was counted since the last call."""
        self._traffic.count(now)
        selects_before = self._meters["select"].total
        for name, counted in _COUNTED.items():
            self._meters[name].mark_total(getattr(self._counts, counted), now)
        selects = self._meters["select"].total - selects_before
        for name, counted in _TIMED.items():
            self._times[name].mark_total(getattr(self._counts, counted) * 1_000_000, now, selects)
        # A copy: the sender's thread adds the first channel to a node while another thread reads.
        for channel_id, counts in (self._counts.channel_counts or {}).copy().items():
            if channel_id not in self._node_traffic:
                self._node_traffic[channel_id] = TrafficMetrics(counts, *self._window)
            self._node_traffic[channel_id].count(now)

    def record_latency(self, node_id: int, latency_ms: float, now: float) -> None:
        """Record how long a node took to respond to a produce request."""
        self._node_latencies[str(node_id)].record(latency_ms, now)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {
            "connection-count": lambda now: float(self._counts.open_connections),
            **self._traffic.gauges(),
        }
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        for name, meter in self._times.items():
            gauges[f"{name}-avg"] = meter.windowed.average
            gauges[f"{name}-total"] = meter.read_total
            gauges[f"{name.removesuffix('-time-ns')}-ratio"] = partial(compute_time_ratio, meter)
        return gauges

    def node_gauges(self) -> dict[str, dict[str, Gauge]]:
        """Return the gauges of each node under its id in the Java client, such as `node-3`."""
        return {
            f"node-{channel_id}": {
                **traffic.gauges(),
                "request-latency-avg": self._node_latencies[channel_id].average,
                "request-latency-max": self._node_latencies[channel_id].maximum,
            }
            for channel_id, traffic in self._node_traffic.items()
        }
