"""Metrics of a producer, under the Java client's names where it has them.

Averages, maxima and rates look back on the last windows (metrics.num.samples x metrics.sample.window.ms, 30 s each by
default), totals on the whole life. A batch costs a handful of additions, a record nothing: what is sent is added up,
and taken over into the windows ten times a second, or when they are read. Names that end in `{topic=...}` are those of
one topic, and names that end in `{node-id=...}` those of the connections to one node.

Several threads record, so one lock guards everything. Time is an argument.
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
from spark_kafka_sink.producer.windows import Gauge, Meter, WindowedStat
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
_COUNT_EVERY_MS = 100.0
_WITHOUT_MAXIMUM = frozenset({"compression-rate", "records-per-request"})
_TAG_PATTERN = re.compile(r"\{(topic|node-id)=(.*)\}$")


class _Counts(SimpleNamespace):
    """The counters of Totals while they are counted: an attribute for each field of it, and no other."""

    def add_stored(self, batches: Collection[ProducerBatch], now: float) -> None:
        headers = HEADER_BYTES * len(batches)
        self.batches += len(batches)
        self.bytes += sum([batch.body_bytes for batch in batches]) + headers
        self.uncompressed_bytes += sum([batch.uncompressed_bytes for batch in batches]) + headers
        records_by_age: dict[float, int] = {}  # rows that were given together have one age
        for batch in batches:
            records_by_age[batch.created_ms] = records_by_age.get(batch.created_ms, 0) + batch.record_count
        for created_ms, records in records_by_age.items():
            self.records += records
            self.latencies.add(now - created_ms, records)


class _Sent:
    """What went out of one topic since it was last counted."""

    __slots__ = ("batches", "bytes", "bytes_max", "ratios", "records", "wait_ms", "wait_ms_max")

    def __init__(self) -> None:
        self.batches = self.records = self.bytes = self.bytes_max = 0
        self.ratios = self.wait_ms = self.wait_ms_max = 0.0

    def add(self, batches: Collection[ProducerBatch]) -> None:
        sizes = [batch.body_bytes for batch in batches]
        waits_ms = [batch.drained_ms - batch.created_ms for batch in batches]
        packed = [batch.body_bytes / batch.uncompressed_bytes for batch in batches if batch.codec]
        self.batches += len(batches)
        self.records += sum([batch.record_count for batch in batches])
        self.bytes += sum(sizes) + HEADER_BYTES * len(batches)
        self.bytes_max = max(self.bytes_max, max(sizes) + HEADER_BYTES)
        self.ratios += len(batches) - len(packed) + sum(packed)
        self.wait_ms += sum(waits_ms)
        self.wait_ms_max = max(self.wait_ms_max, *waits_ms)


class _TopicMetrics:
    """The metrics of one topic: Java's group producer-topic-metrics."""

    __slots__ = ("bytes", "compression", "errors", "retries", "sent")

    def __init__(self, window_ms: float, num_samples: int) -> None:
        self.sent, self.bytes, self.errors, self.retries = (
            Meter(WindowedStat(window_ms, num_samples)) for _ in range(4)
        )
        self.compression = WindowedStat(window_ms, num_samples)

    def gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {"compression-rate": self.compression.average}
        gauges |= self.sent.gauges("record-send") | self.bytes.gauges("byte")
        gauges |= self.errors.gauges("record-error") | self.retries.gauges("record-retry")
        return gauges


class ProducerMetrics:
    """What the sender and the callers of send report, and one dict of all of it."""

    def __init__(
        self, window_ms: float, num_samples: int, io: IoCounts, pool: BufferPool, gauges: Mapping[str, Gauge]
    ) -> None:
        """`io` is what the client's selector counts; `gauges` are values that are kept elsewhere, by their names."""
        self._window = (window_ms, num_samples)
        self._lock = threading.Lock()
        self._averages = {
            name: WindowedStat(window_ms, num_samples)
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
            name: Meter(WindowedStat(window_ms, num_samples))
            for name in ("record-send", "record-retry", "record-error", "batch-split")
        }
        self._nanoseconds = {f"{name}-ns-total": 0.0 for name in WAIT_TIME_METRICS}
        self._network = NetworkMetrics(io, window_ms, num_samples)
        self._pool = pool
        self._pool_metrics = PoolMetrics(pool, window_ms, num_samples)
        self._topics: dict[str, _TopicMetrics] = {}
        self._sent: defaultdict[str, _Sent] = defaultdict(_Sent)  # by topic, not counted yet
        self._sent_since_ms = 0.0
        self._requests_sent = 0
        self._counts = _Counts(**vars(Totals()))
        self._gauges: dict[str, Gauge] = {
            **gauges,
            **self._network.gauges(),
            **self._pool_metrics.gauges(),
            **self._own_gauges(),
        }

    def _own_gauges(self) -> dict[str, Gauge]:
        gauges: dict[str, Gauge] = {}
        for name, windowed in self._averages.items():
            gauges[f"{name}-avg"] = windowed.average
            if name not in _WITHOUT_MAXIMUM:
                gauges[f"{name}-max"] = windowed.maximum
        for name, meter in self._meters.items():
            gauges.update(meter.gauges(name))
        for name in self._nanoseconds:
            gauges[name] = partial(self._read_nanoseconds, name)
        return gauges

    # -- reports ------------------------------------------------------------------------------------------------------

    def record_accepted_rows(self, rows: int, bytes_total: int, bytes_largest: int, now: float) -> None:
        """Count rows that were taken from a caller."""
        with self._lock:
            self._averages["record-size"].record(bytes_total, now, rows, bytes_largest)

    def record_rejected_rows(self, rows: int, now: float) -> None:
        """Rows failed before they were staged: as in Java they count as errors, but of no topic. A topic that does not
        exist would else have metrics for ever."""
        with self._lock:
            self._counts.errors += rows
            self._meters["record-error"].mark(rows, now)

    def record_request(self, by_topic: Mapping[str, Mapping[int, ProducerBatch]], now: float) -> None:
        """Count a produce request that is sent, with a batch for each of these partitions."""
        with self._lock:
            if now - self._sent_since_ms >= _COUNT_EVERY_MS:
                self._count_all(now)
                self._sent_since_ms = now
            self._requests_sent += 1
            for topic, batches in by_topic.items():
                self._sent[topic].add(batches.values())

    def record_response(self, node_id: int, latency_ms: float, throttle_ms: float, now: float) -> None:
        with self._lock:
            self._network.record_latency(node_id, latency_ms, now)
            self._averages["request-latency"].record(latency_ms, now)
            self._averages["produce-throttle-time"].record(throttle_ms, now)
            self._counts.requests += 1
            self._counts.throttle_ms += throttle_ms

    def record_acknowledged_batches(self, batches: Collection[ProducerBatch], now: float) -> None:
        """Count batches that a broker has acknowledged. Called before their futures complete: callers see the count."""
        with self._lock:
            self._counts.add_stored(batches, now)

    def record_retries(self, topic: str, records: int, now: float) -> None:
        with self._lock:
            self._counts.retries += records
            self._meters["record-retry"].mark(records, now)
            self._topic(topic).retries.mark(records, now)

    def record_failures(self, topic: str, records: int, now: float) -> None:
        with self._lock:
            self._counts.errors += records
            self._meters["record-error"].mark(records, now)
            self._topic(topic).errors.mark(records, now)

    def record_batch_split(self, now: float) -> None:
        with self._lock:
            self._meters["batch-split"].mark(1, now)

    def record_wait(self, name: str, milliseconds: float) -> None:
        """Count the time that a caller spent in one of WAITS."""
        with self._lock:
            self._nanoseconds[f"{name}-ns-total"] += milliseconds * 1_000_000

    def _count_all(self, now: float) -> None:
        """Take over into the windows what was added up since the last call."""
        self._count_sent()
        self._network.count(now)
        self._pool_metrics.count(now)

    def _count_sent(self) -> None:
        """Take what has gone out over into the windows, as of the time when the first of it went."""
        requests, now, records = self._requests_sent, self._sent_since_ms, 0
        for name, sent in self._sent.items():
            self._averages["batch-size"].record(sent.bytes, now, sent.batches, sent.bytes_max)
            self._averages["compression-rate"].record(sent.ratios, now, sent.batches)
            self._averages["record-queue-time"].record(sent.wait_ms, now, sent.batches, sent.wait_ms_max)
            topic = self._topic(name)
            topic.sent.mark(sent.records, now)
            topic.bytes.mark(sent.bytes, now)
            topic.compression.record(sent.ratios, now, sent.batches)
            records += sent.records
        if requests:
            self._averages["records-per-request"].record(records, now, requests)
            self._meters["record-send"].mark(records, now)
        self._sent.clear()
        self._requests_sent = 0

    def _topic(self, name: str) -> _TopicMetrics:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _TopicMetrics(*self._window)
        return topic

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_all(self, now: float) -> dict[str, float]:
        """All metrics by name. An average or maximum of nothing is nan, as in Java."""
        with self._lock:
            self._count_all(now)
            values = {name: gauge(now) for name, gauge in self._gauges.items()}
            for topic, metrics in self._topics.items():
                values |= {f"{stem}{{topic={topic}}}": gauge(now) for stem, gauge in metrics.gauges().items()}
            for node, gauges in self._network.node_gauges().items():
                values |= {f"{stem}{{node-id={node}}}": gauge(now) for stem, gauge in gauges.items()}
            return values

    def read(self, name: str, now: float) -> float:
        """One value, without the cost of all the others; KeyError if there is none of this name."""
        with self._lock:
            self._count_all(now)
            stem, tag, value = parse_metric_name(name)
            if tag is None:
                gauges = self._gauges
            elif tag == "topic":
                gauges = self._topics[value].gauges() if value in self._topics else {}
            else:
                gauges = self._network.node_gauges().get(value, {})
            gauge = gauges.get(stem)
            if gauge is None:
                near = difflib.get_close_matches(name, self._gauges, n=1)
                raise KeyError(
                    f"{name} is not a metric of the producer." + (f" Did you mean {near[0]}?" if near else "")
                )
            return gauge(now)

    def totals(self, now: float) -> Totals:
        """The sums, without the windows, so that it costs little: the Spark sink asks before and after each task."""
        with self._lock:
            self._counts.blocked_ms = self._pool.total_wait_ms
            counts = vars(self._counts)
            return Totals(**{**counts, "latencies": self._counts.latencies.copy()})

    def _read_nanoseconds(self, name: str, now: float) -> float:
        return self._nanoseconds[name]


class MetricName(NamedTuple):
    """The parts of `record-send-total{topic=t}`; most metrics have no tag."""

    stem: str
    tag: str | None = None
    """`topic` or `node-id`"""
    value: str = ""


def parse_metric_name(name: str) -> MetricName:
    tag = _TAG_PATTERN.search(name)
    return MetricName(name) if tag is None else MetricName(name[: tag.start()], tag[1], tag[2])


def build_client_gauges(client: NetworkClient, metadata: Metadata) -> dict[str, Gauge]:
    """Values that their owners keep. They are read by any thread, and each of them is one number."""
    return {
        "requests-in-flight": lambda now: float(client.in_flight_request_count()),
        "metadata-age": lambda now: metadata.age_ms(now) / 1000,
    }
