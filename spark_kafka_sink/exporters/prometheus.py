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
from spark_kafka_sink.producer.metrics import split_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.windows import Latencies, bucket_end_ms
from spark_kafka_sink.reports.write_report import FAILED, WriteReport, job_of

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


_NANOSECONDS, _MILLISECONDS = 1e-9, 1e-3
_IN_MILLISECONDS = ("record-queue-time-", "request-latency-", "produce-throttle-time-")
_IN_BYTES = ("batch-size-", "record-size-", "request-size-")


class ProducerCollector(Collector):
    """`kafka_producer_record_send_total{client_id="..."}` and so on: docs/metrics.md has the names, with dashes.

    Those of a topic begin with `kafka_producer_topic_` and have the label `topic`. Times are in seconds, and say so.
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
    stem, topic = split_name(name)
    bare, factor = _with_unit(stem)
    bare = bare if topic is None else f"topic-{bare}"
    family = families.get(bare)
    if family is None:
        names = ["client_id"] if topic is None else ["client_id", "topic"]
        family = families[bare] = _family(bare, stem, names)
    family.add_metric([client] if topic is None else [client, topic], value * factor)  # type: ignore[attr-defined]


def _with_unit(name: str) -> tuple[str, float]:
    """The name with Prometheus' base unit at its end, and what the value is multiplied with."""
    stem, _, kind = name.rpartition("-")
    if stem.endswith("-ns"):
        stem = stem.removesuffix("-ns")
        return (f"{stem}-seconds-total" if kind == "total" else f"{stem}-{kind}-seconds"), _NANOSECONDS
    if name.startswith(_IN_MILLISECONDS):
        return f"{name}-seconds", _MILLISECONDS
    if name == "metadata-age":
        return f"{name}-seconds", 1.0
    if name == "connection-count":
        return "connections", 1.0  # Prometheus keeps the end `_count` for histograms
    return (f"{name}-bytes" if name.startswith(_IN_BYTES) else name), 1.0


def _family(name: str, stem: str, labels: list[str]) -> Metric:
    words = f"kafka_producer_{name.replace('-', '_')}"
    kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
    return kind(words, f"{stem} of KafkaProducer.metrics()", labels=labels)


def _producer_latencies(latencies: dict[tuple[str, ...], Latencies]) -> HistogramMetricFamily:
    words = "From a batch's first record to the acknowledgement, by record"
    return _histogram("kafka_producer_delivery_latency_seconds", words, latencies, ["client_id"])


@dataclass
class _Job:
    """What the reports of one query or application add up to. `last` is the latest of them."""

    sums: Counter[str] = field(default_factory=Counter)
    latencies: Latencies = field(default_factory=Latencies)
    last: WriteReport | None = None


_SUMS = {
    "pykafka_rows": "Rows that brokers have acknowledged",
    "pykafka_bytes": "Keys, values and headers of these rows",
    "pykafka_wire_bytes": "Record batches as they were sent",
    "pykafka_uncompressed_bytes": "These batches before compression",
    "pykafka_retried_records": "Records that were sent again",
    "pykafka_dead_letters": "Records that went to the dead-letter topic",
    "pykafka_blocked_seconds": "How long tasks waited for memory",
    "pykafka_batches": "Record batches that brokers have stored",
    "pykafka_requests": "Produce requests that brokers have answered",
    "pykafka_throttle_seconds": "How long brokers held producers back because of a quota",
    "pykafka_paced_seconds": "How long tasks waited because of maxBytesPerSecond",
    "pykafka_writes": "Batch jobs or micro-batches that were committed",
    "pykafka_failed_writes": "Batch jobs or micro-batches that failed",
}
_LAST = {
    "pykafka_last_write_timestamp_seconds": "When the latest write ended",
    "pykafka_last_write_duration_seconds": "How long the latest write took",
    "pykafka_last_write_rows": "Rows of the latest write",
    "pykafka_last_write_longest_task_seconds": "The longest task of the latest write",
}
_JOBS_MAX = 1_000
"""Jobs that a collector remembers; the first is forgotten for the next."""


class WriteCollector(Collector):
    """The writes of Spark's sink, by the label `job`: a stream's query id, or a batch job's application id.

    Counters live as long as the process: a long-lived one, such as the program that starts the streams, should call
    `record`, from spark_kafka_sink.spark.progress.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}  # guarded by _lock

    def record(self, report: WriteReport) -> None:
        """Add one; it may be a `reportCallback`."""
        with self._lock:
            name = job_of(report)
            if name not in self._jobs and len(self._jobs) >= _JOBS_MAX:
                del self._jobs[next(iter(self._jobs))]
            job = self._jobs.setdefault(name, _Job())
            job.sums.update(_amounts(report))
            job.latencies.merge(report.latencies)
            job.last = report

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counters = {name: CounterMetricFamily(name, words, labels=["job"]) for name, words in _SUMS.items()}
            gauges = {name: GaugeMetricFamily(name, words, labels=["job"]) for name, words in _LAST.items()}
            for name, job in self._jobs.items():
                for counter, family in counters.items():
                    family.add_metric([name], job.sums[counter])
                if job.last is not None:
                    for gauge, value in _of_last(job.last).items():
                        gauges[gauge].add_metric([name], value)
            latencies: dict[tuple[str, ...], Latencies]
            latencies = {(name,): job.latencies.copy() for name, job in self._jobs.items()}
        yield from counters.values()
        yield from gauges.values()
        yield _histogram(
            "pykafka_delivery_latency_seconds", "From a batch's first record to the acknowledgement", latencies, ["job"]
        )

    def describe(self) -> list[Metric]:
        """Names that are always there: a registry refuses a second collector, whose page Prometheus could not read."""
        return [CounterMetricFamily(name, words) for name, words in _SUMS.items()]


def _amounts(report: WriteReport) -> dict[str, float]:
    failed = report.status == FAILED
    return {
        "pykafka_rows": report.rows,
        "pykafka_bytes": report.bytes,
        "pykafka_wire_bytes": report.wire_bytes,
        "pykafka_uncompressed_bytes": report.uncompressed_bytes,
        "pykafka_retried_records": report.retries,
        "pykafka_dead_letters": report.dead_letters,
        "pykafka_blocked_seconds": report.blocked_ms / 1000,
        "pykafka_batches": report.batches,
        "pykafka_requests": report.requests,
        "pykafka_throttle_seconds": report.throttle_ms / 1000,
        "pykafka_paced_seconds": report.paced_ms / 1000,
        "pykafka_writes": 0 if failed else 1,
        "pykafka_failed_writes": 1 if failed else 0,
    }


def _of_last(report: WriteReport) -> dict[str, float]:
    return {
        "pykafka_last_write_timestamp_seconds": (report.started_ms + report.duration_ms) / 1000,
        "pykafka_last_write_duration_seconds": report.duration_ms / 1000,
        "pykafka_last_write_rows": report.rows,
        "pykafka_last_write_longest_task_seconds": report.longest_task_ms / 1000,
    }


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
