"""The column contract: which schemas are taken, in whose words the others are refused, and rows per topic."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.spark.columns import ColumnPlan, plan_columns, split_by_topic

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_all_columns_are_found_by_name_wherever_they_stand() -> None:
    plan = plan_columns(
        schema(
            other=LongType(),
            timestamp=TimestampType(),
            headers=ArrayType(HEADER),
            partition=IntegerType(),
            topic=StringType(),
            key=BinaryType(),
            value=StringType(),
        ),
        None,
    )
    assert plan == ColumnPlan(value=6, key=5, topic=4, partition=3, headers=2, timestamp=1, fixed_topic=None)


def test_the_topic_option_wins_over_the_column_whatever_its_type() -> None:
    plan = plan_columns(schema(topic=LongType(), value=StringType()), "orders")
    assert plan.topic is None
    assert plan.fixed_topic == "orders"


@pytest.mark.parametrize(
    "headers",
    [
        ArrayType(HEADER),
        ArrayType(StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), False)])),
        MapType(StringType(), BinaryType()),
        MapType(StringType(), StringType()),
    ],
    ids=lambda kind: str(kind.simpleString()),
)
def test_headers_may_be_an_array_or_a_map(headers: DataType) -> None:
    assert plan_columns(schema(value=StringType(), headers=headers), "t").headers == 1


@pytest.mark.parametrize("timestamp", [TimestampType(), LongType()])
def test_a_timestamp_may_be_a_timestamp_or_milliseconds(timestamp: DataType) -> None:
    assert plan_columns(schema(value=StringType(), timestamp=timestamp), "t").timestamp == 1


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        (
            {"value": StringType()},
            None,
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        ),
        ({"key": StringType()}, "t", "Required attribute 'value' not found"),
        (
            {"Value": StringType()},
            "t",
            "Required attribute 'value' not found (there is 'Value', but the names of columns are case-sensitive)",
        ),
        (
            {"value": LongType()},
            "t",
            "value attribute unsupported type bigint. value must be a(n) string or binary",
        ),
        (
            {"value": StringType(), "key": IntegerType()},
            "t",
            "key attribute unsupported type int. key must be a(n) string or binary",
        ),
        (
            {"value": StringType(), "topic": BinaryType()},
            None,
            "topic attribute unsupported type binary. topic must be a(n) string",
        ),
        (
            {"value": StringType(), "partition": LongType()},
            "t",
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
        (
            {"value": StringType(), "headers": ArrayType(StringType())},
            "t",
            "headers attribute unsupported type array<string>. headers must be a(n) array<struct<",
        ),
        (
            {"value": StringType(), "timestamp": TimestampNTZType()},
            "t",
            "timestamp attribute unsupported type timestamp_ntz. timestamp must be a(n) timestamp or bigint; "
            "CAST(timestamp AS TIMESTAMP) if it is the record's time, else drop or rename the column",
        ),
    ],
)
def test_a_wrong_schema_is_refused_in_the_words_of_sparks_own_sink(
    columns: dict[str, DataType], topic: str | None, words: str
) -> None:
    with pytest.raises(SchemaError) as refused:
        plan_columns(schema(**columns), topic)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        (
            {"vlaue": StringType()},
            'The columns are vlaue. Is \'vlaue\' meant? Then: .withColumnRenamed("vlaue", "value")',
        ),
        ({"id": LongType(), "name": StringType()}, "The columns are id, name. Make one, for instance of all of them: "),
        ({"value": LongType()}, "; CAST(value AS STRING) makes it one"),
        ({"value": StringType(), "key": IntegerType()}, "; CAST(key AS STRING) makes it one"),
        ({"value": StringType(), "partition": LongType()}, "; CAST(partition AS INT) makes it one"),
        ({f"column_{number}" * 10: LongType() for number in range(30)}, "... and 10 more. "),
    ],
)
def test_a_refusal_says_which_columns_there_are_and_what_to_write_instead(
    columns: dict[str, DataType], remedy: str
) -> None:
    with pytest.raises(SchemaError) as refused:
        plan_columns(schema(**columns), "t")
    assert remedy in str(refused.value)
    assert len(str(refused.value)) < 2000


def test_all_faults_of_a_schema_are_reported_together() -> None:
    with pytest.raises(SchemaError) as refused:
        plan_columns(schema(key=LongType(), partition=StringType()), None)
    assert len(str(refused.value).splitlines()) == 4


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = StructType([StructField("value", StringType()), StructField("value", StringType())])
    with pytest.raises(SchemaError, match="'value' is there 2 times"):
        plan_columns(twice, "t")


def rows_of(batch: pa.RecordBatch, plan: ColumnPlan) -> dict[str | None, TopicRows]:
    return {rows.topic: rows for rows in split_by_topic(batch, plan)}


def test_all_topics_of_a_batch_are_prefetched_before_its_first_rows() -> None:
    batch = pa.record_batch({"topic": ["a", None, "b", "a"], "value": ["1", "2", "3", "4"]})
    prefetched: list[list[str]] = []
    rows = split_by_topic(batch, ColumnPlan(topic=0, value=1), lambda topics: prefetched.append([*topics]))
    next(rows)
    assert prefetched == [["a", "b"]]


def test_rows_are_grouped_by_topic_and_keep_their_order() -> None:
    batch = pa.record_batch(
        {
            "topic": ["a", "b", "a", "c", "b", "a"],
            "value": [b"0", b"1", b"2", b"3", b"4", None],
            "key": ["k0", None, "k2", "k3", "k4", "k5"],
            "partition": pa.array([0, 1, None, 3, 4, 5], pa.int32()),
        }
    )
    split = rows_of(batch, ColumnPlan(topic=0, value=1, key=2, partition=3))
    assert list(split) == ["a", "b", "c"]
    assert split["a"].columns.value.to_pylist() == [b"0", b"2", None]
    assert split["a"].columns.key is not None
    assert split["a"].columns.key.to_pylist() == ["k0", "k2", "k5"]
    assert split["a"].partition is not None
    assert split["a"].partition.to_pylist() == [0, None, 5]
    assert split["b"].columns.value.to_pylist() == [b"1", b"4"]
    assert split["c"].partition is not None
    assert split["c"].partition.to_pylist() == [3]


def test_rows_of_one_topic_are_not_copied() -> None:
    value = pa.array([b"x" * 10] * 100)
    batch = pa.record_batch({"value": value, "topic": ["t"] * 100})
    for plan in (ColumnPlan(value=0, topic=1), ColumnPlan(value=0, fixed_topic="t")):
        (rows,) = split_by_topic(batch, plan)
        assert rows.topic == "t"
        assert rows.columns.value.buffers()[2].address == value.buffers()[2].address


def test_a_sliced_batch_is_split_by_its_own_rows() -> None:
    batch = pa.record_batch({"topic": ["x", "a", "b", "a", "y"], "value": ["0", "1", "2", "3", "4"]}).slice(1, 3)
    split = rows_of(batch, ColumnPlan(topic=0, value=1))
    assert {topic: rows.columns.value.to_pylist() for topic, rows in split.items()} == {"a": ["1", "3"], "b": ["2"]}


def test_rows_without_a_topic_are_a_group_of_their_own() -> None:
    batch = pa.record_batch({"topic": ["a", None, "a", None], "value": ["0", "1", "2", "3"]})
    split = rows_of(batch, ColumnPlan(topic=0, value=1))
    found = {topic: rows.columns.value.to_pylist() for topic, rows in split.items()}
    assert found == {"a": ["0", "2"], None: ["1", "3"]}


def test_a_batch_without_rows_gives_no_rows_for_any_topic() -> None:
    batch = pa.record_batch({"topic": pa.array([], pa.string()), "value": pa.array([], pa.string())})
    assert list(split_by_topic(batch, ColumnPlan(topic=0, value=1))) == []


def test_timestamps_become_milliseconds_and_nulls_stay() -> None:
    instant = datetime(2026, 2, 3, 4, 5, 6, 789_123, tzinfo=timezone.utc)
    milliseconds = int(instant.timestamp()) * 1000 + 789
    for column in (
        pa.array([instant, None], pa.timestamp("us", tz="Europe/Vienna")),
        pa.array([milliseconds, None], pa.int64()),
    ):
        batch = pa.record_batch({"value": ["0", "1"], "timestamp": column})
        (rows,) = split_by_topic(batch, ColumnPlan(value=0, timestamp=1, fixed_topic="t"))
        assert rows.columns.timestamp is not None
        assert rows.columns.timestamp.to_pylist() == [milliseconds, None]
