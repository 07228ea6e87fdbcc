"""What tests of jobs compare with and wait with, at work: each finds what is wrong, and says what it is."""

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


def test_every_column_is_compared_in_the_type_that_is_expected(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
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


def test_headers_are_compared_whichever_way_they_are_written(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    ways = ["map('h', 'x')", "map('h', CAST('x' AS BINARY))", "array(named_struct('key', 'h', 'value', X'78'))"]
    for way in ways:
        write(spark.range(1).selectExpr("'v' AS value", f"{way} AS headers"), kafka_topic)
    for way in ways:
        assert_topic_equals(spark.range(3).selectExpr(f"{way} AS headers"), kafka_topic)
    for wrong in ("map('h', 'y')", "map('g', 'x')", "CAST(NULL AS MAP<STRING, STRING>)"):
        with pytest.raises(DataFramesNotEqualError):
            assert_topic_equals(spark.range(3).selectExpr(f"{wrong} AS headers"), kafka_topic)


def test_a_struct_is_compared_with_the_json_in_the_topic(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    orders = spark.createDataFrame([("o-1", 12.5), ("o-2", None)], "id STRING, amount DOUBLE")
    write(orders.selectExpr("to_json(struct(*)) AS value"), kafka_topic)
    assert_topic_equals(orders.selectExpr("struct(*) AS value"), kafka_topic)
    with pytest.raises(DataFramesNotEqualError):
        assert_topic_equals(orders.selectExpr("struct(id, 1.0D AS amount) AS value"), kafka_topic)


FOUND = [
    ('{"id": 1, "more": 2}', "more"),
    ('{"id": 1, "at": {"x": 1, "z": 2}}', r"at\.z"),
    ('{"id": 1, "all": [{"x": 1}, {"z": 2}]}', r"all\.z"),
    ('{"id": 1', "JSON"),
    ("no JSON", "JSON"),
    ("", "JSON"),
    ("[1]", "JSON"),
    ('{"id": "one"}', "JSON"),
]


@pytest.mark.parametrize(("stored", "words"), FOUND)
def test_fields_that_the_struct_has_not_and_what_is_no_such_json_are_found(
    spark: SparkSession, kafka_topic: KafkaTopic, stored: str, words: str
) -> None:
    """Spark reads each of these as the struct that is expected, or as null."""
    write(spark.createDataFrame([(stored,)], "value STRING"), kafka_topic)
    read = "from_json(value, 'id BIGINT, at STRUCT<x: BIGINT>, all ARRAY<STRUCT<x: BIGINT>>') AS value"
    with pytest.raises(DataFramesNotEqualError, match=words):
        assert_topic_equals(spark.createDataFrame([(stored,)], "value STRING").selectExpr(read), kafka_topic)


def test_a_field_that_is_null_and_one_that_is_left_out_are_the_same(
    spark: SparkSession, kafka_topic: KafkaTopic
) -> None:
    rows = ['{"id": 1, "at": null, "more": null}', '{"id": 1}', None]
    write(spark.createDataFrame([(row,) for row in rows], "value STRING"), kafka_topic)
    read = "from_json(value, 'id BIGINT, at STRUCT<x: BIGINT>') AS value"
    assert_topic_equals(spark.createDataFrame([(row,) for row in rows], "value STRING").selectExpr(read), kafka_topic)


@pytest.mark.parametrize("wrong", [["a"], ["a", "b", "b"], ["a", "c"], ["a", None]])
def test_a_row_too_few_too_many_or_other_is_found(
    spark: SparkSession, kafka_topic: KafkaTopic, wrong: list[str | None]
) -> None:
    write(spark.createDataFrame([("a",), ("b",)], "value STRING"), kafka_topic)
    with pytest.raises(DataFramesNotEqualError, match=f"df1: records of topic {kafka_topic.name}; df2: expected rows"):
        assert_topic_equals(spark.createDataFrame([(value,) for value in wrong], "value STRING"), kafka_topic)


def test_the_order_counts_where_it_is_asked_for(spark: SparkSession, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic("ordered")
    rows = spark.createDataFrame([("b",), ("a",)], "value STRING").coalesce(1)
    write(rows, topic)
    assert_topic_equals(rows, topic, in_order=True)
    assert_topic_equals(rows.orderBy("value"), topic)
    with pytest.raises(DataFramesNotEqualError):
        assert_topic_equals(rows.orderBy("value"), topic, in_order=True)


def test_a_column_that_a_topic_does_not_have_is_named(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    with pytest.raises(ValueError, match=r"unknown columns: amount\. Select columns from key, value"):
        assert_topic_equals(spark.range(1).selectExpr("'v' AS value", "id AS amount"), kafka_topic)


def test_a_stream_is_written_to_its_end_batch_by_batch(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic("streamed")
    batches = [spark.createDataFrame([(f"{number}",)] * 2, "value STRING") for number in (3, 1, 2)]
    query = run_stream(stream_of(batches, tmp_path).writeStream.format("pykafka").options(**topic.spark_options))
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [2, 2, 2]
    assert_topic_equals(spark.createDataFrame([(v,) for v in "331122"], "value STRING"), topic, in_order=True)
    assert spark.conf.get("spark.sql.streaming.checkpointLocation", None) is None


def test_a_checkpoint_of_the_jobs_own_is_kept(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    topic = broker.create_topic("continued")
    one = spark.createDataFrame([("a",)], "value STRING")
    writer = stream_of([one], tmp_path / "source").writeStream.format("pykafka").options(**topic.spark_options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_stream(writer)
    run_stream(writer)
    assert_topic_equals(one, topic)
    assert (tmp_path / "checkpoint" / "commits").is_dir()


def test_a_query_that_the_job_has_started_is_drained(
    spark: SparkSession, kafka_topic: KafkaTopic, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("a",), ("b",)], "value STRING")
    writer = stream_of([rows, rows], tmp_path / "source").writeStream.format("pykafka")
    query = writer.options(**kafka_topic.spark_options, checkpointLocation=str(tmp_path / "checkpoint")).start()
    drain(query)
    assert not query.isActive
    assert_topic_equals(rows.union(rows), kafka_topic)


def test_what_a_query_fails_with_is_raised(spark: SparkSession, kafka_topic: KafkaTopic, tmp_path: Path) -> None:
    rows = stream_of([spark.range(1).selectExpr("CAST(id AS STRING) AS value")], tmp_path)
    failing = rows.selectExpr("CAST(raise_error('no good') AS STRING) AS value").writeStream.format("pykafka")
    with pytest.raises(StreamingQueryException, match="no good"):
        run_stream(failing.options(**kafka_topic.spark_options))


def test_a_topic_is_a_frame(spark: SparkSession, kafka_topic: KafkaTopic) -> None:
    write(spark.range(5).selectExpr("CAST(id AS STRING) AS value"), kafka_topic)
    assert topic_frame(spark, kafka_topic).where("CAST(value AS STRING) >= '3'").count() == 2
