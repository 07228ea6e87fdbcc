"""Network metrics under their Java names: bytes, requests, connections and the selector's I/O times.

The selector does the counting (network/io_counts.py). `update` reads its counters and records by how much they have
grown. It is called ten times a second while requests are being sent, and at each read. Callers must hold the lock of
ProducerMetrics.

Requests, responses and their bytes are also counted per node. Nodes have the same names as in the Java client: `node-3`
is broker 3, and `node--1` is the first bootstrap server.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from spark_kafka_sink.network.io_counts import IoCounts, TrafficCounts
from spark_kafka_sink.producer.windows import NANOSECONDS_PER_MS, Gauge, Meter, WindowedStat, compute_time_ratio

_TRAFFIC_ATTRIBUTES = {
    "request": "sends",
    "response": "receives",
    "outgoing-byte": "bytes_sent",
    "incoming-byte": "bytes_received",
}
"""Metrics with a rate and a total, each with the attribute of TrafficCounts that it is computed from."""
_COUNTER_ATTRIBUTES = {
    "network-io": "socket_transfers",
    "connection-creation": "connections_opened",
    "connection-close": "connections_closed",
    "successful-authentication": "successful_authentications",
    "failed-authentication": "failed_authentications",
    "successful-reauthentication": "successful_reauthentications",
    "failed-reauthentication": "failed_reauthentications",
    "select": "selects",
}
"""Metrics with a rate and a total, each with the attribute of IoCounts that it is computed from."""
_TIMER_ATTRIBUTES = {"io-time-ns": "io_ms", "io-wait-time-ns": "wait_ms"}
"""Metrics in nanoseconds per select, each with an attribute of IoCounts, which is in milliseconds."""
_RATIO_METRICS = {"io-time-ns": "io-ratio", "io-wait-time-ns": "io-wait-ratio"}
"""For each of these metrics, the metric that reports the same time as a fraction of the recent windows."""


class TrafficMetrics:
    """Rates, totals and sizes of requests and responses, for one node or for all nodes."""

    def __init__(self, counts: TrafficCounts, window_ms: float, window_count: int) -> None:
        self._counts = counts
        self._meters = {name: Meter(WindowedStat(window_ms, window_count)) for name in _TRAFFIC_ATTRIBUTES}
        self._request_size = WindowedStat(window_ms, window_count)

    def update(self, now_ms: float) -> None:
        """Record the traffic since the last call: the increase of each total, and the size of each request."""
        for name, attribute in _TRAFFIC_ATTRIBUTES.items():
            self._meters[name].record_increase(getattr(self._counts, attribute), now_ms)
        unrecorded_sizes = self._counts.send_sizes  # a queue, to which the selector may append concurrently
        while unrecorded_sizes:
            self._request_size.record(unrecorded_sizes.popleft(), now_ms)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {
            "request-size-avg": self._request_size.average,
            "request-size-max": self._request_size.maximum,
        }
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        return gauges


class NetworkMetrics:
    """The rates, totals and averages of everything that IoCounts counts, for all nodes together and for each node."""

    def __init__(self, counts: IoCounts, window_ms: float, window_count: int) -> None:
        self._counts = counts
        self._window_ms, self._window_count = window_ms, window_count
        self._traffic = TrafficMetrics(counts, window_ms, window_count)
        self._node_traffic: dict[str, TrafficMetrics] = {}
        """The traffic of each node, keyed by channel id, which is the node's id as text."""
        self._node_latencies_ms: defaultdict[str, WindowedStat] = defaultdict(
            partial(WindowedStat, window_ms, window_count)
        )
        """The latencies of each node's produce requests, also keyed by channel id."""
        self._meters = {name: Meter(WindowedStat(window_ms, window_count)) for name in _COUNTER_ATTRIBUTES}
        self._timers = {name: Meter(WindowedStat(window_ms, window_count)) for name in _TIMER_ATTRIBUTES}
        """Meters of the selector's times, in nanoseconds per select."""

    def update(self, now_ms: float) -> None:
        """Record the increase of each counter since the last call."""
        self._traffic.update(now_ms)
        previous_select_count = self._meters["select"].total  # read before the loop updates this meter
        for name, attribute in _COUNTER_ATTRIBUTES.items():
            self._meters[name].record_increase(getattr(self._counts, attribute), now_ms)
        # The average of a timer is the time per select, so it needs the number of selects since the last call.
        new_select_count = self._meters["select"].total - previous_select_count
        for name, attribute in _TIMER_ATTRIBUTES.items():
            total_ms = getattr(self._counts, attribute)
            self._timers[name].record_increase(total_ms * NANOSECONDS_PER_MS, now_ms, count=new_select_count)
        # Iterate over a copy, because the sender thread may add the channel of a new node concurrently.
        for channel_id, channel_counts in (self._counts.channel_counts or {}).copy().items():
            if channel_id not in self._node_traffic:
                self._node_traffic[channel_id] = TrafficMetrics(channel_counts, self._window_ms, self._window_count)
            self._node_traffic[channel_id].update(now_ms)

    def record_latency(self, node_id: int, latency_ms: float, now_ms: float) -> None:
        """Record how long a node took to respond to a produce request."""
        channel_id = str(node_id)
        self._node_latencies_ms[channel_id].record(latency_ms, now_ms)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {
            "connection-count": lambda now_ms: float(self._counts.open_connections),
            **self._traffic.gauges(),
        }
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        for name, meter in self._timers.items():
            gauges[f"{name}-avg"] = meter.windowed_stat.average
            gauges[f"{name}-total"] = meter.read_total
            gauges[_RATIO_METRICS[name]] = partial(compute_time_ratio, meter)
        return gauges

    def node_gauges(self) -> dict[str, dict[str, Gauge]]:
        """Return the gauges of each node, keyed by the node's name in the Java client, such as `node-3`."""
        return {
            f"node-{channel_id}": {
                **traffic.gauges(),
                "request-latency-avg": self._node_latencies_ms[channel_id].average,
                "request-latency-max": self._node_latencies_ms[channel_id].maximum,
            }
            for channel_id, traffic in self._node_traffic.items()
        }
