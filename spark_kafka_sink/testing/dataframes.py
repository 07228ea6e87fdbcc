"""A topic compared with a DataFrame."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.testing.topic import KafkaTopic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_UNREAD = "_pykafka_unread"


def topic_frame(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """The topic as a DataFrame, in the columns of Spark's own Kafka source."""
    return spark.createDataFrame(topic.read())


def assert_topic_equals(expected: DataFrame, topic: KafkaTopic, *, in_order: bool = False) -> None:
    """The topic has exactly the rows of `expected`, no more and no fewer; chispa shows the rows that differ.

    Compared are the columns that `expected` has, in its types: a `value` that is a string with the bytes as text, one
    that is a struct with the bytes as JSON, headers that are a map with the headers as a map, a timestamp of type
    bigint with milliseconds. With `in_order` rows are compared in the order of partition and offset.

    JSON must have the fields of the struct and no others; a field that is null and one that is left out are the same.
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
    records = topic.read()
    for field in expected.schema.fields:
        if _is_json(field):
            _check_fields(records, field, topic.name)
    stored = expected.sparkSession.createDataFrame(records)
    if in_order:
        stored = stored.orderBy("partition", "offset")
    fields = expected.schema.fields
    unread = {f"{field.name} that is no such JSON": _unread(field) for field in fields if _is_json(field)}
    try:
        assert_df_equality(
            stored.select(
                *(_comparable(_stored_as(field), field).alias(field.name) for field in fields),
                *(column.alias(name) for name, column in unread.items()),
            ),
            expected.select(
                *(_comparable(functions.col(field.name), field).alias(field.name) for field in fields),
                *(functions.lit(None).cast("string").alias(name) for name in unread),
            ),
            ignore_row_order=not in_order,
            ignore_nullable=True,
            ignore_metadata=True,
        )
    except DataFramesNotEqualError as error:
        raise DataFramesNotEqualError(f"df1: what {topic.name} has; df2: what was expected\n{error}") from None


def _check_fields(records: pa.Table, field: StructField, topic: str) -> None:
    """DataFramesNotEqualError if JSON in the topic has fields that the expected type has not. Spark drops them."""
    from chispa import DataFramesNotEqualError

    for number, stored in enumerate(records.column(field.name).to_pylist()):
        with contextlib.suppress(ValueError):  # what is no JSON is Spark's to find
            more = next(_other_fields(json.loads(stored or "null"), field.dataType, field.name), None)
            if more is not None:
                where = f"partition {records['partition'][number]}, offset {records['offset'][number]}"
                raise DataFramesNotEqualError(f"{topic} has a field that was not expected: {more}, in {where}")


def _other_fields(value: Any, kind: DataType, where: str) -> Iterator[str]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType) and isinstance(value, dict):
        known = {field.name: field.dataType for field in kind.fields}
        for name, part in value.items():
            if name in known:
                yield from _other_fields(part, known[name], f"{where}.{name}")
            elif part is not None:
                yield f"{where}.{name}"
    elif isinstance(kind, ArrayType) and isinstance(value, list):
        for part in value:
            yield from _other_fields(part, kind.elementType, where)
    elif isinstance(kind, MapType) and isinstance(value, dict):
        for part in value.values():
            yield from _other_fields(part, kind.valueType, where)


def _is_json(field: StructField) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    return field.name in ("key", "value") and isinstance(field.dataType, ArrayType | MapType | StructType)


def _read_json(field: StructField) -> Column:
    """With one more field of a struct: what Spark could not read. The other fields are null then."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructType

    wanted = field.dataType
    if isinstance(wanted, StructType):
        wanted = StructType([*wanted.fields]).add(_UNREAD, StringType())
    return functions.from_json(
        functions.col(field.name).cast("string"), cast(Any, wanted), {"columnNameOfCorruptRecord": _UNREAD}
    )


def _unread(field: StructField) -> Column:
    """What is no JSON of the expected type; null where all could be read."""
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    read = _read_json(field)
    unread = functions.when(read.isNull(), functions.col(field.name).cast("string"))
    return functions.coalesce(read[_UNREAD], unread) if isinstance(field.dataType, StructType) else unread


def _stored_as(field: StructField) -> Column:
    """The topic's column in the type that is expected."""
    from pyspark.sql import functions
    from pyspark.sql.types import LongType, MapType, StructType

    column, wanted = functions.col(field.name), field.dataType
    if _is_json(field):
        read = _read_json(field)
        return read.dropFields(_UNREAD) if isinstance(wanted, StructType) else read
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
