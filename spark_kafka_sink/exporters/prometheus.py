"""Metrics for Prometheus, by its own client (`pip install "spark-kafka-sink[prometheus]"`).

REGISTRY.register(ProducerCollector(producer))     the metrics of producers, read when Prometheus asks
REGISTRY.register(WriteCollector())                writes of Spark, from the reports that `record` is called with
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.units import BYTES, SECONDS, WRITE_METRICS, base_unit
from spark_kafka_sink.producer.metrics import split_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.totals import WRITE_COUNTERS
from spark_kafka_sink.producer.windows import Latencies, bucket_end_ms
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
        'Metrics for Prometheus need its client: pip install "spark-kafka-sink[prometheus]".'
    ) from error

_BUCKETS_MS = tuple(float(1 << power) for power in range(18))
"""1 ms to 131 s. The producer counts in finer buckets, whose ends meet these."""


_SUFFIXES = {SECONDS: "seconds", BYTES: "bytes"}


class ProducerCollector(Collector):
    """`kafka_producer_record_send_total{client_id="..."}` and so on: docs/metrics.md has the names, with dashes.

    Those of a topic begin with `kafka_producer_topic_` and have the label `topic`; those of a node begin with
    `kafka_producer_node_` and have the label `node_id`. Times are in seconds, and say so.
    Averages and maxima of nothing are left out. A registry takes one collector, for all producers of the program: `add`
    adds one that is made later, and one that is gone is left out.
    """

    def __init__(self, *producers: KafkaProducer) -> None:
        self._producers: weakref.WeakSet[KafkaProducer] = weakref.WeakSet(producers)

    def add(self, producer: KafkaProducer) -> None:
        self._producers.add(producer)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        latencies: dict[tuple[str, ...], Latencies] = {}
        for producer in sorted(self._producers, key=lambda one: one.config.client_id):
            client = producer.config.client_id
            if (client,) in latencies:
                client = f"{client} ({len(latencies) + 1})"  # two series of the same labels would be no page
            latencies[(client,)] = producer.totals().latencies
            for name, value in producer.metrics().items():
                if not math.isnan(value):
                    _add(families, client, name, value)
        yield from families.values()
        yield _producer_latencies(latencies)

    def describe(self) -> list[Metric]:
        """A name that is always there: a registry refuses a second collector, whose page Prometheus could not read."""
        return [_producer_latencies({})]


def _add(families: dict[str, Metric], client: str, name: str, value: float) -> None:
    stem, tag, tag_value = split_name(name)
    bare, factor = _with_unit(stem)
    names, values = ["client_id"], [client]
    if tag is not None:
        bare = f"{tag.removesuffix('-id')}-{bare}"
        names.append(tag.replace("-", "_"))
        values.append(tag_value)
    family = families.get(bare)
    if family is None:
        family = families[bare] = _family(bare, stem, names)
    family.add_metric(values, value * factor)  # type: ignore[attr-defined]


def _with_unit(metric: str) -> tuple[str, float]:
    """The name with Prometheus' base unit at its end, and what the value is multiplied with."""
    if metric == "connection-count":
        return "connections", 1.0  # Prometheus keeps the end `_count` for histograms
    name, unit, factor = base_unit(metric)
    suffix = _SUFFIXES.get(unit)
    if suffix is None or "byte" in name:
        return name, factor
    stem, _, kind = name.rpartition("-")
    return (f"{stem}-{suffix}-total" if kind == "total" and unit == SECONDS else f"{name}-{suffix}"), factor


def _family(name: str, stem: str, labels: list[str]) -> Metric:
    words = f"kafka_producer_{name.replace('-', '_')}"
    kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
    return kind(words, f"{stem} of KafkaProducer.metrics()", labels=labels)


def _producer_latencies(latencies: dict[tuple[str, ...], Latencies]) -> HistogramMetricFamily:
    words = "From a batch's first record to the acknowledgement, by record"
    return _histogram("kafka_producer_delivery_latency_seconds", words, latencies, ["client_id"])


@dataclass
class _Query:
    """The sums over the reports of a stream's query or of a batch job's application, and its latest report."""

    sums: Counter[str] = field(default_factory=Counter)
    latencies: Latencies = field(default_factory=Latencies)
    last: WriteReport | None = None
    last_micro_batch_s: float | None = None
    last_failed_s: float = 0
    last_dead_letter_s: float = 0


def _counter_name(counter: str) -> str:
    name, unit, _ = WRITE_METRICS[counter]
    return f"pykafka_{name}_seconds" if unit == SECONDS else f"pykafka_{name}"


_SUMS = {
    **{_counter_name(name): counter.meaning for name, counter in WRITE_COUNTERS.items()},
    "pykafka_writes": "Batch jobs or micro-batches that were committed",
    "pykafka_failed_writes": "Batch jobs or micro-batches that failed",
}
_LAST = {
    "pykafka_last_write_timestamp_seconds": "When the latest write ended",
    "pykafka_last_write_duration_seconds": "How long the latest write took",
    "pykafka_last_write_rows": "Rows of the latest write",
    "pykafka_last_write_longest_task_seconds": "The longest task of the latest write",
    "pykafka_last_micro_batch_timestamp_seconds": "When a stream's latest micro-batch ended",
    "pykafka_last_failed_write_timestamp_seconds": "When the latest failed write ended; 0 if none has failed",
    "pykafka_last_dead_letter_timestamp_seconds": "When the latest write with dead letters ended; 0 if there is none",
}
_QUERIES_MAX = 1_000
"""Queries that a collector remembers; the first one is forgotten for the next."""


class WriteCollector(Collector):
    """The writes of Spark's sink, by the label `query`: a stream's query id, or a batch job's application id.

    Counters live as long as the process: a long-lived one, such as the program that starts the streams, should call
    `record`, from spark_kafka_sink.spark.progress.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}  # guarded by _lock

    def add_query(self, query_id: str) -> None:
        """Export the query's counters as 0 until its first report, so that `increase()` sees what that counts."""
        with self._lock:
            self._query(query_id)

    def record(self, report: WriteReport) -> None:
        """Add a report; may be used as a `reportCallback`."""
        with self._lock:
            query = self._query(get_query_id(report))
            query.sums.update(_amounts(report))
            query.latencies.merge(report.latencies)
            query.last = report
            ended_s = report.ended_ms / 1000
            if report.is_micro_batch:
                query.last_micro_batch_s = ended_s
            if report.status == FAILED:
                query.last_failed_s = ended_s
            if report.dead_letters:
                query.last_dead_letter_s = ended_s

    def _query(self, query_id: str) -> _Query:
        if query_id not in self._queries and len(self._queries) >= _QUERIES_MAX:
            del self._queries[next(iter(self._queries))]
        return self._queries.setdefault(query_id, _Query())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counters = {name: CounterMetricFamily(name, words, labels=["query"]) for name, words in _SUMS.items()}
            gauges = {name: GaugeMetricFamily(name, words, labels=["query"]) for name, words in _LAST.items()}
            for query_id, query in self._queries.items():
                for counter, family in counters.items():
                    family.add_metric([query_id], query.sums[counter])
                for gauge, value in _latest(query).items():
                    gauges[gauge].add_metric([query_id], value)
            latencies: dict[tuple[str, ...], Latencies]
            latencies = {(query_id,): query.latencies.copy() for query_id, query in self._queries.items()}
        yield from counters.values()
        yield from gauges.values()
        yield _histogram(
            "pykafka_delivery_latency_seconds",
            "From a batch's first record to the acknowledgement",
            latencies,
            ["query"],
        )

    def describe(self) -> list[Metric]:
        """Names that are always there: a registry refuses a second collector, whose page Prometheus could not read."""
        return [CounterMetricFamily(name, words) for name, words in _SUMS.items()]


def _amounts(report: WriteReport) -> dict[str, float]:
    failed = report.status == FAILED
    return {
        **{_counter_name(name): count * WRITE_METRICS[name].factor for name, count in report.counts().items()},
        "pykafka_writes": 0 if failed else 1,
        "pykafka_failed_writes": 1 if failed else 0,
    }


def _latest(query: _Query) -> dict[str, float]:
    values = {
        "pykafka_last_failed_write_timestamp_seconds": query.last_failed_s,
        "pykafka_last_dead_letter_timestamp_seconds": query.last_dead_letter_s,
    }
    if query.last_micro_batch_s is not None:
        values["pykafka_last_micro_batch_timestamp_seconds"] = query.last_micro_batch_s
    if query.last is not None:
        values["pykafka_last_write_timestamp_seconds"] = query.last.ended_ms / 1000
        values["pykafka_last_write_duration_seconds"] = query.last.duration_ms / 1000
        values["pykafka_last_write_rows"] = query.last.rows
        values["pykafka_last_write_longest_task_seconds"] = query.last.longest_task_ms / 1000
    return values


def _histogram(
    name: str, words: str, latencies: dict[tuple[str, ...], Latencies], labels: list[str]
) -> HistogramMetricFamily:
    """The sum is made of the ends of the producer's buckets, so it is at most a sixteenth too high."""
    family = HistogramMetricFamily(name, words, labels=labels)
    for values, one in latencies.items():
        ends = [(bucket_end_ms(bucket), records) for bucket, records in one.counts.items()]
        buckets = [
            (str(limit_ms / 1000), float(sum(records for end_ms, records in ends if end_ms <= limit_ms)))
            for limit_ms in _BUCKETS_MS
        ]
        buckets.append(("+Inf", float(sum(one.counts.values()))))
        family.add_metric(list(values), buckets, sum_value=sum(end_ms * records for end_ms, records in ends) / 1000)
    return family
