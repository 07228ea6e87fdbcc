"""Topics as DataFrames, and an assertion that a topic has exactly the expected rows."""

from __future__ import annotations

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
_CORRUPT_RECORD_COLUMN = "_pykafka_unread"


def topic_frame(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """Return a topic's records as a DataFrame with the columns of Spark's Kafka source."""
    return _create_frame(spark, topic.read())


def _create_frame(spark: SparkSession, records: pa.Table) -> DataFrame:
    if not spark.version.startswith("3."):
        return spark.createDataFrame(records)
    # Spark 3 cannot create a DataFrame from an Arrow table.
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(records.to_pylist(), from_arrow_schema(records.schema))


def assert_topic_equals(expected: DataFrame, topic: KafkaTopic, *, in_order: bool = False) -> None:
    """Assert that a topic has exactly the rows of `expected`. If not, raise chispa's DataFramesNotEqualError.

    - `in_order`: whether the order of rows matters. If True, the topic's rows are sorted by partition and offset

    Only the columns of `expected` are compared. Their types determine how the topic's columns are converted:

    - A string column compares bytes as text.
    - A struct, array or map column compares a key or value as JSON. The JSON must have exactly the fields of the
      struct; a null field equals a missing one.
    - A map column compares headers as a map.
    - A bigint column compares the timestamp in milliseconds.
    """
    try:
        from chispa import DataFramesNotEqualError, assert_df_equality
    except ImportError as error:
        raise MissingDependencyError(
            'assert_topic_equals requires chispa: pip install "spark-kafka-sink[testing]"'
        ) from error
    from pyspark.sql import functions

    _check_column_names(expected)
    fields = expected.schema.fields
    json_fields = [field for field in fields if _is_json(field)]
    records = topic.read()
    for field in json_fields:
        _check_json_fields(records, field, topic.name)
    stored_frame = _create_frame(expected.sparkSession, records)
    if in_order:
        stored_frame = stored_frame.orderBy("partition", "offset")
    # One more column for each JSON column, so that JSON of another type shows up as a difference. It is null in all
    # expected rows, and in each row of the topic whose JSON has the expected type.
    invalid_json_columns = {f"{field.name}, invalid JSON": _extract_invalid_json(field) for field in json_fields}
    try:
        assert_df_equality(
            stored_frame.select(
                *(_build_topic_column(field).alias(field.name) for field in fields),
                *(column.alias(name) for name, column in invalid_json_columns.items()),
            ),
            expected.select(
                *(_build_expected_column(field).alias(field.name) for field in fields),
                *(functions.lit(None).cast("string").alias(name) for name in invalid_json_columns),
            ),
            ignore_row_order=not in_order,
            ignore_nullable=True,
            ignore_metadata=True,
        )
    except DataFramesNotEqualError as error:
        raise DataFramesNotEqualError(f"df1: records of topic {topic.name}; df2: expected rows\n{error}") from None


def _check_column_names(expected: DataFrame) -> None:
    """Raise ValueError if the DataFrame has no columns, or columns that a topic does not have."""
    unknown_columns = [name for name in expected.columns if name not in COLUMNS]
    if unknown_columns or not expected.columns:
        reason = f"has unknown columns: {', '.join(unknown_columns)}" if unknown_columns else "has no columns"
        raise ValueError(f"The expected DataFrame {reason}. Select columns from {', '.join(COLUMNS)}.")


def _check_json_fields(records: pa.Table, field: StructField, topic: str) -> None:
    """Raise DataFramesNotEqualError for a value with something that Spark's JSON parser would ignore.

    Examples are a field that the expected type lacks, text after the JSON value, and quotes other than JSON's.
    """
    from chispa import DataFramesNotEqualError

    for row_index, value in enumerate(records.column(field.name).to_pylist()):
        try:
            json_value = json.loads("null" if value is None else value)
        except ValueError:
            problem = f"a {field.name} that is not JSON"
        else:
            unexpected_field = next(_find_unexpected_fields(json_value, field.dataType, field.name), None)
            if unexpected_field is None:
                continue
            problem = f"the unexpected field {unexpected_field}"
        partition, offset = records["partition"][row_index], records["offset"][row_index]
        raise DataFramesNotEqualError(f"{topic} has {problem} in partition {partition}, offset {offset}")


def _find_unexpected_fields(value: Any, data_type: DataType, path: str) -> Iterator[str]:
    """Yield the paths of JSON fields that the type lacks. Null fields are ignored."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType) and isinstance(value, dict):
        field_types = {field.name: field.dataType for field in data_type.fields}
        for name, field_value in value.items():
            if name in field_types:
                yield from _find_unexpected_fields(field_value, field_types[name], f"{path}.{name}")
            elif field_value is not None:
                yield f"{path}.{name}"
    elif isinstance(data_type, ArrayType) and isinstance(value, list):
        for element in value:
            yield from _find_unexpected_fields(element, data_type.elementType, path)
    elif isinstance(data_type, MapType) and isinstance(value, dict):
        for map_value in value.values():
            yield from _find_unexpected_fields(map_value, data_type.valueType, path)


def _is_json(field: StructField) -> bool:
    """Return whether the column is a key or value that is compared as JSON."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    return field.name in ("key", "value") and isinstance(field.dataType, ArrayType | MapType | StructType)


def _parse_json(field: StructField) -> Column:
    """Parse the topic's column as the expected type.

    A struct gets an additional field for corrupt records: if Spark cannot parse a string, that field contains it.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructType

    data_type = field.dataType
    if isinstance(data_type, StructType):
        data_type = StructType([*data_type.fields]).add(_CORRUPT_RECORD_COLUMN, StringType())
    return functions.from_json(
        functions.col(field.name).cast("string"),
        cast(Any, data_type),
        {"columnNameOfCorruptRecord": _CORRUPT_RECORD_COLUMN},
    )


def _extract_invalid_json(field: StructField) -> Column:
    """Return a column with the strings that are not JSON of the expected type, and null for all other values."""
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    parsed_column = _parse_json(field)
    invalid_text = functions.when(parsed_column.isNull(), functions.col(field.name).cast("string"))
    if isinstance(field.dataType, StructType):
        return functions.coalesce(parsed_column[_CORRUPT_RECORD_COLUMN], invalid_text)
    return invalid_text


def _build_topic_column(field: StructField) -> Column:
    """Convert the topic's column to the expected type, in the form in which chispa can compare it."""
    from pyspark.sql import functions
    from pyspark.sql.types import LongType, MapType, StructType

    column = functions.col(field.name)
    data_type = field.dataType
    if _is_json(field):
        parsed_column = _parse_json(field)
        if isinstance(data_type, StructType):
            parsed_column = parsed_column.dropFields(_CORRUPT_RECORD_COLUMN)
        return _replace_maps(parsed_column, data_type)
    if field.name == "headers":
        if isinstance(data_type, MapType):
            # These are the entries of a map, but unlike a map, they may contain a key more than once.
            column = functions.array_sort(_convert_values(column, data_type.valueType))
        return _replace_empty_headers(column)
    if field.name == "timestamp" and isinstance(data_type, LongType):
        return functions.unix_millis(column.cast("timestamp"))
    return column.cast(data_type)


def _build_expected_column(field: StructField) -> Column:
    """Return the expected column in the form in which chispa can compare it."""
    from pyspark.sql import functions

    column = _replace_maps(functions.col(field.name), field.dataType)
    return _replace_empty_headers(column) if field.name == "headers" else column


def _convert_values(entries: Column, value_type: DataType) -> Column:
    """Cast the value of each entry in an array of structs with a key and a value."""
    from pyspark.sql import functions

    return functions.transform(
        entries, lambda entry: functions.struct(entry["key"], entry["value"].cast(value_type).alias("value"))
    )


def _replace_maps(column: Column, data_type: DataType) -> Column:
    """Replace all maps in a column, including nested ones, by arrays of their sorted entries.

    Spark can neither sort nor compare maps.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, MapType, StructType

    if '"type":"map"' not in data_type.json():
        return column
    if isinstance(data_type, MapType):
        entries = functions.transform(
            functions.map_entries(column),
            lambda entry: functions.struct(
                entry["key"], _replace_maps(entry["value"], data_type.valueType).alias("value")
            ),
        )
        return functions.array_sort(entries)
    if isinstance(data_type, ArrayType):
        return functions.transform(column, lambda element: _replace_maps(element, data_type.elementType))
    assert isinstance(data_type, StructType), "no other type contains a map"
    fields = [_replace_maps(column[field.name], field.dataType).alias(field.name) for field in data_type.fields]
    return functions.when(column.isNotNull(), functions.struct(*fields))


def _replace_empty_headers(column: Column) -> Column:
    """Replace empty headers by null, because both mean that the record has no headers."""
    from pyspark.sql import functions

    return functions.when(functions.size(column) > 0, column)
