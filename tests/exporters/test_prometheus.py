"""Metrics for Prometheus, as exposed by its client library."""

from __future__ import annotations

import dataclasses
import gc
import math
import re
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.prometheus import ProducerCollector, WriteCollector
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.reports.write_report import FAILED
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, wait_for_result
from tests.reports.report_factories import make_report
from tests.simulated_cluster import SimulatedCluster

LABEL_NAMES = ("topic", "node_id", "le", "query")


def scrape(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Return the values on the page that Prometheus scrapes, by metric name and label value."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, next((sample.labels[key] for key in LABEL_NAMES if key in sample.labels), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_reads_producer_metrics_on_scrape() -> None:
    producer = create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}))
    registry = CollectorRegistry()
    registry.register(ProducerCollector(producer))
    assert scrape(registry)[("kafka_producer_record_send_total", "")] == 0
    for _ in range(3):
        wait_for_result(producer, producer.send(ProducerRecord("t", b"v")))
    values = scrape(registry)
    assert values[("kafka_producer_record_send_total", "")] == 3
    assert values[("kafka_producer_topic_record_send_total", "t")] == 3
    requests = [values[("kafka_producer_node_request_total", f"node-{node}")] for node in (-1, 0)]
    assert requests[1] >= 3
    assert sum(requests) == values[("kafka_producer_request_total", "")]
    latency_ms = producer.metric("request-latency-avg")
    assert values[("kafka_producer_node_request_latency_avg_seconds", "node-0")] == pytest.approx(latency_ms / 1000)
    assert values[("kafka_producer_buffer_total_bytes", "")] == producer.config.buffer_memory
    assert values[("kafka_producer_delivery_latency_seconds_count", "")] == 3
    assert values[("kafka_producer_delivery_latency_seconds_bucket", "0.001")] == 0
    assert values[("kafka_producer_delivery_latency_seconds_bucket", "+Inf")] == 3


UNITS = {"seconds", "bytes", "total", "rate", "ratio", "avg", "max", "connections", "flight", "threads"}
"""Allowed last words of metric names: a unit, `total`, or the name of a quantity without a unit."""
NOT_BASE_UNITS = ("_ns", "_ms", "milliseconds", "nanoseconds", "kilobytes")


def test_exports_every_producer_metric_in_base_units() -> None:
    producer = create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}))
    wait_for_result(producer, producer.send(ProducerRecord("t", b"v")))
    registry = CollectorRegistry()
    registry.register(ProducerCollector(producer))
    values = scrape(registry)
    families = {name for name, _ in values if "latency_seconds_" not in name}
    numbers = {name.replace("node--1", "node-0") for name, value in producer.metrics().items() if not math.isnan(value)}
    assert len(families) == len(numbers)
    assert [name for name in families if any(unit in name for unit in NOT_BASE_UNITS)] == []
    assert {name.rpartition("_")[2] for name in families} <= UNITS
    for name, java, factor in (
        ("metadata_wait_time_seconds_total", "metadata-wait-time-ns-total", 1e-9),
        ("io_wait_time_avg_seconds", "io-wait-time-ns-avg", 1e-9),
        ("request_latency_avg_seconds", "request-latency-avg", 1e-3),
        ("record_queue_time_max_seconds", "record-queue-time-max", 1e-3),
        ("batch_size_avg_bytes", "batch-size-avg", 1),
    ):
        assert values[(f"kafka_producer_{name}", "")] == pytest.approx(producer.metric(java) * factor) != 0


def test_collector_exports_each_name_once_for_several_producers() -> None:
    registry, collector = CollectorRegistry(), ProducerCollector()
    registry.register(collector)
    producers = [
        create_simulated_producer(SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})) for _ in range(2)
    ]
    for producer in producers:
        collector.add(producer)
    text = generate_latest(registry).decode()
    names = re.findall(r"(?m)^# TYPE (\S+)", text)
    assert len(names) == len(set(names)) > 40
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert text.count("kafka_producer_record_send_total{") == 2
    del producer
    producers.clear()
    gc.collect()
    assert "kafka_producer_record_send_total{" not in generate_latest(registry).decode()


@pytest.mark.parametrize("collector", [ProducerCollector, WriteCollector])
def test_registry_rejects_second_collector(
    collector: type[ProducerCollector] | type[WriteCollector],
) -> None:
    registry = CollectorRegistry()
    registry.register(collector())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(collector())


def test_sums_counters_over_writes_of_a_job() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    for number in range(3):
        writes.record(make_report(number, latency_ms=3))
    writes.record(dataclasses.replace(make_report(3), status=FAILED, rows=7))
    values = scrape(registry)
    assert values[("pykafka_rows_total", "6d2a")] == 3_007
    assert values[("pykafka_writes_total", "6d2a")] == 3
    assert values[("pykafka_failed_writes_total", "6d2a")] == 1
    assert values[("pykafka_dead_letters_total", "6d2a")] == 8
    assert values[("pykafka_blocked_seconds_total", "6d2a")] == pytest.approx(0.16)
    assert values[("pykafka_last_write_rows", "6d2a")] == 7
    assert values[("pykafka_last_write_timestamp_seconds", "6d2a")] == 1_700_000_030.5
    assert values[("pykafka_last_micro_batch_timestamp_seconds", "6d2a")] == 1_700_000_030.5
    assert values[("pykafka_delivery_latency_seconds_bucket", "0.002")] == 0
    assert values[("pykafka_delivery_latency_seconds_bucket", "0.004")] == 3_000
    assert values[("pykafka_delivery_latency_seconds_bucket", "+Inf")] == 4_000


def test_added_query_has_zero_counters_before_first_report() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    writes.add_query("6d2a")
    values = scrape(registry)
    assert values[("pykafka_failed_writes_total", "6d2a")] == values[("pykafka_dead_letters_total", "6d2a")] == 0
    assert ("pykafka_last_write_timestamp_seconds", "6d2a") not in values


def test_exports_times_of_last_failure_and_last_dead_letters() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    writes.record(dataclasses.replace(make_report(0), dead_letters=0))
    values = scrape(registry)
    assert values[("pykafka_last_failed_write_timestamp_seconds", "6d2a")] == 0
    assert values[("pykafka_last_dead_letter_timestamp_seconds", "6d2a")] == 0
    writes.record(dataclasses.replace(make_report(1), status=FAILED))
    writes.record(dataclasses.replace(make_report(2), dead_letters=0))
    values = scrape(registry)
    assert values[("pykafka_last_failed_write_timestamp_seconds", "6d2a")] == 1_700_000_010.5
    assert values[("pykafka_last_dead_letter_timestamp_seconds", "6d2a")] == 1_700_000_010.5


def test_batch_job_has_no_micro_batch_time() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    writes.record(dataclasses.replace(make_report(), batch="app-20261127/stage-3"))
    assert ("pykafka_last_micro_batch_timestamp_seconds", "app-20261127") not in scrape(registry)


def test_collector_removes_oldest_query_above_limit() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    for number in range(1_001):
        writes.record(dataclasses.replace(make_report(), batch=f"job-{number}/0"))
    values = scrape(registry)
    assert ("pykafka_rows_total", "job-0") not in values
    assert ("pykafka_rows_total", "job-1000") in values


def test_names_missing_prometheus_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    monkeypatch.delitem(sys.modules, "spark_kafka_sink.exporters.prometheus")
    with pytest.raises(MissingDependencyError, match=r'pip install "spark-kafka-sink\[prometheus\]"'):
        import spark_kafka_sink.exporters.prometheus  # noqa: F401
