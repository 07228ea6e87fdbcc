"""Reports of the sink for Spark's streaming progress, as described in docs/monitoring.md."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
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

TRIGGER_START_MS = make_report(0).started_ms - 5


def progress_event(query: str, batch: int, trigger_start_ms: int = TRIGGER_START_MS) -> Any:
    time = datetime.fromtimestamp(trigger_start_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    timestamp = time.replace("+00:00", "Z")
    return SimpleNamespace(progress=SimpleNamespace(id=query, batchId=batch, timestamp=timestamp))


def test_listener_finds_report_of_micro_batch(tmp_path: Path) -> None:
    seen: list[tuple[int, Any]] = []
    path = str(tmp_path / "reports.jsonl")
    listener = ReportListener(path, lambda report, progress: seen.append((report.rows, progress.batchId)))
    for batch in range(3):
        save_report(path, make_report(batch, rows=10 + batch))
        listener.onQueryProgress(progress_event("6d2a", batch))
    listener.onQueryProgress(progress_event("another", 2))
    assert seen == [(10, 0), (11, 1), (12, 2)]


def listened_rows(path: Path, *publication_offsets_ms: int, executor_clock_error_ms: int = 0) -> list[int]:
    """Save reports of one micro-batch, which are published this long after its trigger and have 0, 1, 2, ... rows.

    Return the numbers of rows of the reports that the listener passes on.
    """
    for number, offset_ms in enumerate(publication_offsets_ms):
        published_ms = TRIGGER_START_MS + offset_ms
        report = replace(
            make_report(rows=number), started_ms=published_ms + executor_clock_error_ms, published_ms=published_ms
        )
        save_report(str(path), report)
    seen: list[int] = []
    ReportListener(str(path), lambda report, progress: seen.append(report.rows)).onQueryProgress(
        progress_event("6d2a", 0)
    )
    return seen


def test_listener_passes_on_each_report_of_micro_batch(tmp_path: Path) -> None:
    assert listened_rows(tmp_path, 0, 10, 20) == [0, 1, 2]


def test_listener_ignores_reports_of_earlier_run_of_micro_batch(tmp_path: Path) -> None:
    assert listened_rows(tmp_path, -30_000, -1, 10, 20) == [2, 3]


def test_listener_ignores_reports_of_earlier_run_if_current_run_has_none(tmp_path: Path) -> None:
    assert listened_rows(tmp_path, -30_000, -1) == []


@pytest.mark.parametrize("executor_clock_error_ms", [-60_000, -1_000, 60_000])
def test_listener_does_not_depend_on_executor_clock(tmp_path: Path, executor_clock_error_ms: int) -> None:
    assert listened_rows(tmp_path, -1, 500, 2_500, executor_clock_error_ms=executor_clock_error_ms) == [1, 2]


def test_listener_rejects_invalid_path_immediately() -> None:
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
        observed = progress["observedMetrics"]["rows_to_kafka"]
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
