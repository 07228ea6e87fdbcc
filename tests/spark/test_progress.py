"""Reports of the sink for Spark's streaming progress, as described in docs/monitoring.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from pyspark.sql import SparkSession

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports.store import save_report
from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.spark.progress import ReportListener
from spark_kafka_sink.testing import embedded_broker, read_topic
from tests.reports.report_factories import make_report
from tests.test_monitoring_document import example
from tests.waiting import wait_until


class Progress:
    def __init__(self, query: str, batch: int) -> None:
        self.id, self.batchId = query, batch


class Event:
    def __init__(self, query: str, batch: int) -> None:
        self.progress = Progress(query, batch)


def test_listener_finds_report_of_micro_batch(tmp_path: Path) -> None:
    seen: list[tuple[int, Any]] = []
    path = str(tmp_path / "reports.jsonl")
    listener = ReportListener(path, lambda report, progress: seen.append((report.rows, progress.batchId)))
    for batch in range(3):
        save_report(path, make_report(batch, rows=10 + batch))
        event: Any = Event("6d2a", batch)
        listener.onQueryProgress(event)
    other: Any = Event("another", 2)
    listener.onQueryProgress(other)
    assert seen == [(10, 0), (11, 1), (12, 2)]


def test_listener_rejects_invalid_path_at_once() -> None:
    with pytest.raises(ConfigurationError, match="https: paths are not supported for reports"):
        ReportListener("https://x/y", lambda report, progress: None)


@pytest.mark.needs("java")
def test_documented_report_listener_watches_stream(spark: SparkSession, tmp_path: Path) -> None:
    """One stream provides observed rows in Spark's progress, and reports in a folder, a topic and Prometheus."""
    source, reports = str(tmp_path / "source"), f"{tmp_path}/reports/"
    spark.range(500).selectExpr("CAST(id AS STRING) AS value").coalesce(1).write.parquet(source)
    seen: list[WriteReport] = []
    with embedded_broker(topics={"events": 2, "reports": 1}) as broker:
        names: dict[str, Any] = {"spark": spark, "events": spark.readStream.schema("value STRING").parquet(source)}
        example("listener", {"/data/reports/": reports, "9400": "0"}, names)
        extra = ReportListener(reports, lambda report, progress: seen.append(report))
        spark.streams.addListener(extra)
        example(
            "observe",
            {
                "broker:9092": broker.bootstrap_servers,
                "/checkpoints/events": str(tmp_path / "checkpoint"),
                '.option("topic", "events")': f'.option("topic", "events").option("reportPath", "{reports}")'
                '.option("reportTopic", "reports")',
            },
            names,
        )
        query = names["query"]
        query.processAllAvailable()
        wait_until(lambda: bool(seen))
        progress = next(progress for progress in query.recentProgress if progress["numInputRows"])
        observed = progress["observedMetrics"]["handed over"]
        query.stop()
        spark.streams.removeListener(extra)
        topic = read_topic(broker.bootstrap_servers, "reports")
    assert (observed["rows"], observed["bytes"]) == (500, 1_390)
    assert seen[0].rows == 500
    assert seen[0].latency_ms(0.99) > 0
    assert len(topic) == 1
    text = generate_latest(REGISTRY).decode()
    REGISTRY.unregister(names["writes"])
    assert f'pykafka_rows_total{{query="{query.id}"}} 500.0' in text
