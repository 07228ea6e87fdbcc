"""Metrics as Prometheus scrapes them, by its own client."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.exporters.prometheus import ProducerCollector, WriteCollector
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.reports.write_report import FAILED
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import outcome, simulated_producer
from tests.reports.some_reports import report
from tests.simulated_cluster import SimulatedCluster


def scraped(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """The text that Prometheus gets, parsed again: (name, topic or job or le) -> value."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, sample.labels.get("topic") or sample.labels.get("le") or sample.labels.get("job") or ""): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_producers_metrics_are_read_when_prometheus_asks() -> None:
    producer = simulated_producer(SimulatedCluster(FakeSystem(latency_ms=3), topics={"t": 1}))
    registry = CollectorRegistry()
    registry.register(ProducerCollector(producer))
    assert scraped(registry)[("kafka_producer_record_send_total", "")] == 0
    for _ in range(3):
        outcome(producer, producer.send(ProducerRecord("t", b"v")))
    values = scraped(registry)
    assert values[("kafka_producer_record_send_total", "")] == 3
    assert values[("kafka_producer_topic_record_send_total", "t")] == 3
    assert values[("kafka_producer_buffer_total_bytes", "")] == producer.config.buffer_memory
    assert values[("kafka_producer_delivery_latency_seconds_count", "")] == 3
    assert values[("kafka_producer_delivery_latency_seconds_bucket", "0.001")] == 0
    assert values[("kafka_producer_delivery_latency_seconds_bucket", "+Inf")] == 3


def test_every_metric_of_the_producer_is_scraped() -> None:
    producer = simulated_producer(SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1}))
    outcome(producer, producer.send(ProducerRecord("t", b"v")))
    registry = CollectorRegistry()
    registry.register(ProducerCollector(producer))
    names = {name for name, _ in scraped(registry)}
    for name, value in producer.metrics().items():
        stem, _, topic = name.partition("{")
        wanted = f"kafka_producer_{'topic_' if topic else ''}{stem.replace('-', '_')}"
        assert wanted in names or value != value, name  # nan: an average of nothing


def test_several_producers_stand_in_one_registry() -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        producer = simulated_producer(SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1}))
        registry.register(ProducerCollector(producer))
    assert generate_latest(registry)


def test_the_writes_of_a_job_add_up() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    for number in range(3):
        writes.record(report(number, latency_ms=3))
    writes.record(dataclasses.replace(report(3), status=FAILED, rows=7))
    values = scraped(registry)
    assert values[("pykafka_rows_total", "6d2a")] == 3_007
    assert values[("pykafka_writes_total", "6d2a")] == 3
    assert values[("pykafka_failed_writes_total", "6d2a")] == 1
    assert values[("pykafka_dead_letters_total", "6d2a")] == 8
    assert values[("pykafka_blocked_seconds_total", "6d2a")] == pytest.approx(0.16)
    assert values[("pykafka_last_write_rows", "6d2a")] == 7
    assert values[("pykafka_last_write_timestamp_seconds", "6d2a")] == 1_700_000_030.5
    assert values[("pykafka_delivery_latency_seconds_bucket", "0.002")] == 0
    assert values[("pykafka_delivery_latency_seconds_bucket", "0.004")] == 3_000
    assert values[("pykafka_delivery_latency_seconds_bucket", "+Inf")] == 4_000


def test_a_collector_forgets_the_first_of_too_many_jobs() -> None:
    registry, writes = CollectorRegistry(), WriteCollector()
    registry.register(writes)
    for number in range(1_001):
        writes.record(dataclasses.replace(report(), batch=f"job-{number}/0"))
    values = scraped(registry)
    assert ("pykafka_rows_total", "job-0") not in values
    assert ("pykafka_rows_total", "job-1000") in values


def test_without_prometheus_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    monkeypatch.delitem(sys.modules, "spark_kafka_sink.exporters.prometheus")
    with pytest.raises(MissingDependencyError, match=r'pip install "spark-kafka-sink\[prometheus\]"'):
        import spark_kafka_sink.exporters.prometheus  # noqa: F401
