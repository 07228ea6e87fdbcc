"""Metrics for OpenTelemetry, as collected by its SDK."""

from __future__ import annotations

import gc
import re
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
from spark_kafka_sink.exporters.units import to_exported_metric
from spark_kafka_sink.producer.record import ProducerRecord
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, wait_for_result
from tests.reports.report_factories import make_report
from tests.simulated_cluster import SimulatedCluster


def collect_values(reader: InMemoryMetricReader) -> dict[tuple[str, object], Any]:
    """Return the value of each point (of a histogram, the sum) by metric name and topic, node, status or quantile."""
    data = reader.get_metrics_data()
    assert data is not None
    values: dict[tuple[str, object], Any] = {}
    metrics = [
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    for metric in metrics:
        for point in metric.data.data_points:
            attributes = point.attributes or {}
            kind = next(
                (attributes[key] for key in ("topic", "node_id", "status", "quantile") if key in attributes), None
            )
            values[metric.name, kind] = getattr(point, "value", None) or getattr(point, "sum", None)
    return values


def test_reads_producer_metrics_on_collection() -> None:
    producer = create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}))
    reader = InMemoryMetricReader()
    observe_producer(producer, MeterProvider([reader]))
    wait_for_result(producer, producer.send(ProducerRecord("t", b"v")))
    values = collect_values(reader)
    assert values[("kafka.producer.record_send", None)] == 1
    assert values[("kafka.producer.topic.record_send", "t")] == 1
    assert 0 < values[("kafka.producer.request_latency_avg", None)] < 1
    assert values[("kafka.producer.node.request", "node-0")] >= 1
    assert 0 < values[("kafka.producer.node.request_latency_max", "node-0")] < 1
    assert values[("kafka.producer.buffer_total", None)] == producer.config.buffer_memory
    names = {name for name, _ in values}
    for name, value in producer.metrics().items():
        stem, _, tag = name.partition("{")
        bare = to_exported_metric(stem).name
        bare = (bare.removesuffix("-total") if stem.endswith("-total") else bare).replace("-", "_")
        expected_name = f"kafka.producer.{'topic.' if tag.startswith('topic') else 'node.' if tag else ''}{bare}"
        assert expected_name in names or value != value, name  # NaN is the average of no values
    producer.close()


UNITS = {
    "kafka.producer.flush_time": "s",
    "kafka.producer.io_wait_time_avg": "s",
    "kafka.producer.request_latency_max": "s",
    "kafka.producer.metadata_age": "s",
    "kafka.producer.buffer_available": "By",
    "kafka.producer.batch_size_avg": "By",
    "kafka.producer.incoming_byte": "By",
    "kafka.producer.outgoing_byte_rate": "By/s",
    "kafka.producer.record_send": "{record}",
    "kafka.producer.record_send_rate": "{record}/s",
    "kafka.producer.connection_count": "{connection}",
    "kafka.producer.failed_authentication": "{authentication}",
    "kafka.producer.io_ratio": "1",
    "kafka.producer.topic.byte": "By",
    "kafka.producer.node.outgoing_byte": "By",
    "kafka.producer.node.request_latency_avg": "s",
    "kafka.producer.topic.compression_rate": "1",
    "pykafka.bytes": "By",
    "pykafka.wire.size": "By",
    "pykafka.write.duration": "s",
}


def test_instruments_have_units_but_no_unit_in_name() -> None:
    producer = create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe_producer(producer, provider)
    WriteInstruments(provider).record(make_report())
    wait_for_result(producer, producer.send(ProducerRecord("t", b"v")))
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    units = {metric.name: metric.unit for metric in metrics}
    assert {name: units[name] for name in UNITS} == UNITS
    assert [name for name, unit in units.items() if not unit or re.search("_(ns|ms|bytes)(_|$)", name)] == []
    producer.close()


def test_sums_counters_over_writes_of_a_job() -> None:
    reader = InMemoryMetricReader()
    writes = WriteInstruments(MeterProvider([reader]))
    for number in range(3):
        writes.record(make_report(number, latency_ms=20))
    values = collect_values(reader)
    assert values[("pykafka.rows", None)] == 3_000
    assert values[("pykafka.writes", "committed")] == 3
    assert values[("pykafka.write.duration", None)] == 1.5
    assert values[("pykafka.write.latency", 0.99)] == 0.021
    assert values[("pykafka.blocked", None)] == pytest.approx(0.12)


def test_instruments_of_one_provider_share_its_gauge() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for number, latency_ms in enumerate((20, 500)):
        WriteInstruments(provider).record(make_report(number, latency_ms=latency_ms))
    values = collect_values(reader)
    assert values[("pykafka.writes", "committed")] == 2
    assert values[("pykafka.write.latency", 0.99)] > 0.5


def test_exports_each_producer_of_a_provider_until_it_is_collected() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    producers = [
        create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}), client_id=client_id)
        for client_id in ("a", "b")
    ]
    for producer in producers:
        observe_producer(producer, provider)
        wait_for_result(producer, producer.send(ProducerRecord("t", b"v")))
    for metric_name in ("kafka.producer.record_send", "kafka.producer.topic.record_send"):
        assert collect_client_ids(reader, metric_name) == {"a", "b"}
    producers.pop().close()
    del producer
    gc.collect()
    assert collect_client_ids(reader, "kafka.producer.record_send") == {"a"}
    producers[0].close()


def collect_client_ids(reader: InMemoryMetricReader, metric_name: str) -> set[object]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (point.attributes or {})["client_id"]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == metric_name
        for point in metric.data.data_points
    }


class CountingExporter(MetricExporter):
    """An exporter that counts its exports."""

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


def test_exports_each_write_immediately() -> None:
    """The committing process may end before the next export interval."""
    exporter = CountingExporter()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    WriteInstruments(provider).record(make_report())
    assert exporter.exports == 1
    provider.shutdown()


def test_records_nothing_without_provider() -> None:
    WriteInstruments().record(make_report())


def test_names_missing_opentelemetry_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    monkeypatch.delitem(sys.modules, "spark_kafka_sink.exporters.opentelemetry")
    with pytest.raises(MissingDependencyError, match=r'pip install "spark-kafka-sink\[opentelemetry\]"'):
        import spark_kafka_sink.exporters.opentelemetry  # noqa: F401
