"""Metrics for Prometheus (`pip install "spark-kafka-sink[prometheus]"`).

Register the collectors with the client library's registry:

    REGISTRY.register(ProducerCollector(producer))     exports producer metrics, read when Prometheus scrapes them
    REGISTRY.register(WriteCollector())                exports metrics of Spark writes from reports passed to `record`
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.units import BYTES, SECONDS, WRITE_METRICS, to_exported_metric
from spark_kafka_sink.producer.metrics import parse_metric_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.totals import WRITE_COUNTERS
from spark_kafka_sink.producer.windows import LatencyHistogram, compute_bucket_end_ms
from spark_kafka_sink.reports.write_report import FAILED, WriteReport, get_query_id

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'Metrics for Prometheus require its client library: pip install "spark-kafka-sink[prometheus]".'
    ) from error

_BUCKET_BOUNDARIES_MS = tuple(float(1 << power) for power in range(18))
"""Bucket boundaries from 1 ms to 131 s. Each boundary coincides with the end of one of the producer's finer buckets."""

_UNIT_SUFFIXES = {SECONDS: "seconds", BYTES: "bytes"}
"""Suffixes of metric names, by unit. Other units have no suffix."""


class ProducerCollector(Collector):
    """A collector for the producer metrics in docs/metrics.md, such as `kafka_producer_record_send_total`.

    All metrics have the label `client_id`. Topic metrics have the name prefix `kafka_producer_topic_` and the
    additional label `topic`. Node metrics have the name prefix `kafka_producer_node_` and the additional label
    `node_id`. Times are in seconds, and metric names include the unit. Averages and maxima are omitted if they have no
    samples.

    A registry accepts only one ProducerCollector, which must collect from all of the program's producers. Use `add` for
    producers that are created later. Producers that have been garbage-collected are omitted.
    """

    def __init__(self, *producers: KafkaProducer) -> None:
        self._producers: weakref.WeakSet[KafkaProducer] = weakref.WeakSet(producers)

    def add(self, producer: KafkaProducer) -> None:
        """Add a producer to collect from. The collector does not keep the producer alive."""
        self._producers.add(producer)

    def collect(self) -> Iterator[Metric]:
        families_by_name: dict[str, Metric] = {}
        latencies_by_labels: dict[tuple[str, ...], LatencyHistogram] = {}
        for producer in sorted(self._producers, key=lambda producer: producer.config.client_id):
            client_id = producer.config.client_id
            if (client_id,) in latencies_by_labels:
                # A previous producer has the same client.id. Prometheus rejects two series with the same labels.
                client_id = f"{client_id} ({len(latencies_by_labels) + 1})"
            latencies_by_labels[(client_id,)] = producer.totals().latencies
            for name, value in producer.metrics().items():
                if not math.isnan(value):
                    _add_sample(families_by_name, client_id, name, value)
        yield from families_by_name.values()
        yield _build_producer_histogram(latencies_by_labels)

    def describe(self) -> list[Metric]:
        """Return a metric that is always exported, so that a registry rejects a second collector.

        With two collectors, the scrape would be invalid, because every metric would appear twice.
        """
        return [_build_producer_histogram({})]


def _add_sample(families_by_name: dict[str, Metric], client_id: str, name: str, value: float) -> None:
    """Add a sample of a producer metric to its metric family. Create the family for its first sample."""
    parsed_name = parse_metric_name(name)
    family_name, unit_factor = _add_unit(parsed_name.base_name)
    label_names, label_values = ["client_id"], [client_id]
    if parsed_name.tag_key is not None:
        family_name = f"{parsed_name.tag_key.removesuffix('-id')}-{family_name}"
        label_names.append(parsed_name.tag_key.replace("-", "_"))
        label_values.append(parsed_name.tag_value)
    family = families_by_name.get(family_name)
    if family is None:
        family = families_by_name[family_name] = _create_family(family_name, parsed_name.base_name, label_names)
    family.add_metric(label_values, value * unit_factor)  # type: ignore[attr-defined]


def _add_unit(base_name: str) -> tuple[str, float]:
    """Return the metric's name for Prometheus, and the factor that converts its values to Prometheus' base unit.

    The base unit is appended to the name (before `-total`). Counts, ratios, and names that already mention bytes get no
    unit.
    """
    if base_name == "connection-count":
        # Prometheus reserves the suffix `_count` for histograms.
        return "connections", 1.0
    exported_metric = to_exported_metric(base_name)
    suffix = _UNIT_SUFFIXES.get(exported_metric.unit)
    if suffix is None or "byte" in exported_metric.name:
        return exported_metric.name, exported_metric.factor
    name_without_kind, _, kind = exported_metric.name.rpartition("-")
    if kind == "total" and exported_metric.unit == SECONDS:
        # The name of a counter must end with `_total`.
        return f"{name_without_kind}-{suffix}-total", exported_metric.factor
    return f"{exported_metric.name}-{suffix}", exported_metric.factor


def _create_family(name: str, base_name: str, labels: list[str]) -> Metric:
    """Create a counter for a name that ends in `-total`, and a gauge for any other.

    `base_name`: the producer's name for the metric, without its tag.
    """
    full_name = f"kafka_producer_{name.replace('-', '_')}"
    family_type = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
    return family_type(full_name, f"{base_name} of KafkaProducer.metrics()", labels=labels)


def _build_producer_histogram(latencies_by_labels: dict[tuple[str, ...], LatencyHistogram]) -> HistogramMetricFamily:
    return _build_histogram("kafka_producer_delivery_latency_seconds", latencies_by_labels, ["client_id"])


@dataclass
class _QueryState:
    """The running totals and the latest report for one streaming query or batch application.

    Times are Unix timestamps, in seconds.
    """

    counters: Counter[str] = field(default_factory=Counter)
    latency_histogram: LatencyHistogram = field(default_factory=LatencyHistogram)
    last_report: WriteReport | None = None
    last_micro_batch_timestamp_s: float | None = None
    """End of the latest micro-batch; None if none was reported."""
    last_failure_timestamp_s: float | None = None
    """End of the latest failed write; None if none was reported."""
    last_dead_letter_timestamp_s: float | None = None
    """End of the latest write with dead letters; None if none was reported."""


def _build_counter_name(count_name: str) -> str:
    """Return the Prometheus name of a write counter.

    `count_name`: the counter's name in WriteReport.counts().
    """
    metric = WRITE_METRICS[count_name]
    return f"pykafka_{metric.name}_seconds" if metric.unit == SECONDS else f"pykafka_{metric.name}"


_LATENCY_DOCUMENTATION = "Time of each record, from the arrival of the oldest row staged with it to its acknowledgement"
_COUNTER_DOCUMENTATION = {
    **{_build_counter_name(name): counter.meaning for name, counter in WRITE_COUNTERS.items()},
    "pykafka_writes": "Batch jobs or micro-batches that were committed",
    "pykafka_failed_writes": "Batch jobs or micro-batches that failed",
}
"""Documentation of the write counters by metric name."""

_GAUGE_DOCUMENTATION = {
    "pykafka_last_write_timestamp_seconds": "Time at which the latest write ended",
    "pykafka_last_write_duration_seconds": "Duration of the latest write",
    "pykafka_last_write_rows": "Rows of the latest write",
    "pykafka_last_write_longest_task_seconds": "Duration of the longest task of the latest write",
    "pykafka_last_micro_batch_timestamp_seconds": "Time at which the latest micro-batch of a stream ended",
    "pykafka_last_failed_write_timestamp_seconds": "Time at which the latest failed write ended; 0 if none has failed",
    "pykafka_last_dead_letter_timestamp_seconds": (
        "Time at which the latest write with dead letters ended; 0 if there is none"
    ),
}
"""Documentation of the write gauges by metric name."""

_MAX_QUERIES = 1_000
"""Maximum number of queries in a collector. When it is full, the query that was added first is removed."""


class WriteCollector(Collector):
    """A collector for metrics of Spark writes, which are computed from the write reports. Thread-safe.

    The label `query` contains a stream's query id or a batch job's application id. The counters are lost when the
    process ends, so call `record` in a long-lived process, such as the program that starts the streams (see
    spark_kafka_sink.spark.progress).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states_by_query_id: dict[str, _QueryState] = {}  # guarded by _lock

    def add_query(self, query_id: str) -> None:
        """Export a query's counters as 0 before its first report.

        Without these zeros, Prometheus' `increase()` would miss the counts of the first report.
        """
        with self._lock:
            self._get_or_add_state(query_id)

    def record(self, report: WriteReport) -> None:
        """Add a report to the metrics of its query. Usable as a `reportCallback`."""
        with self._lock:
            state = self._get_or_add_state(get_query_id(report))
            state.counters.update(_compute_counter_increments(report))
            state.latency_histogram.merge(report.latencies)
            state.last_report = report
            ended_at_s = report.ended_ms / 1000
            if report.is_micro_batch:
                state.last_micro_batch_timestamp_s = ended_at_s
            if report.status == FAILED:
                state.last_failure_timestamp_s = ended_at_s
            if report.dead_letters:
                state.last_dead_letter_timestamp_s = ended_at_s

    def _get_or_add_state(self, query_id: str) -> _QueryState:
        """Return the state of a query, creating it on first use. The caller must hold the lock."""
        if query_id not in self._states_by_query_id and len(self._states_by_query_id) >= _MAX_QUERIES:
            oldest_query_id = next(iter(self._states_by_query_id))
            del self._states_by_query_id[oldest_query_id]
        return self._states_by_query_id.setdefault(query_id, _QueryState())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counters = {
                name: CounterMetricFamily(name, documentation, labels=["query"])
                for name, documentation in _COUNTER_DOCUMENTATION.items()
            }
            gauges = {
                name: GaugeMetricFamily(name, documentation, labels=["query"])
                for name, documentation in _GAUGE_DOCUMENTATION.items()
            }
            for query_id, state in self._states_by_query_id.items():
                for name, counter in counters.items():
                    counter.add_metric([query_id], state.counters[name])
                for name, value in _compute_gauge_values(state).items():
                    gauges[name].add_metric([query_id], value)
            # Copy the histograms, because `record` may change them after the lock has been released.
            latencies_by_labels: dict[tuple[str, ...], LatencyHistogram] = {
                (query_id,): state.latency_histogram.copy() for query_id, state in self._states_by_query_id.items()
            }
        yield from counters.values()
        yield from gauges.values()
        yield _build_histogram("pykafka_delivery_latency_seconds", latencies_by_labels, ["query"])

    def describe(self) -> list[Metric]:
        """Return metrics that are always exported, so that a registry rejects a second collector.

        With two collectors, the scrape would be invalid, because every metric would appear twice.
        """
        return [CounterMetricFamily(name, documentation) for name, documentation in _COUNTER_DOCUMENTATION.items()]


def _compute_counter_increments(report: WriteReport) -> dict[str, float]:
    """Return how much a report adds to each write counter, by metric name."""
    has_failed = report.status == FAILED
    return {
        **{_build_counter_name(name): count * WRITE_METRICS[name].factor for name, count in report.counts().items()},
        "pykafka_writes": 0 if has_failed else 1,
        "pykafka_failed_writes": 1 if has_failed else 0,
    }


def _compute_gauge_values(state: _QueryState) -> dict[str, float]:
    """Return the values of a query's gauges, by metric name. Gauges that have no value yet are omitted.

    Two timestamps are never omitted: those of the latest failed write and of the latest write with dead letters. They
    are 0 until there is such a write.
    """
    values = {
        "pykafka_last_failed_write_timestamp_seconds": state.last_failure_timestamp_s or 0,
        "pykafka_last_dead_letter_timestamp_seconds": state.last_dead_letter_timestamp_s or 0,
    }
    if state.last_micro_batch_timestamp_s is not None:
        values["pykafka_last_micro_batch_timestamp_seconds"] = state.last_micro_batch_timestamp_s
    report = state.last_report
    if report is not None:
        values["pykafka_last_write_timestamp_seconds"] = report.ended_ms / 1000
        values["pykafka_last_write_duration_seconds"] = report.duration_ms / 1000
        values["pykafka_last_write_rows"] = report.rows
        values["pykafka_last_write_longest_task_seconds"] = report.longest_task_ms / 1000
    return values


def _build_histogram(
    name: str, latencies_by_labels: dict[tuple[str, ...], LatencyHistogram], label_names: list[str]
) -> HistogramMetricFamily:
    """Build a latency histogram with one series for each entry of `latencies_by_labels`.

    A latency is rounded up to the end of its bucket in the producer, so the sum is at most a sixteenth too high.
    """
    family = HistogramMetricFamily(name, _LATENCY_DOCUMENTATION, labels=label_names)
    for label_values, histogram in latencies_by_labels.items():
        counts_by_end_ms = {compute_bucket_end_ms(bucket): count for bucket, count in histogram.counts.items()}
        buckets: list[tuple[str, float]] = []
        for boundary_ms in _BUCKET_BOUNDARIES_MS:
            cumulative_count = sum(count for end_ms, count in counts_by_end_ms.items() if end_ms <= boundary_ms)
            buckets.append((str(boundary_ms / 1000), float(cumulative_count)))
        buckets.append(("+Inf", float(sum(histogram.counts.values()))))
        sum_s = sum(end_ms * count for end_ms, count in counts_by_end_ms.items()) / 1000
        family.add_metric(list(label_values), buckets, sum_value=sum_s)
    return family
