"""Check of a DataFrame's schema against the columns of Spark's Kafka sink, and its conversion to a ColumnPlan.

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

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.sql import types
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from spark_kafka_sink.diagnostics.column_names import MAX_LISTED_COLUMNS, MAX_NAME_CHARACTERS, describe_columns
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
_NESTED_TYPES = (StructType, ArrayType, MapType)
_SPATIAL_TYPES = (types.SpatialType,) if hasattr(types, "SpatialType") else ()
"""Geometry and geography, which Spark cannot cast to a string. Older versions do not have them."""
_UNQUOTED_NAME_PATTERN = re.compile(r"(?!(?:null|true|false)$)[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)
"""Names that Spark's SQL takes for columns even without backticks."""
_TIMESTAMP_REMEDY = "; CAST(timestamp AS TIMESTAMP) if it is the record's time; otherwise, drop or rename the column"
"""Spark's own sink ignores this column, so jobs may have a column under this name that is not the record's time."""


def plan_columns(
    schema: StructType, fixed_topic: str | None, encoders: Mapping[str, ColumnsEncoder | None] | None = None
) -> ColumnPlan:
    """Check the schema and return the plan of its columns. Raise SchemaError with one line per problem.

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
    problems = []
    if fixed_topic is None and "topic" not in names:
        problems.append(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
            + _describe_case_mismatch("topic", names)
        )
    if "value" not in names and "value" not in encoders:
        problems.append(
            "Required attribute 'value' not found"
            + _describe_case_mismatch("value", names)
            + _suggest_value_column(names, used_columns, has_encoder=bool(encoders))
        )
    column_problems = [_find_column_problem(name, schema) for name in used_columns]
    problems += [problem for problem in column_problems if problem is not None]
    if problems:
        raise SchemaError("\n".join(problems))
    # A field of the record comes from a column, given by its position, or from an encoder.
    sources_by_field: dict[str, Any] = {name: names.index(name) for name in used_columns} | dict(encoders)
    return ColumnPlan(fixed_topic=fixed_topic, **sources_by_field)


def _describe_case_mismatch(name: str, names: list[str]) -> str:
    """Return a remark about a column whose name differs from `name` only in case, or "" if there is none.

    `names`: the names of all columns. None of them is equal to `name`.
    """
    mismatch = next((other for other in names if other.lower() == name), None)
    return f" (there is '{mismatch}', but column names are case-sensitive)" if mismatch else ""


def _find_column_problem(name: str, schema: StructType) -> str | None:
    """Return why the column with this name cannot be written, or None if it can."""
    column_count = schema.fieldNames().count(name)
    if column_count > 1:
        return f"There are {column_count} columns named '{name}'. Rename or drop all but one of them."
    data_type = schema[name].dataType
    if _is_allowed_type(name, data_type):
        return None
    return (
        f"{name} attribute unsupported type {data_type.simpleString()}. {name} must be a(n) "
        f"{_EXPECTED_TYPES[name]}{_suggest_conversion(name, data_type)}"
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

    A struct must have exactly the fields `key` and `value`, in this order. As in Spark's own sink, which compares types
    with DataTypeUtils.sameType, the case of these names is ignored.
    """
    if isinstance(data_type, MapType):
        return isinstance(data_type.keyType, _STRING_TYPES) and isinstance(
            data_type.valueType, (*_STRING_TYPES, BinaryType)
        )
    if not (isinstance(data_type, ArrayType) and isinstance(data_type.elementType, StructType)):
        return False
    fields = data_type.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _STRING_TYPES)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _suggest_value_column(names: Sequence[str], record_columns: Sequence[str], *, has_encoder: bool) -> str:
    """Return the end of an error message about a missing column `value`.

    The text lists the existing columns, and suggests renaming a similar one or building the value from columns.

    `names`: the names of all columns.
    `record_columns`: the columns that become other fields of the record. The suggestion keeps them.
    `has_encoder`: whether the key is encoded from columns. The suggestion then keeps all columns, as it does if Spark
    could not tell a column of the record from another one.
    """
    existing_columns = describe_columns(names)
    # Compare in lowercase, so that `Value` and `VALUE` also count as similar.
    similar_lowercase_names = get_close_matches("value", [name.lower() for name in names], n=1)
    similar_names = [sanitize(name, MAX_NAME_CHARACTERS) for name in names if name.lower() in similar_lowercase_names]
    if len(similar_names) > 1:
        suggestions = " or ".join(f"'{name}'" for name in similar_names)
        return (
            f". {existing_columns} Did you mean {suggestions}? Rename one of them with toDF: withColumnRenamed ignores "
            "case, so it would rename all of them."
        )
    if similar_names:
        (similar_name,) = similar_names
        return (
            f". {existing_columns} Did you mean '{similar_name}'? Rename it: "
            f'.withColumnRenamed("{similar_name}", "value")'
        )
    value_columns = [name for name in names if name not in record_columns]
    if not value_columns:
        return f". {existing_columns} Add a column with the value."
    if record_columns and _can_list_in_expression(value_columns, names):
        source, struct_fields = "all other columns", ", ".join(map(_quote_if_needed, value_columns))
    else:
        source, struct_fields = "all columns", "*"
    can_list_kept_columns = not has_encoder and _can_list_in_expression(record_columns, names)
    kept_columns = [name for name in names if name in record_columns] if can_list_kept_columns else ["*"]
    expressions = [f'"{expression}"' for expression in (*kept_columns, f"to_json(struct({struct_fields})) AS value")]
    return f". {existing_columns} Create it, for instance from {source}: .selectExpr({', '.join(expressions)})"


def _can_list_in_expression(listed_names: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether an error message can list these columns in a SQL expression that Spark resolves.

    The list must be short, each name must be shown unchanged within double quotes, and no other column may have a name
    that differs at most in case.

    `names`: the names of all columns.
    """
    are_shown_unchanged = all(
        sanitize(name, MAX_NAME_CHARACTERS) == name and not {*name} & {*'"\\'} for name in listed_names
    )
    lowercase_counts = Counter(name.lower() for name in names)
    are_unambiguous = all(lowercase_counts[name.lower()] == 1 for name in listed_names)
    return len(listed_names) <= MAX_LISTED_COLUMNS and are_shown_unchanged and are_unambiguous


def _quote_if_needed(name: str) -> str:
    """Return the name as Spark's SQL expects it, in backticks if necessary."""
    return name if _UNQUOTED_NAME_PATTERN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _suggest_conversion(name: str, data_type: DataType) -> str:
    """Return the end of an error message about a column's type.

    The text suggests an expression for the column. It is empty if there is no such expression.
    """
    if name == "timestamp":
        return _TIMESTAMP_REMEDY
    cast_type = _find_cast_type(name, data_type)
    if cast_type is not None:
        return f"; use CAST({name} AS {cast_type})"
    if name in ("key", "value") and isinstance(data_type, _NESTED_TYPES):
        return f"; use to_json({name}) AS {name}, or set {name}Format to 'json' and {name}Columns to the columns"
    return ""


def _find_cast_type(name: str, data_type: DataType) -> str | None:
    """Return a type that the column may have and that Spark can cast `data_type` to, or None if there is none."""
    if name == "partition":
        is_castable = isinstance(data_type, (NumericType, *_STRING_TYPES, NullType))
        return "INT" if is_castable else None
    if name == "headers":
        return _find_headers_cast_type(data_type)
    return "STRING" if _is_castable_to_string(data_type) else None


def _find_headers_cast_type(data_type: DataType) -> str | None:
    """Return the header type that Spark can cast `data_type` to without mixing up keys and values, or None."""
    if isinstance(data_type, NullType):
        return "MAP<STRING,STRING>"  # any header type would do
    if isinstance(data_type, MapType):
        is_castable = _is_castable_to_string(data_type.keyType) and _is_castable_to_string(data_type.valueType)
        value_type = "BINARY" if isinstance(data_type.valueType, BinaryType) else "STRING"
        return f"MAP<STRING,{value_type}>" if is_castable else None
    if not (isinstance(data_type, ArrayType) and isinstance(data_type.elementType, StructType)):
        return None
    fields = data_type.elementType.fields
    if len(fields) != 2 or not isinstance(fields[0].dataType, _STRING_TYPES):
        return None
    # Spark casts the fields of a struct by position, whatever their names. Two strings could be in either order.
    names = [field.name.lower() for field in fields]
    if names[0] == "value" or names[1] == "key":
        return None
    value_types = (BinaryType, *_STRING_TYPES) if names == ["key", "value"] else (BinaryType,)
    return "ARRAY<STRUCT<key:STRING,value:BINARY>>" if isinstance(fields[1].dataType, value_types) else None


def _is_castable_to_string(data_type: DataType) -> bool:
    """Return whether Spark can cast the type to a string. A struct, array or map as a string would not be JSON."""
    return not isinstance(data_type, (*_NESTED_TYPES, *_SPATIAL_TYPES))
