"""Writes with `writeMethod` = `mapInArrow`, the only method in Spark 3.5."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.spark.datasource import plan_batch_write
from spark_kafka_sink.testing import (
    EmbeddedBroker,
    KafkaTopic,
    assert_topic_equals,
    embedded_broker,
    run_stream,
    stream_of,
)

pytestmark = pytest.mark.needs("java")

Batches = Iterator[pa.RecordBatch]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> KafkaTopic:
    return broker.create_topic("t", 2)


@pytest.fixture
def options(topic: KafkaTopic, tmp_path: Path) -> dict[str, str]:
    return topic.spark_options | {"writeMethod": "mapInArrow", "reportPath": str(tmp_path / "report.jsonl")}


def numbers(spark: SparkSession, first: int, last: int, tasks: int = 2) -> DataFrame:
    return spark.range(first, last, 1, tasks).selectExpr("CAST(id AS STRING) AS value")


def save(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    frame.write.format("pykafka").options(**options | more).save()


def test_writes_each_row_once_and_reports_tasks(
    spark: SparkSession, topic: KafkaTopic, options: dict[str, str], tmp_path: Path
) -> None:
    """The rows come from a shuffle, which adaptive execution runs as a separate stage."""

    def count(batches: Batches) -> Batches:
        with open(tmp_path / "runs", "a") as runs:
            runs.write("x")
        yield from batches

    counted = spark.range(0, 100, 1, 3).mapInArrow(count, "id LONG").repartition(2)
    frame = counted.selectExpr("id AS other", "CAST(id AS STRING) AS value", "array(id) AS more", "'k' AS key")
    save(frame, options)
    assert (tmp_path / "runs").read_text() == "xxx"
    assert_topic_equals(spark.range(100).selectExpr("CAST(id AS STRING) AS value", "'k' AS key"), topic)
    (report,) = read_reports(options["reportPath"])
    assert (report.rows, report.tasks, report.status) == (100, 2, "committed")
    assert report.batch.startswith(f"{spark.sparkContext.applicationId}/stage-")


def test_writes_with_hundreds_of_tasks(spark: SparkSession, topic: KafkaTopic, options: dict[str, str]) -> None:
    save(numbers(spark, 0, 320, tasks=320), options)
    (report,) = read_reports(options["reportPath"])
    assert (report.rows, report.tasks) == (320, 320)
    assert_topic_equals(numbers(spark, 0, 320), topic)


def test_writes_empty_dataframe(spark: SparkSession, options: dict[str, str]) -> None:
    save(spark.createDataFrame([], "value STRING"), options, deliveryGuarantee="exactly-once")
    assert [report.rows for report in read_reports(options["reportPath"])] == [0]


def test_writes_columns_of_any_name(spark: SparkSession, topic: KafkaTopic, options: dict[str, str]) -> None:
    names = ["a.b", "a`b", "*", "x y", "c", "C"]
    frame = spark.range(1).selectExpr(*(str(number) for number in range(len(names)))).toDF(*names)
    save(frame, options, valueFormat="json")
    (value,) = topic.read().column("value").to_pylist()
    assert json.loads(value) == {name: number for number, name in enumerate(names)}


def test_plan_has_no_option_values(spark: SparkSession, options: dict[str, str]) -> None:
    frame = numbers(spark, 0, 1)
    names = {name.lower(): value for name, value in options.items()} | {"kafka.ssl.key.password": "hidden"}
    writer = plan_batch_write(names | {"checkconnection": "false"}, frame.schema)
    plan: Any = frame.mapInArrow(writer.write_in_map, "report BINARY")
    text = plan._jdf.queryExecution().toString()
    assert "write_in_map" in text
    assert "hidden" not in text
    assert options["kafka.bootstrap.servers"] not in text


def test_raises_plain_error_of_failed_task(spark: SparkSession, options: dict[str, str]) -> None:
    frame = spark.range(2).selectExpr("repeat('x', 1000) AS value")
    with pytest.raises(DeliveryError, match=r"^The task for Spark partition .* failed to write \d records?") as error:
        save(frame, options, **{"kafka.max.request.size": "100"})
    assert "Traceback" not in str(error.value)
    assert type(error.value.__context__).__name__ == "PythonException"
    assert [report.status for report in read_reports(options["reportPath"])] == ["failed"]


def test_writes_dead_letters(spark: SparkSession, broker: EmbeddedBroker, options: dict[str, str]) -> None:
    letters = broker.create_topic("letters", 1)
    broker.control.create_topic("narrow", 1, {"max.message.bytes": "1000"})
    frame = spark.createDataFrame([("small",), ("x" * 3000,)], "value STRING")
    save(frame, options, topic="narrow", onRecordError="deadLetter", deadLetterTopic="letters")
    assert broker.topic("narrow").read().column("value").to_pylist() == [b"small"]
    assert letters.read().num_rows == 1
    (report,) = read_reports(options["reportPath"])
    assert (report.rows, report.dead_letters) == (1, 1)


def test_distributes_rows_by_partition(spark: SparkSession, topic: KafkaTopic, options: dict[str, str]) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    save(frame, options, distribution="partition", orderBy="key")
    assert_topic_equals(frame, topic)
    for partition in (0, 1):
        keys = [row["key"] for row in topic.read().to_pylist() if row["partition"] == partition]
        assert keys == sorted(keys)


FAIL_PROPERTY = "pykafka.tests.fail"
FAILING_VALUE = (
    f"if(value = '150' AND java_method('java.lang.System', 'getProperty', '{FAIL_PROPERTY}') = 'yes', "
    "raise_error('of the job'), value) AS value"
)
"""The column `value`. One of its rows fails the task while the JVM property is set."""


@contextmanager
def failing_tasks(spark: SparkSession) -> Iterator[None]:
    jvm: Any = spark._jvm
    system = jvm.java.lang.System
    system.setProperty(FAIL_PROPERTY, "yes")
    try:
        yield
    finally:
        system.clearProperty(FAIL_PROPERTY)


def test_exactly_once_job_with_failed_task_writes_nothing_until_it_succeeds(
    spark: SparkSession, topic: KafkaTopic, options: dict[str, str], tmp_path: Path
) -> None:
    frame = numbers(spark, 0, 200).selectExpr(FAILING_VALUE)
    once = {"deliveryGuarantee": "exactly-once", "idempotencyKey": f"job-{tmp_path.name}"}
    with failing_tasks(spark), pytest.raises(Exception, match="of the job"):
        save(frame, options, **once)
    assert topic.read().num_rows == 0
    for _ in range(2):
        save(frame, options, **once)
        assert_topic_equals(numbers(spark, 0, 200), topic)


def test_exactly_once_job_with_killed_worker_writes_nothing(
    spark: SparkSession, topic: KafkaTopic, options: dict[str, str]
) -> None:
    def kill(batches: Batches) -> Batches:
        for batch in batches:
            if "150" in batch.column("value").to_pylist():
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    # One task only: Spark 3.5 and 4.1 may assign a sibling's Python worker, just after they killed it, to a later task.
    frame = numbers(spark, 0, 200, tasks=1).mapInArrow(kill, "value STRING")
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        save(frame, options, deliveryGuarantee="exactly-once")
    assert topic.read().num_rows == 0
    assert [report.status for report in read_reports(options["reportPath"])] == ["failed"]


def test_exactly_once_stream_with_failed_task_continues_after_restart(
    spark: SparkSession, topic: KafkaTopic, options: dict[str, str], tmp_path: Path
) -> None:
    # Each batch has one task, for the same reason as in the previous test.
    rows = stream_of([numbers(spark, first, first + 100, tasks=1) for first in (0, 100, 200)], tmp_path / "source")
    once = options | {"deliveryGuarantee": "exactly-once", "checkpointLocation": str(tmp_path / "checkpoint")}
    writer = rows.selectExpr(FAILING_VALUE).writeStream.format("pykafka").options(**once)
    with failing_tasks(spark), pytest.raises(StreamingQueryException):
        run_stream(writer)
    assert_topic_equals(numbers(spark, 0, 100), topic)
    query = run_stream(writer)
    assert_topic_equals(numbers(spark, 0, 300), topic)
    reports = [(report.batch, report.status, report.rows) for report in read_reports(options["reportPath"])]
    failed = (f"{query.id}/1", "failed", 0)
    assert reports == [
        (f"{query.id}/0", "committed", 100),
        failed,
        *((f"{query.id}/{number}", "committed", 100) for number in (1, 2)),
    ]


@pytest.mark.parametrize("output_mode", ["append", "update", "complete"])
def test_stream_writes_in_each_output_mode(
    spark: SparkSession, topic: KafkaTopic, options: dict[str, str], tmp_path: Path, output_mode: str
) -> None:
    rows = stream_of([numbers(spark, 0, 3, tasks=1), numbers(spark, 1, 4, tasks=1)], tmp_path / "source")
    if output_mode != "append":
        rows = rows.groupBy("value").count().selectExpr("concat(value, ' ', count) AS value")
    run_stream(rows.writeStream.format("pykafka").outputMode(output_mode).options(**options))
    values = sorted(value.decode() for value in topic.read().column("value").to_pylist())
    assert (
        values
        == {
            "append": ["0", "1", "1", "2", "2", "3"],
            "update": ["0 1", "1 1", "1 2", "2 1", "2 2", "3 1"],
            "complete": ["0 1", "0 1", "1 1", "1 2", "2 1", "2 2", "3 1"],
        }[output_mode]
    )
    assert len(read_reports(options["reportPath"])) == 2


def test_rejects_tables(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    frame = numbers(spark, 0, 1)
    with pytest.raises(
        ConfigurationError, match=r"^saveAsTable\(\) and toTable\(\) write through a Python data source"
    ):
        frame.write.format("pykafka").options(**options).saveAsTable("sink")
    stream = stream_of([frame], tmp_path / "source").writeStream.format("pykafka").options(**options)
    with pytest.raises(ConfigurationError, match=r"Use save\(\) or start\(\)"):
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("sink")


def test_report_in_json_is_that_of_the_data_source(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    save(numbers(spark, 0, 10), options)
    (report,) = map(json.loads, Path(options["reportPath"]).read_text().splitlines())
    assert (report["status"], report["rows"], len(report["task_list"])) == ("committed", 10, 2)
