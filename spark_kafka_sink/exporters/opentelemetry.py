"""Metrics for OpenTelemetry, by its own API (`pip install "spark-kafka-sink[opentelemetry]"`).

    observe_producer(producer)          a producer's metrics, read when they are collected
    WriteInstruments().record           writes of Spark, from their reports: it may be a `reportCallback`

Both take a MeterProvider; without one the global provider is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.units import WRITE_METRICS, base_unit
from spark_kafka_sink.producer.metrics import split_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.reports.write_report import WriteReport, get_query_id

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'Metrics for OpenTelemetry need its API: pip install "spark-kafka-sink[opentelemetry]".'
    ) from error

_METER = "spark_kafka_sink"
_QUANTILES = (0.5, 0.95, 0.99)


def observe_producer(producer: KafkaProducer, provider: MeterProvider | None = None) -> None:
    """Observe the metrics of docs/metrics.md: `kafka.producer.record_send` for `record-send-total`, and so on.

    Those of a topic begin with `kafka.producer.topic.`, those of a node with `kafka.producer.node.`. Times are in
    seconds; each instrument has its unit. Averages and maxima of nothing are left out.
    """
    meter = _meter(provider)
    for name in sorted(name.stem for name in map(split_name, producer.metrics()) if name.tag is None):
        _observe(meter, "kafka.producer", name, _read_metric(producer, name))
    for tag, names in _TAGGED_METRICS.items():
        for name in names:
            _observe(meter, f"kafka.producer.{tag.removesuffix('-id')}", name, _read_tagged_metric(producer, tag, name))


def _rates_and_totals(*names: str) -> list[str]:
    return [f"{name}-{kind}" for name in names for kind in ("rate", "total")]


_TAGGED_METRICS = {
    "topic": [*_rates_and_totals("record-send", "record-retry", "record-error", "byte"), "compression-rate"],
    "node-id": [
        *_rates_and_totals("request", "response", "outgoing-byte", "incoming-byte"),
        *("request-size-avg", "request-size-max", "request-latency-avg", "request-latency-max"),
    ],
}
"""The metrics of each topic and of each node: instruments are made before there is one."""

_Observations = Callable[[CallbackOptions], Iterable[Observation]]


def _observe(meter: Meter, prefix: str, metric: str, read: _Observations) -> None:
    name, unit, _ = base_unit(metric)
    instrument = f"{prefix}.{name.replace('-', '_')}"
    if metric.endswith("-total"):
        meter.create_observable_counter(instrument.removesuffix("_total"), [read], unit)
    else:
        meter.create_observable_gauge(instrument, [read], unit)


def _read_metric(producer: KafkaProducer, metric: str) -> _Observations:
    factor = base_unit(metric).factor

    def read(options: CallbackOptions) -> Iterator[Observation]:
        value = producer.metric(metric)
        if not math.isnan(value):
            yield Observation(value * factor, {"client_id": producer.config.client_id})

    return read


def _read_tagged_metric(producer: KafkaProducer, tag: str, metric: str) -> _Observations:
    factor = base_unit(metric).factor

    def read(options: CallbackOptions) -> Iterator[Observation]:
        for name, value in producer.metrics().items():
            stem, found_tag, tag_value = split_name(name)
            if (stem, found_tag) == (metric, tag) and not math.isnan(value):
                attributes = {"client_id": producer.config.client_id, tag.replace("-", "_"): tag_value}
                yield Observation(value * factor, attributes)

    return read


class WriteInstruments:
    """Counters and gauges of the writes of Spark's sink.

    The attribute `query` is the id of a stream's query, or of a batch job's application.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._provider = provider if provider is not None else get_meter_provider()
        meter = _meter(self._provider)
        self._counters = {
            counter: meter.create_counter(f"pykafka.{_with_size(name)}", unit)
            for counter, (name, unit, _) in WRITE_METRICS.items()
        }
        self._writes = meter.create_counter("pykafka.writes", "{write}")
        self._duration = meter.create_histogram("pykafka.write.duration", "s")
        self._latency = meter.create_gauge("pykafka.write.latency", "s")

    def record(self, report: WriteReport) -> None:
        """Add one, and let the provider export it: the process that commits may not live until the next interval."""
        query = {"query": get_query_id(report)}
        for counter, count in report.counts().items():
            self._counters[counter].add(count * WRITE_METRICS[counter].factor, query)
        self._writes.add(1, {**query, "status": report.status})
        self._duration.record(report.duration_ms / 1000, query)
        for quantile in _QUANTILES:
            latency_ms = report.latency_ms(quantile)
            if not math.isnan(latency_ms):
                self._latency.set(latency_ms / 1000, {**query, "quantile": quantile})
        flush = getattr(self._provider, "force_flush", None)  # the API's own provider, without an SDK, has none
        if flush is not None:
            flush()


def _with_size(name: str) -> str:
    """Return OpenTelemetry's name of an amount of bytes: `wire.size` for `wire_bytes`."""
    return f"{name.removesuffix('_bytes')}.size" if name.endswith("_bytes") else name


def _meter(provider: MeterProvider | None) -> Meter:
    return (provider if provider is not None else get_meter_provider()).get_meter(_METER)
