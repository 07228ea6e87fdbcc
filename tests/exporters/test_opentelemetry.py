"""Metrics as OpenTelemetry collects them, by its own SDK."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.opentelemetry import WriteInstruments, observe_producer
from spark_kafka_sink.producer.record import ProducerRecord
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import outcome, simulated_producer
from tests.reports.some_reports import report
from tests.simulated_cluster import SimulatedCluster


def collected(reader: InMemoryMetricReader) -> dict[tuple[str, object], Any]:
    """(name, topic or status or quantile) -> value, or the sum of a histogram."""
    data = reader.get_metrics_data()
    assert data is not None
    values: dict[tuple[str, object], Any] = {}
    metrics = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
    for metric in metrics:
        for point in metric.data.data_points:
            attributes = point.attributes or {}
            kind = next((attributes[key] for key in ("topic", "status", "quantile") if key in attributes), None)
            values[metric.name, kind] = getattr(point, "value", None) or getattr(point, "sum", None)
    return values


def test_a_producers_metrics_are_read_when_they_are_collected() -> None:
    producer = simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}))
    reader = InMemoryMetricReader()
    observe_producer(producer, MeterProvider([reader]))
    outcome(producer, producer.send(ProducerRecord("t", b"v")))
    values = collected(reader)
    assert values[("kafka.producer.record_send", None)] == 1
    assert values[("kafka.producer.topic.record_send", "t")] == 1
    assert values[("kafka.producer.request_latency_avg", None)] > 0
    names = {name for name, _ in values}
    for name, value in producer.metrics().items():
        stem, _, topic = name.partition("{")
        wanted = f"kafka.producer.{'topic.' if topic else ''}{stem.replace('-', '_').removesuffix('_total')}"
        assert wanted in names or value != value, name  # nan: an average of nothing
    producer.close()


def test_the_writes_of_a_job_add_up() -> None:
    reader = InMemoryMetricReader()
    writes = WriteInstruments(MeterProvider([reader]))
    for number in range(3):
        writes.record(report(number, latency_ms=20))
    values = collected(reader)
    assert values[("pykafka.rows", None)] == 3_000
    assert values[("pykafka.writes", "committed")] == 3
    assert values[("pykafka.write.duration", None)] == 1.5
    assert values[("pykafka.write.latency", 0.99)] == 0.021
    assert values[("pykafka.blocked", None)] == pytest.approx(0.12)


class Kept(MetricExporter):
    """An exporter that keeps what was exported."""

    def __init__(self) -> None:
        super().__init__()
        self.exports = 0

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        self.exports += 1
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        pass


def test_a_write_is_exported_at_once() -> None:
    """The process that commits may end before the next interval."""
    exporter = Kept()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    WriteInstruments(provider).record(report())
    assert exporter.exports == 1
    provider.shutdown()


def test_without_a_provider_it_does_nothing() -> None:
    WriteInstruments().record(report())


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    monkeypatch.delitem(sys.modules, "spark_kafka_sink.exporters.opentelemetry")
    with pytest.raises(MissingDependencyError, match=r'pip install "spark-kafka-sink\[opentelemetry\]"'):
        import spark_kafka_sink.exporters.opentelemetry  # noqa: F401
