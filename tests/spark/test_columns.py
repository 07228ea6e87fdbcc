"""The column contract: accepted schemas, and errors for all others in the wording of Spark's sink."""

from __future__ import annotations

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
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.columns import plan_columns

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_finds_columns_by_name_in_any_position() -> None:
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


def test_topic_option_overrides_column_of_any_type() -> None:
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
def test_accepts_array_and_map_headers(headers: DataType) -> None:
    assert plan_columns(schema(value=StringType(), headers=headers), "t").headers == 1


@pytest.mark.parametrize("timestamp", [TimestampType(), LongType()])
def test_accepts_timestamp_and_milliseconds(timestamp: DataType) -> None:
    assert plan_columns(schema(value=StringType(), timestamp=timestamp), "t").timestamp == 1


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
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
            "Required attribute 'value' not found (there is 'Value', but column names are case-sensitive)",
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
            "CAST(timestamp AS TIMESTAMP) if it is the record's time; otherwise, drop or rename the column",
        ),
    ],
)
def test_rejects_invalid_schema_in_wording_of_sparks_sink(
    columns: dict[str, DataType], topic: str | None, message: str
) -> None:
    with pytest.raises(SchemaError) as error_info:
        plan_columns(schema(**columns), topic)
    assert str(error_info.value).startswith(message)


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        (
            {"vlaue": StringType()},
            'The columns are vlaue. Did you mean \'vlaue\'? Rename it: .withColumnRenamed("vlaue", "value")',
        ),
        (
            {"id": LongType(), "name": StringType()},
            "The columns are id, name. Create it, for instance from all columns: ",
        ),
        ({"value": LongType()}, "; use CAST(value AS STRING)"),
        ({"value": StringType(), "key": IntegerType()}, "; use CAST(key AS STRING)"),
        ({"value": StringType(), "partition": LongType()}, "; use CAST(partition AS INT)"),
        ({f"column_{number}" * 10: LongType() for number in range(30)}, "... and 10 more. "),
    ],
)
def test_schema_error_lists_columns_and_suggests_an_expression(columns: dict[str, DataType], remedy: str) -> None:
    with pytest.raises(SchemaError) as error_info:
        plan_columns(schema(**columns), "t")
    assert remedy in str(error_info.value)
    assert len(str(error_info.value)) < 2000


def test_reports_all_schema_faults_together() -> None:
    with pytest.raises(SchemaError) as error_info:
        plan_columns(schema(key=LongType(), partition=StringType()), None)
    assert len(str(error_info.value).splitlines()) == 4


def test_rejects_duplicate_column() -> None:
    twice = StructType([StructField("value", StringType()), StructField("value", StringType())])
    with pytest.raises(SchemaError, match="2 columns named 'value'"):
        plan_columns(twice, "t")
