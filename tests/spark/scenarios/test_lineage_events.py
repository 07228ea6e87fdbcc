"""OpenLineage events of writes by a real Spark. A server validates them against OpenLineage's schemas."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.spark import lineage
from spark_kafka_sink.spark.lineage import flush_events
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, run_stream, stream_of
from tests.spark.lineage_server import LineageServer, lineage_server
from tests.spark_session import gateway_environment, restore_callbacks
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.needs("java")

ROOT = Path(__file__).parents[3]
API_KEY = "top-secret-key"


@pytest.fixture
def server(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageServer]:
    """Run a server that the application's settings name, and check that every event it receives is valid."""
    monkeypatch.setattr(lineage, "_senders", {})
    # Users set these before Spark starts. Here Spark is running, and SparkConf of the running context is changed.
    conf: Any = spark.sparkContext._jsc.sc().conf()
    with lineage_server() as server:
        settings = {
            "transport.type": "http",
            "transport.url": server.url,
            "transport.auth.type": "api_key",
            "transport.auth.apiKey": API_KEY,
            "namespace": "team",
        }
        for name, value in settings.items():
            conf.set(f"spark.openlineage.{name}", value)
        try:
            yield server
        finally:
            for name in settings:
                conf.remove(f"spark.openlineage.{name}")
        flush_events(WAIT_TIMEOUT_SECONDS)
    assert server.violations == []
    assert API_KEY not in repr(server.events)
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {API_KEY}"}
    assert len({event["run"]["runId"] for event in server.events}) == 1
    assert {event["job"]["namespace"] for event in server.events} == {"team"}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture
def options(broker: EmbeddedBroker, tmp_path: Path) -> dict[str, str]:
    return broker.topic("orders").spark_options | {"checkpointLocation": str(tmp_path / "checkpoint")}


def numbers(spark: SparkSession, last: int) -> DataFrame:
    return spark.range(0, last, 1, 2).selectExpr("CAST(id AS STRING) AS value", "array(id) AS other")


def types(server: LineageServer) -> list[str]:
    flush_events(WAIT_TIMEOUT_SECONDS)
    return [event["eventType"] for event in server.events]


def output(event: dict[str, Any]) -> tuple[str, str, list[str], int | None]:
    """Return namespace, name, columns and rows of an event's only output."""
    (dataset,) = event["outputs"]
    columns = [field["name"] for field in dataset["facets"]["schema"]["fields"]]
    statistics = dataset["outputFacets"].get("outputStatistics", {})
    return dataset["namespace"], dataset["name"], columns, statistics.get("rowCount")


def test_batch_write_sends_start_and_complete(
    spark: SparkSession, server: LineageServer, broker: EmbeddedBroker, options: dict[str, str]
) -> None:
    numbers(spark, 100).write.format("pykafka").options(**options).save()
    assert types(server) == ["START", "COMPLETE"]
    namespace = f"kafka://{broker.bootstrap_servers}"
    assert output(server.events[0]) == (namespace, "orders", ["value"], None)
    assert output(server.events[1]) == (namespace, "orders", ["value"], 100)
    assert server.events[1]["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert server.events[1]["run"]["facets"]["processing_engine"]["version"] == spark.version


def test_write_through_map_in_arrow_sends_start_and_complete(
    spark: SparkSession, server: LineageServer, options: dict[str, str]
) -> None:
    numbers(spark, 100).write.format("pykafka").options(**options, writeMethod="mapInArrow").save()
    assert types(server) == ["START", "COMPLETE"]
    assert output(server.events[1])[3] == 100
    assert server.events[0]["job"]["name"].endswith("map_in_arrow")


def test_write_that_fails_before_spark_plans_it_sends_fail(
    spark: SparkSession, server: LineageServer, options: dict[str, str]
) -> None:
    """The stage before the shuffle fails, so no writer exists yet."""
    frame = numbers(spark, 10).selectExpr("CAST(raise_error('the cause') AS STRING) AS value").repartition(2)
    with pytest.raises(Exception, match="the cause"):  # pyspark's error or, in Spark 3.5, py4j's
        frame.write.format("pykafka").options(**options).save()
    assert types(server) == ["START", "FAIL"]
    assert "the cause" in server.events[1]["run"]["facets"]["errorMessage"]["message"]


def test_stream_sends_running_until_it_is_stopped(
    spark: SparkSession,
    server: LineageServer,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lineage, "_PROGRESS_INTERVAL_SECONDS", 0.05)
    frame = stream_of([numbers(spark, 100)], tmp_path / "rows")
    query = frame.writeStream.format("pykafka").options(**options).start()
    wait_until(lambda: len(server.events) > 1)
    query.stop()
    wait_until(lambda: types(server)[-1] == "COMPLETE")
    assert types(server) == ["START", "RUNNING", "COMPLETE"]
    assert [output(event)[3] for event in server.events] == [None, 100, 100]
    assert server.events[2]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert server.events[2]["job"]["name"].endswith(".write_to_data_source_v2")


def test_micro_batches_written_as_jobs_belong_to_run_of_stream(
    spark: SparkSession, server: LineageServer, options: dict[str, str], tmp_path: Path
) -> None:
    """Output mode update runs through foreachBatch."""
    frame = stream_of([numbers(spark, 20), numbers(spark, 30)], tmp_path / "rows").select("value")
    run_stream(frame.writeStream.outputMode("update").format("pykafka").options(**options))
    wait_until(lambda: types(server)[-1] == "COMPLETE")
    assert types(server) == ["START", "COMPLETE"]
    assert output(server.events[1])[3] == 50


def test_failed_stream_sends_fail(
    spark: SparkSession, server: LineageServer, options: dict[str, str], tmp_path: Path
) -> None:
    frame = stream_of([numbers(spark, 20)], tmp_path / "rows").selectExpr(
        "CAST(raise_error('the cause') AS STRING) AS value"
    )
    with pytest.raises(PySparkException):
        run_stream(frame.writeStream.format("pykafka").options(**options))
    wait_until(lambda: types(server)[-1] == "FAIL")
    assert types(server) == ["START", "FAIL"]
    assert "the cause" in server.events[1]["run"]["facets"]["errorMessage"]["message"]


def test_unresponsive_server_does_not_delay_writes(
    spark: SparkSession, server: LineageServer, broker: EmbeddedBroker, options: dict[str, str]
) -> None:
    """The server responds only after the write has ended."""
    server.hold = threading.Event()
    numbers(spark, 100).write.format("pykafka").options(**options).save()
    assert broker.topic("orders").read().num_rows == 100
    assert server.events == []
    server.hold.set()
    assert types(server) == ["START", "COMPLETE"]


def run_program(spark: SparkSession, broker: EmbeddedBroker, folder: Path, last: str) -> None:
    """Run tests/spark/lineage_job.py, and stop the queries and jobs that it leaves running in the JVM."""
    command = [sys.executable, "-m", "tests.spark.lineage_job", broker.bootstrap_servers, str(folder), last]
    environment = os.environ | gateway_environment(spark)
    try:
        subprocess.run(
            command, cwd=ROOT, env=environment, timeout=WAIT_TIMEOUT_SECONDS, capture_output=True, check=False
        )
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.sparkContext.cancelAllJobs()
        restore_callbacks(spark)
        register(spark)  # otherwise the data source would report to an accumulator server of the ended program


def test_end_of_program_sends_remaining_events(
    spark: SparkSession, server: LineageServer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """The query is running when the program ends."""
    run_program(spark, broker, tmp_path, "end")
    assert [event_type for event_type in types(server) if event_type != "RUNNING"] == ["START", "ABORT"]
    assert output(server.events[-1])[3] == 10


def test_interrupted_write_sends_abort(
    spark: SparkSession, server: LineageServer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    run_program(spark, broker, tmp_path, "interrupt")
    # Up to Spark 4.1, pyspark's handler of SIGINT itself fails: the program gets py4j's error, not KeyboardInterrupt.
    is_reported_by_py4j = pyspark.__version__.startswith(("3.5", "4.0", "4.1"))
    assert types(server) == ["START", "FAIL" if is_reported_by_py4j else "ABORT"]
