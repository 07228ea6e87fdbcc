"""DataFrames that are written to the embedded broker, read back and compared."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.errors import ConfigurationError, SchemaError
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.pool import IDLE_TIMEOUT_CONF, find_idle_timeout_seconds
from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker, run_stream, topic_frame

pytestmark = pytest.mark.needs("java")

STORED = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Create a topic with three partitions for the test, and return its name."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    broker.control.create_topic(name, partitions=3)
    return name


def write(frame: DataFrame, broker: EmbeddedBroker, topic: str | None = None, **options: str) -> None:
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**{name.replace("__", "."): value for name, value in options.items()}).save()


def stored(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> DataFrame:
    return topic_frame(spark, broker.topic(topic))


def test_writes_null_empty_and_unicode_strings(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    rows = [("k", "v"), (None, "no key"), ("", ""), ("tombstone", None), ("ключ", "😀 日本語"), (None, None)]
    frame = spark.createDataFrame(rows, "key STRING, value STRING")
    write(frame, broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


def test_writes_binary_of_every_byte(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    rows = [(bytes(range(256)), bytes(reversed(range(256)))), (b"", b"\x00"), (None, b"\xff\xfe")]
    frame = spark.createDataFrame(rows, "key BINARY, value BINARY")
    write(frame, broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


def test_writes_columns_in_any_order_and_ignores_others(
    spark: SparkSession, broker: EmbeddedBroker, topic: str
) -> None:
    frame = spark.range(10).selectExpr("id AS other", "CAST(id AS STRING) AS value", "array(id) AS more", "'k' AS key")
    write(frame, broker, topic)
    expected = frame.select("key", "value")
    assert_topic_equals(expected, broker.topic(topic))


@pytest.mark.parametrize("columns", [["a", "A"], ["A"], ["a.b", "x y"], ["a", "A", "a.b", "x y", "other"]])
def test_writes_named_columns_of_any_name(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, columns: list[str]
) -> None:
    names = ["a", "A", "a.b", "x y", "other"]
    frame = spark.range(1).selectExpr(*(str(number) for number in range(len(names)))).toDF(*names)
    write(frame, broker, topic, valueFormat="json", valueColumns=", ".join(columns))
    (value,) = broker.topic(topic).read().column("value").to_pylist()
    assert json.loads(value) == {name: names.index(name) for name in columns}


def test_does_not_send_other_columns_to_python(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    """The other columns have duplicate names, as after a join, a type that Arrow lacks, or a name in another case."""
    orders = spark.range(10).selectExpr("id", "CAST(id AS STRING) AS value", "id AS at")
    customers = spark.range(10).selectExpr("id", "'c' AS at", "INTERVAL '1' MONTH AS VALUE", "'no' AS topic")
    joined = orders.join(customers, orders["id"] == customers["id"])
    assert [name for name in joined.columns if joined.columns.count(name) > 1] == ["id", "at", "id", "at"]
    write(joined, broker, topic)
    expected = orders.select("value")
    assert_topic_equals(expected, broker.topic(topic))


def test_rejects_two_sink_columns_of_one_name(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(1).selectExpr("'a' AS value", "'b' AS key", "'c' AS key")
    with pytest.raises(SchemaError, match=r"There are 2 columns named 'key'\. Rename or drop all but one of them"):
        write(frame, broker, topic)


def test_writes_headers_of_struct_arrays(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    rows: list[tuple[str, Any]] = [
        ("two", [("a", b"1"), ("a", b"2")]),
        ("null value", [("n", None)]),
        ("one", [("ünï", b"\x00\xff")]),
    ]
    frame = spark.createDataFrame(rows, f"value STRING, {HEADERS}")
    write(frame, broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


def test_ignores_case_of_header_fields(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.createDataFrame([("a", [("h", b"1")])], f"value STRING, {HEADERS}")
    headers = frame["headers"].cast("ARRAY<STRUCT<Key: STRING, VALUE: BINARY>>")
    write(frame.withColumn("headers", headers), broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


@pytest.mark.parametrize("kind", ["STRING", "BINARY"])
def test_writes_headers_of_maps(spark: SparkSession, broker: EmbeddedBroker, topic: str, kind: str) -> None:
    frame = spark.range(6).selectExpr(
        "CAST(id AS STRING) AS value",
        f"CASE WHEN id % 2 = 0 THEN map('id', CAST(CAST(id AS STRING) AS {kind})) END AS headers",
    )
    write(frame, broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


def test_rows_without_headers_have_no_headers(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.createDataFrame([("a", None), ("b", [])], f"value STRING, {HEADERS}")
    write(frame, broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


def test_writes_rows_to_topic_of_column(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    others = [f"{topic}-{n}" for n in range(3)]
    for other in others:
        broker.control.create_topic(other, partitions=2)
    frame = spark.range(300).selectExpr(f"concat('{topic}-', id % 3) AS topic", "CAST(id AS STRING) AS value")
    write(frame, broker)
    for number, other in enumerate(others):
        expected = frame.where(f"value % 3 = {number}")
        assert_topic_equals(expected, broker.topic(other))


def test_topic_option_overrides_topic_column(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(5).selectExpr("'nowhere' AS topic", "CAST(id AS STRING) AS value")
    write(frame, broker, f" {topic} ")
    assert_topic_equals(frame.select("value"), broker.topic(topic))


def test_writes_rows_to_partition_of_column_or_key(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(60).selectExpr(
        "CAST(id AS STRING) AS value",
        "concat('key-', id % 7) AS key",
        "CAST(CASE WHEN id < 30 THEN id % 3 END AS INT) AS partition",
    )
    write(frame, broker, topic)
    rows = stored(spark, broker, topic).selectExpr(
        "CAST(CAST(value AS STRING) AS INT) AS id", "CAST(key AS STRING) AS key", "partition"
    )
    placed = {row.id: row for row in rows.collect()}
    assert len(placed) == 60
    assert all(placed[number].partition == number % 3 for number in range(30))
    by_key = {(placed[number].key, placed[number].partition) for number in range(30, 60)}
    assert len(by_key) == 7, "rows of one key are in one partition"


def test_writes_timestamps_of_both_types(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    instants = [dt.datetime(2001, 2, 3, 4, 5, 6, 789_000), dt.datetime(1970, 1, 1, 0, 0, 0, 1_000)]
    frame = spark.createDataFrame(
        [(str(n), each) for n, each in enumerate(instants)], "value STRING, timestamp TIMESTAMP"
    )
    as_milliseconds = frame.selectExpr("concat('ms-', value) AS value", "unix_millis(timestamp) AS timestamp")
    write(frame, broker, topic)
    write(as_milliseconds, broker, topic)
    expected = frame.union(frame.selectExpr("concat('ms-', value)", "timestamp"))
    assert_topic_equals(expected, broker.topic(topic))


def test_null_timestamp_becomes_current_time(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    before = time.time()
    write(spark.range(3).selectExpr("'v' AS value", "CAST(NULL AS TIMESTAMP) AS timestamp"), broker, topic)
    times = [row.ms / 1000 for row in stored(spark, broker, topic).selectExpr("unix_millis(timestamp) AS ms").collect()]
    assert all(before - 1 <= each <= time.time() + 1 for each in times)


def test_empty_dataframe_writes_nothing_without_broker(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "value STRING")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", "127.0.0.1:1").option("topic", "t")
    writer.option("checkConnection", "false").save()


def test_writes_dataframe_with_empty_partitions(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    report_path = str(tmp_path / "report.jsonl")
    frame = spark.range(0, 100, 1, 8).where("id = 3").selectExpr("CAST(id AS STRING) AS value")
    write(frame, broker, topic, reportPath=report_path)
    (report,) = read_reports(report_path)
    assert (report.tasks, report.rows) == (8, 1)


def test_writes_named_columns_of_wide_rows(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    wide = [f"id * {number} AS column_{number}" for number in range(300)]
    frame = spark.range(20).selectExpr("CAST(id AS STRING) AS value", *wide)
    write(frame, broker, topic)
    assert_topic_equals(frame.select("value"), broker.topic(topic))


def test_writes_values_of_a_megabyte(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "repeat(CAST(id % 10 AS STRING), 1000000) AS value")
    write(frame, broker, topic)
    assert_topic_equals(frame, broker.topic(topic))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_writes_with_every_codec(spark: SparkSession, broker: EmbeddedBroker, topic: str, codec: str) -> None:
    frame = spark.range(5_000).selectExpr("CAST(id AS STRING) AS key", "repeat('abc', CAST(id % 100 AS INT)) AS value")
    write(frame, broker, topic, kafka__compression__type=codec)
    assert_topic_equals(frame, broker.topic(topic))


def test_writes_large_arrow_types(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        frame = spark.range(50).selectExpr("CAST(id AS STRING) AS value", "map('h', 'x') AS headers")
        write(frame, broker, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert_topic_equals(frame.select("value"), broker.topic(topic))


def test_report_has_offsets_rows_and_bytes(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.jsonl"
    frame = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS key", "'0123456789' AS value")
    write(frame, broker, topic, reportPath=str(path))
    (report,) = read_reports(str(path))
    assert (report.tasks, report.rows, report.dead_letters) == (4, 1000, 0)
    assert report.bytes == 10 * 1000 + sum(len(str(number)) for number in range(1000))
    found = stored(spark, broker, topic).groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
    reported = {
        partition: (written.last_offset, written.rows) for partition, written in report.partitions[topic].items()
    }
    assert reported == {row.partition: (row["max(offset)"], row["count(1)"]) for row in found}
    assert json.loads(path.read_text())["rows"] == 1000


def test_stream_reports_each_micro_batch(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    spark.range(0, 300, 1, 3).selectExpr("CAST(id AS STRING) AS value").write.parquet(str(tmp_path / "source"))
    files = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writer = files.writeStream.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    query = run_stream(writer.option("topic", topic).option("reportPath", str(tmp_path / "report.jsonl")))
    reports = read_reports(str(tmp_path / "report.jsonl"))
    assert [report.rows for report in reports] == [100, 100, 100]
    assert [report.batch for report in reports] == [f"{query.id}/{number}" for number in range(3)]
    expected = spark.range(300).selectExpr("CAST(id AS STRING) AS value")
    assert_topic_equals(expected, broker.topic(topic))


def test_complete_mode_writes_the_whole_result(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    spark.range(10).write.parquet(str(tmp_path / "source"))
    counts = spark.readStream.schema("id LONG").parquet(str(tmp_path / "source")).groupBy().count()
    writer = counts.selectExpr("CAST(count AS STRING) AS value").writeStream.format("pykafka").outputMode("complete")
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", topic)
    run_stream(writer)
    assert_topic_equals(spark.createDataFrame([("10",)], "value STRING"), broker.topic(topic))


def test_max_tasks_limits_tasks_that_share_the_byte_rate(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.jsonl"
    frame = spark.range(0, 4000, 1, 8).selectExpr("CAST(id AS STRING) AS key", "repeat('v', 100) AS value")
    write(frame, broker, topic, maxTasks="2", maxBytesPerSecond="1000000", reportPath=str(path))
    frame.write.format("pykafka").options(**broker.topic(topic).spark_options).option(
        "maxBytesPerSecond", "1000000000"
    ).option("reportPath", str(path)).save()
    few, many = read_reports(str(path))
    assert (few.tasks, many.tasks) == (2, 8)
    assert few.rows == many.rows == 4000
    assert few.paced_ms > 0
    assert many.paced_ms < few.paced_ms
    for task in few.task_list:
        assert task.bytes > 0
        assert task.duration_ms >= task.bytes / 500, "half a million a second for each of two tasks"
    assert stored(spark, broker, topic).count() == 8000


def test_max_tasks_limits_tasks_of_streams_and_tables(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    source, path = str(tmp_path / "source"), str(tmp_path / "report.jsonl")
    spark.range(0, 300, 1, 6).selectExpr("CAST(id AS STRING) AS value").write.parquet(source)
    options = broker.topic(topic).spark_options | {"maxTasks": "2", "reportPath": path}
    for mode in ("append", "update"):
        files = spark.readStream.schema("value STRING").parquet(source)
        run_stream(files.writeStream.format("pykafka").outputMode(mode).options(**options))
    assert [(report.tasks <= 2, report.rows) for report in read_reports(path)] == [(True, 300), (True, 300)]


def test_rejects_task_options_without_register(broker: EmbeddedBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"'maxBytesPerSecond' requires spark_kafka_sink.register\(spark\)"):
        parse_options(broker.topic("t").spark_options | {"maxBytesPerSecond": "1"})


def test_rejects_invalid_number_of_tasks(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(1).selectExpr("'v' AS value")
    with pytest.raises(ConfigurationError, match="'maxTasks' must be an integer from 1 to 1000000"):
        write(frame, broker, topic, maxTasks="all")
    with pytest.raises(ConfigurationError, match="'maxTasks' must be an integer from 1 to 1000000"):
        write(frame, broker, topic, maxTasks="0", maxBytesPerSecond="5")


def test_tasks_get_producer_cache_timeout_of_spark(spark: SparkSession) -> None:
    def find_timeout(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"seconds": [find_idle_timeout_seconds(TaskContext.get())]})

    spark.conf.set(IDLE_TIMEOUT_CONF, "45s")
    try:
        rows = spark.range(0, 1, 1, 1).mapInArrow(find_timeout, "seconds DOUBLE").collect()
        assert [row["seconds"] for row in rows] == [45.0]
    finally:
        spark.conf.unset(IDLE_TIMEOUT_CONF)
