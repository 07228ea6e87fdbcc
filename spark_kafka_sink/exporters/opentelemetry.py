"""Metrics for OpenTelemetry (`pip install "spark-kafka-sink[opentelemetry]"`).

    observe_producer(producer)          exports producer metrics, which are read when OpenTelemetry collects them
    WriteInstruments().record           exports metrics of Spark writes from their reports; usable as a `reportCallback`

`observe_producer` and `WriteInstruments` accept a MeterProvider. The default is OpenTelemetry's global provider.

An SDK ignores the callback of an observable instrument if the provider already has an instrument of that name. So each
instrument is created once per provider, and its callback observes all producers, or the writes of all queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakKeyDictionary, WeakSet

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.units import WRITE_METRICS, to_exported_metric
from spark_kafka_sink.producer.metrics import parse_metric_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.reports.write_report import WriteReport, get_query_id

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        'Metrics for OpenTelemetry require its API: pip install "spark-kafka-sink[opentelemetry]".'
    ) from error

_METER_NAME = "spark_kafka_sink"
_QUANTILES = (0.5, 0.95, 0.99)


def observe_producer(producer: KafkaProducer, provider: MeterProvider | None = None) -> None:
    """Create an observable instrument for each producer metric in docs/metrics.md.

    For example, `record-send-total` becomes `kafka.producer.record_send`. Topic metrics have the prefix
    `kafka.producer.topic.`, and node metrics have the prefix `kafka.producer.node.`. Times are in seconds. Averages
    and maxima are omitted if they have no samples.
    """
    provider = get_meter_provider() if provider is None else provider
    producers = _producers_by_provider.get(provider)
    if producers is not None:
        producers.add(producer)
        return
    producers = _producers_by_provider[provider] = WeakSet([producer])
    meter = provider.get_meter(_METER_NAME)
    parsed_names = [parse_metric_name(name) for name in producer.metrics()]
    # A metric without a tag belongs to the producer as a whole, rather than to a topic or node. All producers have the
    # same metrics without a tag.
    producer_base_names = sorted(parsed_name.base_name for parsed_name in parsed_names if parsed_name.tag_key is None)
    for base_name in producer_base_names:
        _create_instrument(meter, "kafka.producer", base_name, _build_callback(producers, base_name))
    for tag_key, base_names in _TAGGED_METRIC_BASE_NAMES.items():
        prefix = f"kafka.producer.{tag_key.removesuffix('-id')}"
        for base_name in base_names:
            _create_instrument(meter, prefix, base_name, _build_tagged_callback(producers, tag_key, base_name))


_producers_by_provider: WeakKeyDictionary[MeterProvider, WeakSet[KafkaProducer]] = WeakKeyDictionary()
"""The producers whose metrics each provider exports."""


def _list_rates_and_totals(*prefixes: str) -> list[str]:
    return [f"{prefix}-{kind}" for prefix in prefixes for kind in ("rate", "total")]


_TAGGED_METRIC_BASE_NAMES = {
    "topic": [*_list_rates_and_totals("record-send", "record-retry", "record-error", "byte"), "compression-rate"],
    "node-id": [
        *_list_rates_and_totals("request", "response", "outgoing-byte", "incoming-byte"),
        "request-size-avg",
        "request-size-max",
        "request-latency-avg",
        "request-latency-max",
    ],
}
"""Names of the topic metrics and node metrics without their tags, by tag key.

They are listed here because a producer has no such metrics until it knows a topic or node. The instruments are usually
created before that.
"""

_ObservableCallback = Callable[[CallbackOptions], Iterable[Observation]]


def _create_instrument(meter: Meter, prefix: str, base_name: str, callback: _ObservableCallback) -> None:
    """Create an observable counter for a metric whose name ends in `-total`, and an observable gauge for any other."""
    exported_metric = to_exported_metric(base_name)
    instrument_name = f"{prefix}.{exported_metric.name.replace('-', '_')}"
    if base_name.endswith("-total"):
        meter.create_observable_counter(instrument_name.removesuffix("_total"), [callback], exported_metric.unit)
    else:
        meter.create_observable_gauge(instrument_name, [callback], exported_metric.unit)


def _build_callback(producers: WeakSet[KafkaProducer], base_name: str) -> _ObservableCallback:
    """Build the callback that observes a metric of each producer as a whole."""
    unit_factor = to_exported_metric(base_name).factor

    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for producer in producers.copy():
            value = producer.metric(base_name)
            if not math.isnan(value):
                yield Observation(value * unit_factor, {"client_id": producer.config.client_id})

    return observe


def _build_tagged_callback(producers: WeakSet[KafkaProducer], tag_key: str, base_name: str) -> _ObservableCallback:
    """Build the callback that observes a metric of each topic or of each node, for each producer.

    `tag_key`: `topic` or `node-id`.
    `base_name`: the metric's name without its tag.
    """
    unit_factor = to_exported_metric(base_name).factor

    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for producer in producers.copy():
            for name, value in producer.metrics().items():
                parsed_name = parse_metric_name(name)
                if parsed_name.base_name == base_name and parsed_name.tag_key == tag_key and not math.isnan(value):
                    attributes = {
                        "client_id": producer.config.client_id,
                        tag_key.replace("-", "_"): parsed_name.tag_value,
                    }
                    yield Observation(value * unit_factor, attributes)

    return observe


_latencies_by_provider: WeakKeyDictionary[MeterProvider, dict[tuple[str, float], float]] = WeakKeyDictionary()
"""The latencies in seconds of each query's last write, by query and quantile, for each provider."""


class WriteInstruments:
    """Counters, gauges and a histogram for Spark writes.

    The attribute `query` contains a stream's query id or a batch job's application id.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._provider = provider if provider is not None else get_meter_provider()
        meter = self._provider.get_meter(_METER_NAME)
        # The keys are those of WriteReport.counts().
        self._counters = {
            count_name: meter.create_counter(f"pykafka.{_to_instrument_name(metric.name)}", metric.unit)
            for count_name, metric in WRITE_METRICS.items()
        }
        self._writes = meter.create_counter("pykafka.writes", "{write}")
        self._duration = meter.create_histogram("pykafka.write.duration", "s")
        if self._provider not in _latencies_by_provider:
            _latencies_by_provider[self._provider] = {}
            # An observable gauge, because older SDKs export a value that was set only once.
            meter.create_observable_gauge("pykafka.write.latency", [self._observe_latencies], "s")
        self._latencies_s = _latencies_by_provider[self._provider]

    def record(self, report: WriteReport) -> None:
        """Record a report and flush the provider. Usable as a `reportCallback`.

        The provider is flushed because the process that commits the write may exit before the next scheduled export.
        """
        query_id = get_query_id(report)
        attributes = {"query": query_id}
        for count_name, count in report.counts().items():
            self._counters[count_name].add(count * WRITE_METRICS[count_name].factor, attributes)
        self._writes.add(1, {**attributes, "status": report.status})
        self._duration.record(report.duration_ms / 1000, attributes)
        for quantile in _QUANTILES:
            latency_ms = report.latency_ms(quantile)
            if not math.isnan(latency_ms):
                self._latencies_s[query_id, quantile] = latency_ms / 1000
        # If no SDK is installed, the provider is a no-op without force_flush.
        force_flush = getattr(self._provider, "force_flush", None)
        if force_flush is not None:
            force_flush()

    def _observe_latencies(self, options: CallbackOptions) -> Iterator[Observation]:
        # A copy, because the SDK may collect on another thread during `record`.
        for (query_id, quantile), latency_s in self._latencies_s.copy().items():
            yield Observation(latency_s, {"query": query_id, "quantile": quantile})


def _to_instrument_name(name: str) -> str:
    """Convert a write metric's name to OpenTelemetry's conventions, for example `wire_bytes` to `wire.size`."""
    return f"{name.removesuffix('_bytes')}.size" if name.endswith("_bytes") else name
