"""Checks the schema of a DataFrame against the columns of Spark's Kafka sink, and turns it into a ColumnPlan.

| column    | type                                                                     | meaning of null       |
|-----------|--------------------------------------------------------------------------|-----------------------|
| value     | string or binary; required                                               | a tombstone           |
| key       | string or binary                                                         | no key                |
| topic     | string; required unless the option is set, which takes precedence        | an error              |
| partition | int                                                                      | the partitioner decides |
| headers   | array<struct<key:string,value:binary>>, map<string,binary>, map<string,string> | no headers      |
| timestamp | timestamp, or bigint milliseconds                                        | the current time      |

As in Spark's own sink, column names are case-sensitive, and columns with other names are ignored. Error messages
have the wording of Spark's own sink. The schema is checked on the driver, without a broker. Tasks then select columns
by position. With `valueFormat` or `keyFormat`, an encoder builds the value or the key from other columns
(`value_formats.py`), and the `value` or `key` column has no special meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from spark_kafka_sink.diagnostics.column_names import MAX_NAME_CHARACTERS, describe_columns
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.producer.column_plan import ColumnPlan

if TYPE_CHECKING:
    from spark_kafka_sink.formats.encoder import ColumnsEncoder

_STRING_TYPES = (StringType, CharType, VarcharType)
_EXPECTED_TYPES = {
    "topic": "string",
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key:string,value:binary>> or map<string,binary> or map<string,string>",
    "partition": "int",
    "timestamp": "timestamp or bigint",
}
"""The columns that the sink uses, with the types that each may have."""
_TYPE_REMEDIES = {
    # Spark's own sink ignores this column, so jobs may have a column of any type under this name.
    "timestamp": "; CAST(timestamp AS TIMESTAMP) if it is the record's time; otherwise, drop or rename the column",
}
"""Remedies for columns for which a cast may be the wrong advice."""
_CAST_TYPES = {"key": "STRING", "value": "STRING", "topic": "STRING", "partition": "INT"}
"""The type to which an error suggests casting each column."""
_CASTABLE_TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "DATE", "STRING")
"""An error suggests a cast only if the column has one of these types."""


def plan_columns(
    schema: StructType, fixed_topic: str | None, encoders: Mapping[str, ColumnsEncoder | None] | None = None
) -> ColumnPlan:
    """Check the schema and return the plan of its columns. Raise SchemaError with one line per fault.

    `fixed_topic`: the option `topic`, which takes precedence over the column; None if it is not set.
    `encoders`: the encoders for `value` and `key`, if these fields are built from other columns. None stands for an
    encoder that could not be built because the options are invalid.
    """
    names = schema.fieldNames()
    encoders = encoders or {}
    # If the option topic or an encoder provides a field of the record, the column of the same name has no special
    # meaning. An encoder may encode it like any other column.
    unused_columns = {*encoders, "topic"} if fixed_topic is not None else {*encoders}
    used_columns = [name for name in _EXPECTED_TYPES if name in names and name not in unused_columns]
    faults = []
    if fixed_topic is None and "topic" not in names:
        faults.append(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
            + _describe_case_mismatch("topic", names)
        )
    if "value" not in names and "value" not in encoders:
        faults.append(
            "Required attribute 'value' not found"
            + _describe_case_mismatch("value", names)
            + _suggest_value_column(names)
        )
    column_faults = [_find_column_fault(name, schema) for name in used_columns]
    faults += [fault for fault in column_faults if fault is not None]
    if faults:
        raise SchemaError("\n".join(faults))
    # A field of the record comes from a column, given by its position, or from an encoder.
    sources_by_field: dict[str, Any] = {name: names.index(name) for name in used_columns} | dict(encoders)
    return ColumnPlan(fixed_topic=fixed_topic, **sources_by_field)


def _describe_case_mismatch(name: str, names: list[str]) -> str:
    """Return a remark about a column whose name differs from `name` only in case, or "" if there is none.

    `names`: the names of all columns. None of them is equal to `name`.
    """
    mismatch = next((other for other in names if other.lower() == name), None)
    return f" (there is '{mismatch}', but column names are case-sensitive)" if mismatch else ""


def _find_column_fault(name: str, schema: StructType) -> str | None:
    """Return why the column with this name cannot be written, or None if it can."""
    column_count = schema.fieldNames().count(name)
    if column_count > 1:
        return f"There are {column_count} columns named '{name}'. Rename or drop all but one of them."
    data_type = schema[name].dataType
    if _is_allowed_type(name, data_type):
        return None
    remedy = _TYPE_REMEDIES.get(name) or _suggest_cast(name, data_type.simpleString())
    return (
        f"{name} attribute unsupported type {data_type.simpleString()}. {name} must be a(n) "
        f"{_EXPECTED_TYPES[name]}{remedy}"
    )


def _is_allowed_type(column: str, data_type: DataType) -> bool:
    """Return whether the column of this name may have the type (see the table in the module's docstring)."""
    if column == "topic":
        return isinstance(data_type, _STRING_TYPES)
    if column == "partition":
        return isinstance(data_type, IntegerType)
    if column == "timestamp":
        return isinstance(data_type, (TimestampType, LongType))
    if column == "headers":
        return _is_header_type(data_type)
    return isinstance(data_type, (*_STRING_TYPES, BinaryType))


def _is_header_type(data_type: DataType) -> bool:
    """Return whether `data_type` is one of the header types in the module's docstring.

    A struct must have exactly the fields `key` and `value`, in this order.
    """
    if isinstance(data_type, MapType):
        return isinstance(data_type.keyType, _STRING_TYPES) and isinstance(
            data_type.valueType, (*_STRING_TYPES, BinaryType)
        )
    if not (isinstance(data_type, ArrayType) and isinstance(data_type.elementType, StructType)):
        return False
    fields = data_type.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _STRING_TYPES)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _suggest_value_column(names: Sequence[str]) -> str:
    """Return the end of an error message about a missing column `value`.

    The text lists the existing columns, and suggests renaming a similar one or building the value from all of them.
    """
    sanitized_names = [sanitize(name, MAX_NAME_CHARACTERS) for name in names]
    existing_columns = describe_columns(names)
    # Compare in lowercase, so that `Value` and `VALUE` also count as similar.
    similar_lowercase_names = get_close_matches("value", [name.lower() for name in names], n=1)
    similar_name = next((name for name in sanitized_names if name.lower() in similar_lowercase_names), None)
    if similar_name is not None:
        return (
            f". {existing_columns} Did you mean '{similar_name}'? Rename it: "
            f'.withColumnRenamed("{similar_name}", "value")'
        )
    return f'. {existing_columns} Create it, for instance from all columns: .selectExpr("to_json(struct(*)) AS value")'


def _suggest_cast(name: str, sql_type: str) -> str:
    """Suggest a cast to the expected type. Return an empty string if there is no such cast."""
    if name not in _CAST_TYPES or sql_type.upper() not in _CASTABLE_TYPES:
        return ""
    return f"; use CAST({name} AS {_CAST_TYPES[name]})"
