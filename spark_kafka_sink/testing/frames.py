"""A topic compared with a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.testing.topic import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def topic_frame(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """The topic as a DataFrame, in the columns of Spark's own Kafka source."""
    return spark.createDataFrame(topic.read())


def assert_topic_equals(expected: DataFrame, topic: KafkaTopic, *, in_order: bool = False) -> None:
    """The topic has exactly the rows of `expected`, no more and no fewer; chispa shows the rows that differ.

    Compared are the columns that `expected` has, in its types: a `value` that is a string with the bytes as text, one
    that is a struct with the bytes as JSON, headers that are a map with the headers as a map, a timestamp of type
    bigint with milliseconds. With `in_order` rows are compared in the order of partition and offset.
    """
    try:
        from chispa import DataFramesNotEqualError, assert_df_equality
    except ImportError as error:
        raise MissingDependencyError(
            'assert_topic_equals needs chispa: pip install "spark-kafka-sink[testing]"'
        ) from error
    from pyspark.sql import functions

    unknown = [name for name in expected.columns if name not in COLUMNS]
    if unknown or not expected.columns:
        raise ValueError(
            f"a topic has no column {', '.join(unknown) or 'to compare'}: select from {', '.join(COLUMNS)}"
        )
    stored = topic_frame(expected.sparkSession, topic)
    if in_order:
        stored = stored.orderBy("partition", "offset")
    fields = expected.schema.fields
    try:
        assert_df_equality(
            stored.select(*(_comparable(_stored_as(field), field).alias(field.name) for field in fields)),
            expected.select(*(_comparable(functions.col(field.name), field).alias(field.name) for field in fields)),
            ignore_row_order=not in_order,
            ignore_nullable=True,
            ignore_metadata=True,
        )
    except DataFramesNotEqualError as error:
        raise DataFramesNotEqualError(f"df1: what {topic.name} has; df2: what was expected\n{error}") from None


def _stored_as(field: StructField) -> Column:
    """The topic's column in the type that is expected."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, LongType, MapType, StructType

    column, wanted = functions.col(field.name), field.dataType
    if field.name in ("key", "value") and isinstance(wanted, ArrayType | MapType | StructType):
        return functions.from_json(column.cast("string"), wanted)
    if field.name == "headers":
        if not isinstance(wanted, MapType):
            return column
        kind = wanted.valueType
        return functions.transform_values(functions.map_from_entries(column), lambda _, value: value.cast(kind))
    if field.name == "timestamp" and isinstance(wanted, LongType):
        return functions.unix_millis(column.cast("timestamp"))
    return column.cast(wanted)


def _comparable(column: Column, field: StructField) -> Column:
    """Headers that are null are no headers; and a map has no order, so it is compared by its sorted entries."""
    from pyspark.sql import functions
    from pyspark.sql.types import MapType

    if isinstance(field.dataType, MapType):
        column = functions.array_sort(functions.map_entries(column))
    if field.name == "headers":
        return functions.when(functions.size(column) > 0, column)
    return column
