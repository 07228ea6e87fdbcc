"""Metrics for OpenTelemetry, by its own API (`pip install "spark-kafka-sink[opentelemetry]"`).

    observe_producer(producer)          a producer's metrics, read when they are collected
    WriteInstruments().record           writes of Spark, from their reports: it may be a `reportCallback`

Both take a MeterProvider; without one the global provider is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.producer.metrics import split_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.reports.write_report import WriteReport, job_of

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'Metrics for OpenTelemetry need its API: pip install "spark-kafka-sink[opentelemetry]".'
    ) from error

_METER = "spark_kafka_sink"
_COUNTERS: dict[str, tuple[str, Callable[[WriteReport], float]]] = {
    "pykafka.rows": ("{row}", lambda report: report.rows),
    "pykafka.bytes": ("By", lambda report: report.bytes),
    "pykafka.wire_bytes": ("By", lambda report: report.wire_bytes),
    "pykafka.uncompressed_bytes": ("By", lambda report: report.uncompressed_bytes),
    "pykafka.retried_records": ("{record}", lambda report: report.retries),
    "pykafka.dead_letters": ("{record}", lambda report: report.dead_letters),
    "pykafka.blocked": ("s", lambda report: report.blocked_ms / 1000),
    "pykafka.batches": ("{batch}", lambda report: report.batches),
    "pykafka.requests": ("{request}", lambda report: report.requests),
    "pykafka.throttle": ("s", lambda report: report.throttle_ms / 1000),
    "pykafka.paced": ("s", lambda report: report.paced_ms / 1000),
}
_QUANTILES = (0.5, 0.95, 0.99)


def observe_producer(producer: KafkaProducer, provider: MeterProvider | None = None) -> None:
    """`kafka.producer.record_send` and so on: docs/metrics.md has the names, with dashes.

    Those of a topic begin with `kafka.producer.topic.`. Averages and maxima of nothing are left out.
    """
    meter = _meter(provider)
    for name in sorted(bare for bare, topic in map(split_name, producer.metrics()) if topic is None):
        _observe(meter, f"kafka.producer.{name.replace('-', '_')}", _one(producer, name))
    for name in TOPIC_METRICS:
        _observe(meter, f"kafka.producer.topic.{name.replace('-', '_')}", _of_topics(producer, name))


_OF_TOPICS = ("record-send", "record-retry", "record-error", "byte")
TOPIC_METRICS = (*(f"{name}-{kind}" for name in _OF_TOPICS for kind in ("rate", "total")), "compression-rate")


def _observe(meter: Meter, name: str, read: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
    if name.endswith("_total"):
        meter.create_observable_counter(name.removesuffix("_total"), [read])
    else:
        meter.create_observable_gauge(name, [read])


def _one(producer: KafkaProducer, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def read(options: CallbackOptions) -> Iterator[Observation]:
        value = producer.metric(name)
        if not math.isnan(value):
            yield Observation(value, {"client_id": producer.config.client_id})

    return read


def _of_topics(producer: KafkaProducer, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def read(options: CallbackOptions) -> Iterator[Observation]:
        for metric, value in producer.metrics().items():
            bare, topic = split_name(metric)
            if topic is not None and bare == name and not math.isnan(value):
                yield Observation(value, {"client_id": producer.config.client_id, "topic": topic})

    return read


class WriteInstruments:
    """Counters and gauges of the writes of Spark's sink, with the attribute `job`: the query's or application's id."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._provider = provider if provider is not None else get_meter_provider()
        meter = _meter(self._provider)
        self._counters = {name: meter.create_counter(name, unit) for name, (unit, _) in _COUNTERS.items()}
        self._writes = meter.create_counter("pykafka.writes", "{write}")
        self._duration = meter.create_histogram("pykafka.write.duration", "s")
        self._latency = meter.create_gauge("pykafka.write.latency", "s")

    def record(self, report: WriteReport) -> None:
        """Add one, and let the provider export it: the process that commits may not live until the next interval."""
        job = {"job": job_of(report)}
        for name, (_, amount) in _COUNTERS.items():
            self._counters[name].add(amount(report), job)
        self._writes.add(1, {**job, "status": report.status})
        self._duration.record(report.duration_ms / 1000, job)
        for quantile in _QUANTILES:
            latency_ms = report.latency_ms(quantile)
            if not math.isnan(latency_ms):
                self._latency.set(latency_ms / 1000, {**job, "quantile": quantile})
        flush = getattr(self._provider, "force_flush", None)  # the API's own provider, without an SDK, has none
        if flush is not None:
            flush()


def _meter(provider: MeterProvider | None) -> Meter:
    return (provider if provider is not None else get_meter_provider()).get_meter(_METER)
