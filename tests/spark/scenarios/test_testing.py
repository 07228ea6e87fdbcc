"""The assertions and stream helpers for tests of jobs. Each detects an error and describes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from chispa import DataFramesNotEqualError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.testing import (
    EmbeddedBroker,
    KafkaTopic,
    assert_topic_equals,
    drain,
    embedded_broker,
    run_stream,
    stream_of,
    topic_frame,
)

pytestmark = pytest.mark.needs("java")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker({"t": 1}) as broker:
        yield broker


def write(frame: DataFrame, topic: KafkaTopic) -> None:
    frame.write.format("pykafka").options(**topic.spark_options).save()


def test_compares_columns_in_expected_type(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    moment = dt.datetime(2026, 2, 3, 4, 5, 6, 789_000)
    rows = [("k", "1", 0, {"h": "x", "g": None}, moment), (None, "2", 1, None, moment)]
    schema = "key STRING, value STRING, partition INT, headers MAP<STRING, STRING>, timestamp TIMESTAMP"
    expected = spark.createDataFrame(rows, schema)
    write(expected, kafka_topic)
    assert_topic_equals(expected, kafka_topic)
    assert_topic_equals(
        expected.selectExpr("CAST(key AS BINARY) AS key", "unix_millis(timestamp) AS timestamp"), kafka_topic
    )
    assert_topic_equals(expected.selectExpr(f"'{kafka_topic.name}' AS topic", "0L AS offset"), kafka_topic)


def test_compares_headers_of_arrays_and_maps(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    ways = ["map('h', 'x')", "map('h', CAST('x' AS BINARY))", "array(named_struct('key', 'h', 'value', X'78'))"]
    for way in ways:
        write(spark.range(1).selectExpr("'v' AS value", f"{way} AS headers"), kafka_topic)
    for way in ways:
        assert_topic_equals(spark.range(3).selectExpr(f"{way} AS headers"), kafka_topic)
    for wrong in ("map('h', 'y')", "map('g', 'x')", "CAST(NULL AS MAP<STRING, STRING>)"):
        with pytest.raises(DataFramesNotEqualError):
            assert_topic_equals(spark.range(3).selectExpr(f"{wrong} AS headers"), kafka_topic)


def test_compares_struct_with_json_in_topic(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    orders = spark.createDataFrame([("o-1", 12.5), ("o-2", None)], "id STRING, amount DOUBLE")
    write(orders.selectExpr("to_json(struct(*)) AS value"), kafka_topic)
    assert_topic_equals(orders.selectExpr("struct(*) AS value"), kafka_topic)
    with pytest.raises(DataFramesNotEqualError):
        assert_topic_equals(orders.selectExpr("struct(id, 1.0D AS amount) AS value"), kafka_topic)


def test_compares_maps_within_json(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    schema = "id INT, tags MAP<STRING, INT>, items ARRAY<STRUCT<counts: MAP<STRING, MAP<STRING, INT>>>>"
    rows = [(1, {"b": 2, "a": 1}, [({"y": {"d": 4, "c": 3}},), None]), (2, None, None)]
    orders = spark.createDataFrame(rows, schema)
    write(orders.selectExpr("to_json(struct(*)) AS value"), kafka_topic)
    assert_topic_equals(orders.selectExpr("struct(*) AS value"), kafka_topic)
    different_rows = [(1, {"a": 1, "b": 2}, [({"y": {"c": 3, "d": 5}},), None]), (2, None, None)]
    with pytest.raises(DataFramesNotEqualError):
        assert_topic_equals(spark.createDataFrame(different_rows, schema).selectExpr("struct(*) AS value"), kafka_topic)


def test_finds_duplicate_header_keys(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    headers = "array(named_struct('key', 'h', 'value', X'78'), named_struct('key', 'h', 'value', X'79')) AS headers"
    write(spark.range(1).selectExpr("'v' AS value", headers), kafka_topic)
    assert_topic_equals(spark.range(1).selectExpr(headers), kafka_topic)
    with pytest.raises(DataFramesNotEqualError):
        assert_topic_equals(spark.range(1).selectExpr("map('h', 'y') AS headers"), kafka_topic)


FOUND = [
    ('{"id": 1, "more": 2}', "more"),
    ('{"id": 1, "at": {"x": 1, "z": 2}}', r"at\.z"),
    ('{"id": 1, "all": [{"x": 1}, {"z": 2}]}', r"all\.z"),
    ('{"id": 1', "JSON"),
    ("no JSON", "JSON"),
    ('{"id": 1} {"id": 2}', "JSON"),
    ("{'id': 1}", "JSON"),
    ("", "JSON"),
    ("[1]", "JSON"),
    ('{"id": "one"}', "JSON"),
]


@pytest.mark.parametrize(("stored", "message"), FOUND)
def test_finds_unknown_json_fields_and_invalid_json(
    spark: SparkSession, kafka_topic: KafkaTopic, stored: str, message: str
) -> None:
    """Spark parses each of these values to the expected struct or to null, so it would detect no difference."""
    write(spark.createDataFrame([(stored,)], "value STRING"), kafka_topic)
    read = "from_json(value, 'id BIGINT, at STRUCT<x: BIGINT>, all ARRAY<STRUCT<x: BIGINT>>') AS value"
    with pytest.raises(DataFramesNotEqualError, match=message):
        assert_topic_equals(spark.createDataFrame([(stored,)], "value STRING").selectExpr(read), kafka_topic)


def test_null_field_equals_omitted_field(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    rows = ['{"id": 1, "at": null, "more": null}', '{"id": 1}', None]
    write(spark.createDataFrame([(row,) for row in rows], "value STRING"), kafka_topic)
    read = "from_json(value, 'id BIGINT, at STRUCT<x: BIGINT>') AS value"
    assert_topic_equals(spark.createDataFrame([(row,) for row in rows], "value STRING").selectExpr(read), kafka_topic)


@pytest.mark.parametrize("wrong", [["a"], ["a", "b", "b"], ["a", "c"], ["a", None]])
def test_finds_missing_additional_and_different_rows(
    spark: SparkSession, kafka_topic: KafkaTopic, wrong: list[str | None]
) -> None:
    write(spark.createDataFrame([("a",), ("b",)], "value STRING"), kafka_topic)
    with pytest.raises(DataFramesNotEqualError, match=f"df1: records of topic {kafka_topic.name}; df2: expected rows"):
        assert_topic_equals(spark.createDataFrame([(value,) for value in wrong], "value STRING"), kafka_topic)


def test_compares_order_on_request(spark: SparkSession, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("ordered")
    rows = spark.createDataFrame([("b",), ("a",)], "value STRING").coalesce(1)
    write(rows, topic)
    assert_topic_equals(rows, topic, in_order=True)
    assert_topic_equals(rows.orderBy("value"), topic)
    with pytest.raises(DataFramesNotEqualError):
        assert_topic_equals(rows.orderBy("value"), topic, in_order=True)


def test_error_names_column_that_topics_do_not_have(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    with pytest.raises(ValueError, match=r"unknown columns: amount\. Select columns from key, value"):
        assert_topic_equals(spark.range(1).selectExpr("'v' AS value", "id AS amount"), kafka_topic)


def test_writes_stream_to_its_end_in_batches(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = broker.create_topic("streamed")
    batches = [spark.createDataFrame([(f"{number}",)] * 2, "value STRING") for number in (3, 1, 2)]
    query = run_stream(stream_of(batches, tmp_path).writeStream.format("pykafka").options(**topic.spark_options))
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [2, 2, 2]
    assert_topic_equals(spark.createDataFrame([(v,) for v in "331122"], "value STRING"), topic, in_order=True)
    assert spark.conf.get("spark.sql.streaming.checkpointLocation", None) is None


def test_keeps_checkpoint_of_the_job(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = broker.create_topic("continued")
    one = spark.createDataFrame([("a",)], "value STRING")
    writer = stream_of([one], tmp_path / "source").writeStream.format("pykafka").options(**topic.spark_options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_stream(writer)
    run_stream(writer)
    assert_topic_equals(one, topic)
    assert (tmp_path / "checkpoint" / "commits").is_dir()


def test_drains_query_that_the_job_started(spark: SparkSession, kafka_topic: KafkaTopic, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a",), ("b",)], "value STRING")
    writer = stream_of([rows, rows], tmp_path / "source").writeStream.format("pykafka")
    query = writer.options(**kafka_topic.spark_options, checkpointLocation=str(tmp_path / "checkpoint")).start()
    drain(query)
    assert not query.isActive
    assert_topic_equals(rows.union(rows), kafka_topic)


def test_raises_error_of_failed_query(spark: SparkSession, kafka_topic: KafkaTopic, tmp_path: Path) -> None:
    rows = stream_of([spark.range(1).selectExpr("CAST(id AS STRING) AS value")], tmp_path)
    failing = rows.selectExpr("CAST(raise_error('no good') AS STRING) AS value").writeStream.format("pykafka")
    with pytest.raises(StreamingQueryException, match="no good"):
        run_stream(failing.options(**kafka_topic.spark_options))


def test_topic_is_read_as_dataframe(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    write(spark.range(5).selectExpr("CAST(id AS STRING) AS value"), kafka_topic)
    assert topic_frame(spark, kafka_topic).where("CAST(value AS STRING) >= '3'").count() == 2
