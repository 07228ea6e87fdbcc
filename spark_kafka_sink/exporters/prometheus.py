"""Metrics for Prometheus, by its own client (`pip install "spark-kafka-sink[prometheus]"`).

REGISTRY.register(ProducerCollector(producer))     a producer's metrics, read when Prometheus asks
REGISTRY.register(WriteCollector())                writes of Spark, from the reports that `record` is called with
"""

from __future__ import annotations

import math
import threading
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


class ProducerCollector(Collector):
    """`kafka_producer_record_send_total{client_id="..."}` and so on: docs/metrics.md has the names, with dashes.

    Those of a topic begin with `kafka_producer_topic_` and have the label `topic`. Averages and maxima of nothing are
    left out.
    """

    def __init__(self, producer: KafkaProducer) -> None:
        self._producer = producer

    def collect(self) -> Iterator[Metric]:
        client = self._producer.config.client_id
        families: dict[str, Metric] = {}
        for name, value in self._producer.metrics().items():
            if math.isnan(value):
                continue
            stem, topic = split_name(name)
            bare = stem if topic is None else f"topic-{stem}"
            labels = [client] if topic is None else [client, topic]
            family = families.get(bare)
            if family is None:
                names = ["client_id"] if topic is None else ["client_id", "topic"]
                family = families[bare] = _family(bare, names)
            family.add_metric(labels, value)  # type: ignore[attr-defined]
        yield from families.values()
        yield _histogram(
            "kafka_producer_delivery_latency_seconds",
            "From a batch's first record to the acknowledgement, by record",
            {(client,): self._producer.totals().latencies},
            ["client_id"],
        )

    def describe(self) -> list[Metric]:
        """Nothing in advance: the names are those that the producer has when it is asked."""
        return []


def _family(name: str, labels: list[str]) -> Metric:
    words = f"kafka_producer_{name.replace('-', '_')}"
    kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
    return kind(words, f"docs/metrics.md: {name.removeprefix('topic-')}", labels=labels)


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
        """Nothing in advance, so that several collectors can stand in one registry."""
        return []


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
