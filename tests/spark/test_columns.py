"""The column contract: accepted schemas, and errors for all others in the wording of Spark's sink."""

from __future__ import annotations

import ast

import pytest
from pyspark.sql import SparkSession, types
from pyspark.sql.functions import expr, lit
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
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
        ArrayType(StructType([StructField("Key", StringType()), StructField("VALUE", BinaryType())])),
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
            {
                "value": StringType(),
                "headers": ArrayType(
                    StructType([StructField("Value", BinaryType()), StructField("Key", StringType())])
                ),
            },
            "t",
            "headers attribute unsupported type array<struct<Value:binary,Key:string>>. headers must be a(n) array<",
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
    "data_type",
    [
        BooleanType(),
        DateType(),
        DayTimeIntervalType(),
        DecimalType(10, 2),
        DoubleType(),
        NullType(),
        TimestampType(),
        TimestampNTZType(),
    ],
    ids=lambda data_type: str(data_type.simpleString()),
)
def test_suggests_cast_of_atomic_type_to_string(data_type: DataType) -> None:
    assert find_remedies(value=data_type, key=data_type, topic=data_type) == {
        name: f"string{expected}; use CAST({name} AS STRING)"
        for name, expected in (("value", " or binary"), ("key", " or binary"), ("topic", ""))
    }


@pytest.mark.parametrize(
    "data_type",
    [schema(id=LongType()), ArrayType(LongType()), MapType(StringType(), LongType())],
    ids=lambda data_type: str(data_type.simpleString()),
)
def test_suggests_json_for_nested_type(data_type: DataType) -> None:
    assert find_remedies(value=data_type, key=data_type, topic=data_type) == {
        name: f"string or binary; use to_json({name}) AS {name}, or set {name}Format to 'json' and {name}Columns to "
        "the columns"
        for name in ("value", "key")
    } | {"topic": "string"}


@pytest.mark.skipif(not hasattr(types, "GeometryType"), reason="this Spark has no type geometry")
def test_suggests_no_cast_of_spatial_type() -> None:
    assert find_remedies(value=types.GeometryType(0)) == {"value": "string or binary"}


@pytest.mark.parametrize(
    ("data_type", "remedy"),
    [
        (DecimalType(10, 0), "int; use CAST(partition AS INT)"),
        (StringType(), "int; use CAST(partition AS INT)"),
        (NullType(), "int; use CAST(partition AS INT)"),
        # Spark cannot cast a date to a number.
        (DateType(), "int"),
        (ArrayType(LongType()), "int"),
    ],
    ids=str,
)
def test_suggests_cast_of_number_to_partition(data_type: DataType, remedy: str) -> None:
    assert find_remedies(partition=data_type) == {"partition": remedy}


def pair(first_name: str, first_type: DataType, second_name: str, second_type: DataType) -> ArrayType:
    return ArrayType(StructType([StructField(first_name, first_type), StructField(second_name, second_type)]))


@pytest.mark.parametrize(
    ("data_type", "cast_type"),
    [
        (NullType(), "MAP<STRING,STRING>"),
        (MapType(StringType(), LongType()), "MAP<STRING,STRING>"),
        (MapType(LongType(), BinaryType()), "MAP<STRING,BINARY>"),
        (MapType(StringType(), ArrayType(StringType())), None),
        (pair("key", StringType(), "value", StringType()), "ARRAY<STRUCT<key:STRING,value:BINARY>>"),
        (pair("Key", StringType(), "Value", StringType()), "ARRAY<STRUCT<key:STRING,value:BINARY>>"),
        (pair("name", StringType(), "content", BinaryType()), "ARRAY<STRUCT<key:STRING,value:BINARY>>"),
        # A cast by position could mix up keys and values.
        (pair("value", StringType(), "key", StringType()), None),
        (pair("value", BinaryType(), "key", StringType()), None),
        (pair("VALUE", StringType(), "KEY", BinaryType()), None),
        (pair("value", StringType(), "content", BinaryType()), None),
        (pair("first", BinaryType(), "second", BinaryType()), None),
        # Spark cannot cast a number to binary.
        (pair("key", StringType(), "value", LongType()), None),
        (ArrayType(schema(key=StringType())), None),
        (ArrayType(StringType()), None),
    ],
    ids=lambda parameter: parameter.simpleString() if isinstance(parameter, DataType) else "",
)
def test_suggests_cast_of_headers_that_keeps_keys_and_values(data_type: DataType, cast_type: str | None) -> None:
    suggestion = "" if cast_type is None else f"; use CAST(headers AS {cast_type})"
    expected = "array<struct<key:string,value:binary>> or map<string,binary> or map<string,string>"
    assert find_remedies(headers=data_type) == {"headers": expected + suggestion}


@pytest.mark.needs("java")
@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("value", "CAST(1 AS DECIMAL(10,2))"),
        ("value", "current_timestamp()"),
        ("value", "NULL"),
        ("value", "INTERVAL '1' DAY"),
        ("value", "array(named_struct('a', map(1, X'01')))"),
        ("key", "map('a', 1)"),
        ("topic", "X'74'"),
        ("partition", "NULL"),
        ("partition", "CAST(1 AS DECIMAL(10,0))"),
        ("headers", "NULL"),
        ("headers", "map('a', current_date())"),
        ("headers", "map(1, X'01')"),
        ("headers", "array(named_struct('key', 'a', 'value', 'b'))"),
        ("headers", "array(named_struct('name', 'a', 'content', X'01'))"),
    ],
)
def test_spark_accepts_suggested_expression(spark: SparkSession, name: str, expression: str) -> None:
    rows = spark.sql(f"SELECT {expression} AS {name}")
    if name != "value":
        rows = rows.withColumn("value", lit("v"))
    (remedy,) = find_remedies(**{name: rows.schema[name].dataType}).values()
    suggestion = remedy.split("; use ")[1].split(", or set ")[0]
    converted_rows = rows.withColumn(name, expr(suggestion))
    plan_columns(converted_rows.schema, None if name == "topic" else "t")
    assert len(converted_rows.collect()) == 1


def find_remedies(**columns: DataType) -> dict[str, str]:
    """Return the part of each error message after "must be a(n)", by column name."""
    with pytest.raises(SchemaError) as error_info:
        plan_columns(schema(**{"value": StringType()} | columns), None if "topic" in columns else "t")
    return dict(line.split(". ", 1)[1].split(" must be a(n) ") for line in str(error_info.value).splitlines())


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        (
            {"vlaue": StringType()},
            'The columns are vlaue. Did you mean \'vlaue\'? Rename it: .withColumnRenamed("vlaue", "value")',
        ),
        (
            {"id": LongType(), "name": StringType()},
            "The columns are id, name. Create it, for instance from all columns: "
            '.selectExpr("to_json(struct(*)) AS value")',
        ),
        (
            {"key": StringType(), "id": LongType(), "topic": StringType(), "a.b": LongType(), "true": LongType()},
            # The option `topic` takes precedence, so this column is not the topic of the record.
            "Create it, for instance from all other columns: "
            '.selectExpr("key", "to_json(struct(id, topic, `a.b`, `true`)) AS value")',
        ),
        ({"key": StringType(), "partition": IntegerType()}, "The columns are key, partition. Add a column with the"),
        (
            {"key": StringType()} | {f"column_{number}" * 10: LongType() for number in range(30)},
            'for instance from all columns: .selectExpr("key", "to_json(struct(*)) AS value")',
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


@pytest.mark.parametrize("names", [["id", "Select", "user", "a b", "c`d.e", "null"], ["id", "ID"], ['a"b'], ["a\nb"]])
@pytest.mark.parametrize("record_columns", [[], ["key", "topic", "partition", "headers", "timestamp"]])
def test_spark_keeps_record_columns_in_suggested_value(
    spark: SparkSession, names: list[str], record_columns: list[str]
) -> None:
    record_types = {
        "partition": IntegerType(),
        "timestamp": TimestampType(),
        "headers": MapType(StringType(), BinaryType()),
    }
    columns = [StructField(name, LongType()) for name in names]
    columns += [StructField(name, record_types.get(name, StringType())) for name in record_columns]
    topic = None if "topic" in record_columns else "t"
    frame = spark.createDataFrame([], StructType(columns))
    with pytest.raises(SchemaError) as error_info:
        plan_columns(frame.schema, topic)
    expressions = ast.literal_eval(str(error_info.value).partition(".selectExpr")[2])
    converted_frame = frame.selectExpr(*([expressions] if isinstance(expressions, str) else expressions))
    assert converted_frame.columns == [*record_columns, "value"]
    plan_columns(converted_frame.schema, topic)


@pytest.mark.parametrize(
    ("names", "encoders"),
    [(["key", "Key", "a"], {}), (["key", "KEY"], {}), (["partition", "Partition", "a"], {"key": None})],
)
def test_spark_resolves_suggested_value_if_name_differs_only_in_case_from_record_column(
    spark: SparkSession, names: list[str], encoders: dict[str, None]
) -> None:
    columns = [StructField(name, IntegerType() if name == "partition" else StringType()) for name in names]
    frame = spark.createDataFrame([], StructType(columns))
    with pytest.raises(SchemaError) as error_info:
        plan_columns(frame.schema, "t", encoders)
    converted_frame = frame.selectExpr(*ast.literal_eval(str(error_info.value).partition(".selectExpr")[2]))
    assert converted_frame.columns == [*names, "value"]
    plan_columns(converted_frame.schema, "t", encoders)


def test_error_about_similar_names_does_not_suggest_renaming_all_of_them(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], schema(Value=StringType(), VALUE=StringType()))
    assert frame.withColumnRenamed("Value", "value").columns == ["value", "value"]
    with pytest.raises(SchemaError, match=r"Did you mean 'Value' or 'VALUE'\? Rename one of them with toDF: "):
        plan_columns(frame.schema, "t")


def test_suggested_value_keeps_columns_of_encoded_key() -> None:
    with pytest.raises(SchemaError) as error_info:
        plan_columns(schema(id=LongType(), partition=IntegerType()), "t", {"key": None})
    assert '.selectExpr("*", "to_json(struct(id)) AS value")' in str(error_info.value)


def test_reports_all_schema_faults_together() -> None:
    with pytest.raises(SchemaError) as error_info:
        plan_columns(schema(key=LongType(), partition=StringType()), None)
    assert len(str(error_info.value).splitlines()) == 4


def test_rejects_duplicate_column() -> None:
    twice = StructType([StructField("value", StringType()), StructField("value", StringType())])
    with pytest.raises(SchemaError, match="2 columns named 'value'"):
        plan_columns(twice, "t")
