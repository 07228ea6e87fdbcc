"""ProducerMetrics: the metrics of a producer. Metrics that the Java client also has keep their Java names.

Averages, maxima and rates cover the last metrics.num.samples windows of metrics.sample.window.ms (2 x 30 s by default).
Totals cover the producer's lifetime. If the name of a metric ends in `{topic=...}`, it is for one topic, and if it ends
in `{node-id=...}`, for the connections to one node.

Recording an event costs a few additions per batch, and nothing per record. The sums over the sent batches are added to
the windows ten times a second, and at each read.

Several threads record values, so one lock guards all state. Callers pass the current time in milliseconds.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.network_metrics import NetworkMetrics
from spark_kafka_sink.producer.pool_metrics import PoolMetrics
from spark_kafka_sink.producer.totals import Totals
from spark_kafka_sink.producer.windows import NANOSECONDS_PER_MS, Gauge, Meter, WindowedStat
from spark_kafka_sink.records.header import HEADER_BYTES

WAIT_TIME_METRICS = (
    "flush-time",
    "metadata-wait-time",
    "txn-init-time",
    "txn-begin-time",
    "txn-send-offsets-time",
    "txn-commit-time",
    "txn-abort-time",
)
"""Metrics that add up the times for which calls have waited. `-ns-total` is appended to their names."""
_UPDATE_INTERVAL_MS = 100.0
"""Minimum interval between two updates of the windows while requests are being sent."""
_METRICS_WITHOUT_MAXIMUM = frozenset({"compression-rate", "records-per-request"})
"""Metrics for which the Java client reports only an average."""
_TAG_PATTERN = re.compile(r"\{(topic|node-id)=(.*)\}$")


class _MutableTotals(SimpleNamespace):
    """The running counters, with the fields of Totals as attributes. A Totals is an immutable snapshot of them."""

    def add_acknowledged_batches(self, batches: Collection[ProducerBatch], now_ms: float) -> None:
        """Count acknowledged batches and their records.

        The latency of a record is the time since the arrival of the oldest row that was staged with its batch.
        """
        header_bytes = HEADER_BYTES * len(batches)
        self.batches += len(batches)
        self.bytes += sum([batch.body_bytes for batch in batches]) + header_bytes
        self.uncompressed_bytes += sum([batch.uncompressed_bytes for batch in batches]) + header_bytes
        # Batches that are acknowledged together often share an arrival time, so add each latency only once.
        record_counts_by_arrival_ms: dict[float, int] = {}
        for batch in batches:
            arrival_ms = batch.oldest_row_arrival_ms
            record_counts_by_arrival_ms[arrival_ms] = (
                record_counts_by_arrival_ms.get(arrival_ms, 0) + batch.record_count
            )
        for arrival_ms, record_count in record_counts_by_arrival_ms.items():
            self.records += record_count
            self.latencies.add(now_ms - arrival_ms, record_count)


class _SendTotals:
    """Totals over the batches of one topic that were sent since the last update of the windows."""

    __slots__ = (
        "batch_count",
        "compression_ratio_sum",
        "max_bytes",
        "max_wait_ms",
        "record_count",
        "total_bytes",
        "total_wait_ms",
    )

    def __init__(self) -> None:
        self.batch_count = self.record_count = self.total_bytes = self.max_bytes = 0
        self.compression_ratio_sum = self.total_wait_ms = self.max_wait_ms = 0.0

    def add(self, batches: Collection[ProducerBatch]) -> None:
        """Add the batches of one request, at least one."""
        sizes = [batch.body_bytes for batch in batches]
        waits_ms = [batch.last_sent_ms - batch.oldest_row_arrival_ms for batch in batches]
        compression_ratios = [batch.body_bytes / batch.uncompressed_bytes for batch in batches if batch.codec]
        uncompressed_count = len(batches) - len(compression_ratios)
        self.batch_count += len(batches)
        self.record_count += sum([batch.record_count for batch in batches])
        self.total_bytes += sum(sizes) + HEADER_BYTES * len(batches)
        self.max_bytes = max(self.max_bytes, max(sizes) + HEADER_BYTES)
        self.compression_ratio_sum += uncompressed_count + sum(compression_ratios)  # an uncompressed batch counts as 1
        self.total_wait_ms += sum(waits_ms)
        self.max_wait_ms = max(self.max_wait_ms, *waits_ms)


class _TopicMetrics:
    """The metrics of one topic, as in the Java client's `producer-topic-metrics` group.

    Compression ratios are published as `compression-rate`, the Java client's name for them.
    """

    __slots__ = ("compression_ratios", "failed_records", "retried_records", "sent_bytes", "sent_records")

    def __init__(self, window_ms: float, window_count: int) -> None:
        self.sent_records = Meter(WindowedStat(window_ms, window_count))
        self.sent_bytes = Meter(WindowedStat(window_ms, window_count))
        self.failed_records = Meter(WindowedStat(window_ms, window_count))
        self.retried_records = Meter(WindowedStat(window_ms, window_count))
        self.compression_ratios = WindowedStat(window_ms, window_count)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {"compression-rate": self.compression_ratios.average}
        gauges |= self.sent_records.gauges("record-send") | self.sent_bytes.gauges("byte")
        gauges |= self.failed_records.gauges("record-error") | self.retried_records.gauges("record-retry")
        return gauges


class ProducerMetrics:
    """Records events of the sender thread and of calling threads, and computes the values of all metrics.

    To add a metric, add its name to `_windowed_stats` (average and maximum) or to `_meters` (rate and total), and
    record its values in one of the `record_` methods. The gauges that read the metric are derived from its name.
    """

    def __init__(
        self, window_ms: float, window_count: int, io_counts: IoCounts, pool: BufferPool, gauges: Mapping[str, Gauge]
    ) -> None:
        """Create metrics without values.

        `window_ms`: the length of a sample window.
        `window_count`: the number of recent windows that averages, maxima and rates cover.
        `io_counts`: the counters of the client's selector.
        `pool`: the buffer pool, whose memory and waiting times are reported.
        `gauges`: additional metrics, keyed by name.
        """
        self._window_ms, self._window_count = window_ms, window_count
        self._lock = threading.Lock()
        self._windowed_stats = {
            name: WindowedStat(window_ms, window_count)
            for name in (
                "batch-size",
                "compression-rate",
                "record-queue-time",
                "records-per-request",
                "record-size",
                "request-latency",
                "produce-throttle-time",
            )
        }
        self._meters = {
            name: Meter(WindowedStat(window_ms, window_count))
            for name in ("record-send", "record-retry", "record-error", "batch-split")
        }
        self._wait_times_ns = {f"{name}-ns-total": 0.0 for name in WAIT_TIME_METRICS}
        self._network = NetworkMetrics(io_counts, window_ms, window_count)
        self._pool = pool
        self._pool_metrics = PoolMetrics(pool, window_ms, window_count)
        self._metrics_by_topic: dict[str, _TopicMetrics] = {}
        self._pending_send_totals: defaultdict[str, _SendTotals] = defaultdict(_SendTotals)
        """Totals over the batches that were sent since the last update of the windows, by topic."""
        self._last_send_update_ms = 0.0
        """When `record_request` last updated the windows. The next update records the pending totals with this time."""
        self._sent_request_count = 0
        """Number of produce requests that were sent since the last update of the windows."""
        self._totals = _MutableTotals(**vars(Totals()))
        self._gauges: dict[str, Gauge] = {
            **gauges,
            **self._network.gauges(),
            **self._pool_metrics.gauges(),
            **self._build_own_gauges(),
        }

    def _build_own_gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {}
        for name, windowed_stat in self._windowed_stats.items():
            gauges[f"{name}-avg"] = windowed_stat.average
            if name not in _METRICS_WITHOUT_MAXIMUM:
                gauges[f"{name}-max"] = windowed_stat.maximum
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        for name in self._wait_times_ns:
            gauges[name] = partial(self._read_wait_time_ns, name)
        return gauges

    # -- recording ----------------------------------------------------------------------------------------------------

    def record_row_sizes(self, row_count: int, total_bytes: int, max_row_bytes: int, now_ms: float) -> None:
        """Record the sizes of rows that a call of send() or send_columns() accepted, for the record-size metrics."""
        with self._lock:
            self._windowed_stats["record-size"].record(total_bytes, now_ms, row_count, max_row_bytes)

    def record_rejected_rows(self, row_count: int, now_ms: float) -> None:
        """Count rows that failed before they were staged.

        As in the Java client, these rows count as errors of the producer, but not of their topic. Otherwise, a topic
        that does not exist would have metrics for the rest of the producer's lifetime.
        """
        with self._lock:
            self._totals.errors += row_count
            self._meters["record-error"].record(row_count, now_ms)

    def record_request(self, batches_by_topic: Mapping[str, Mapping[int, ProducerBatch]], now_ms: float) -> None:
        """Count a produce request that is being sent.

        `batches_by_topic`: the request's batches, keyed by topic and partition.
        """
        with self._lock:
            if now_ms - self._last_send_update_ms >= _UPDATE_INTERVAL_MS:
                self._update_windows(now_ms)
                self._last_send_update_ms = now_ms
            self._sent_request_count += 1
            for topic, batches in batches_by_topic.items():
                self._pending_send_totals[topic].add(batches.values())

    def record_response(self, node_id: int, latency_ms: float, throttle_ms: float, now_ms: float) -> None:
        """Record a response to a produce request.

        `latency_ms`: the time between the request and the response.
        `throttle_ms`: the throttle time that the response reports.
        """
        with self._lock:
            self._network.record_latency(node_id, latency_ms, now_ms)
            self._windowed_stats["request-latency"].record(latency_ms, now_ms)
            self._windowed_stats["produce-throttle-time"].record(throttle_ms, now_ms)
            self._totals.requests += 1
            self._totals.throttle_ms += throttle_ms

    def record_acknowledged_batches(self, batches: Collection[ProducerBatch], now_ms: float) -> None:
        """Count acknowledged batches. Call this before completing their futures, so that callers see the new totals."""
        with self._lock:
            self._totals.add_acknowledged_batches(batches, now_ms)

    def record_retries(self, topic: str, record_count: int, now_ms: float) -> None:
        """Count records that are sent again, once per retry, for the producer and for their topic."""
        with self._lock:
            self._totals.retries += record_count
            self._meters["record-retry"].record(record_count, now_ms)
            self._get_or_create_topic_metrics(topic).retried_records.record(record_count, now_ms)

    def record_failures(self, topic: str, record_count: int, now_ms: float) -> None:
        """Count records that failed after they were staged, for the producer and for their topic."""
        with self._lock:
            self._totals.errors += record_count
            self._meters["record-error"].record(record_count, now_ms)
            self._get_or_create_topic_metrics(topic).failed_records.record(record_count, now_ms)

    def record_batch_split(self, now_ms: float) -> None:
        """Count a batch that is split, because a broker has rejected it as too large."""
        with self._lock:
            self._meters["batch-split"].record(value=1, now_ms=now_ms)

    def record_wait(self, name: str, wait_ms: float) -> None:
        """Add the time for which a calling thread has waited to the total of a metric.

        `name`: one of WAIT_TIME_METRICS.
        """
        with self._lock:
            self._wait_times_ns[f"{name}-ns-total"] += wait_ms * NANOSECONDS_PER_MS

    def _update_windows(self, now_ms: float) -> None:
        """Add everything that was counted since the last update to the windows."""
        self._update_send_windows()
        self._network.update(now_ms)
        self._pool_metrics.update(now_ms)

    def _update_send_windows(self) -> None:
        """Add the pending totals of sent batches to the windows, at the time `_last_send_update_ms`, and reset them."""
        recorded_at_ms = self._last_send_update_ms
        record_count = 0
        for topic, totals in self._pending_send_totals.items():
            self._windowed_stats["batch-size"].record(
                totals.total_bytes, recorded_at_ms, count=totals.batch_count, maximum=totals.max_bytes
            )
            self._windowed_stats["compression-rate"].record(
                totals.compression_ratio_sum, recorded_at_ms, count=totals.batch_count
            )
            self._windowed_stats["record-queue-time"].record(
                totals.total_wait_ms, recorded_at_ms, count=totals.batch_count, maximum=totals.max_wait_ms
            )
            topic_metrics = self._get_or_create_topic_metrics(topic)
            topic_metrics.sent_records.record(totals.record_count, recorded_at_ms)
            topic_metrics.sent_bytes.record(totals.total_bytes, recorded_at_ms)
            topic_metrics.compression_ratios.record(
                totals.compression_ratio_sum, recorded_at_ms, count=totals.batch_count
            )
            record_count += totals.record_count
        if self._sent_request_count:
            self._windowed_stats["records-per-request"].record(
                record_count, recorded_at_ms, count=self._sent_request_count
            )
            self._meters["record-send"].record(record_count, recorded_at_ms)  # a rate and a total, without an average
        self._pending_send_totals.clear()
        self._sent_request_count = 0

    def _get_or_create_topic_metrics(self, topic: str) -> _TopicMetrics:
        """Return a topic's metrics, created on first use."""
        metrics = self._metrics_by_topic.get(topic)
        if metrics is None:
            metrics = self._metrics_by_topic[topic] = _TopicMetrics(self._window_ms, self._window_count)
        return metrics

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_all(self, now_ms: float) -> dict[str, float]:
        """Return all metrics by name. An average or maximum without values is nan, as in Java."""
        with self._lock:
            self._update_windows(now_ms)
            values = {name: gauge(now_ms) for name, gauge in self._gauges.items()}
            for topic, metrics in self._metrics_by_topic.items():
                values |= {f"{name}{{topic={topic}}}": gauge(now_ms) for name, gauge in metrics.gauges().items()}
            for node, gauges in self._network.node_gauges().items():
                values |= {f"{name}{{node-id={node}}}": gauge(now_ms) for name, gauge in gauges.items()}
            return values

    def read(self, name: str, now_ms: float) -> float:
        """Return the value of one metric. Raise KeyError for an unknown name, topic or node.

        Unlike `read_all`, this computes no other metric.
        """
        with self._lock:
            self._update_windows(now_ms)
            gauge = self._find_gauge(parse_metric_name(name))
            if gauge is None:
                matches = difflib.get_close_matches(name, self._gauges, n=1)
                suggestion = f" Did you mean {matches[0]}?" if matches else ""
                raise KeyError(f"{name} is not a metric of the producer.{suggestion}")
            return gauge(now_ms)

    def _find_gauge(self, name: MetricName) -> Gauge | None:
        """Return the gauge that reads a metric, or None if the metric, its topic or its node is not known."""
        if name.tag_key is None:
            return self._gauges.get(name.base_name)
        if name.tag_key == "topic":
            topic_metrics = self._metrics_by_topic.get(name.tag_value)
            return None if topic_metrics is None else topic_metrics.gauges().get(name.base_name)
        return self._network.node_gauges().get(name.tag_value, {}).get(name.base_name)

    def totals(self, now_ms: float) -> Totals:
        """Return the current totals.

        This method must stay cheap, because the Spark sink calls it before and after each task.
        """
        with self._lock:
            self._totals.blocked_ms = self._pool.total_wait_ms
            totals = vars(self._totals)
            return Totals(**{**totals, "latencies": self._totals.latencies.copy()})

    def _read_wait_time_ns(self, name: str, now_ms: float) -> float:
        return self._wait_times_ns[name]


class MetricName(NamedTuple):
    """The parts of a metric name such as `record-send-total{topic=t}`. Most names have no tag."""

    base_name: str
    """The name without the tag: `record-send-total`."""
    tag_key: str | None = None
    """`topic` or `node-id`; None without a tag."""
    tag_value: str = ""
    """The name of the topic or of the node."""


def parse_metric_name(name: str) -> MetricName:
    """Split a metric name into its base name and its tag. A name without a known tag is only a base name."""
    match = _TAG_PATTERN.search(name)
    return MetricName(name) if match is None else MetricName(name[: match.start()], match[1], match[2])


def build_client_gauges(client: NetworkClient, metadata: Metadata) -> dict[str, Gauge]:
    """Return gauges of the network client and the metadata. Each gauge reads one number without a lock."""
    return {
        "requests-in-flight": lambda now_ms: float(client.in_flight_request_count()),
        "metadata-age": lambda now_ms: metadata.age_ms(now_ms) / 1000,
    }
