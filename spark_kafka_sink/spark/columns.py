"""The column contract of Spark's Kafka sink: a DataFrame's schema is checked and becomes a ColumnPlan.

| column    | type                                                                     | null means            |
|-----------|--------------------------------------------------------------------------|-----------------------|
| value     | string or binary; required                                               | a tombstone           |
| key       | string or binary                                                         | no key                |
| topic     | string; required unless the option is set, which then wins               | an error              |
| partition | int                                                                      | the partitioner decides |
| headers   | array<struct<key:string,value:binary>>, map<string,binary>, map<string,string> | no headers      |
| timestamp | timestamp, or bigint milliseconds                                        | now                   |

Names are case-sensitive and other columns are passed over, as in Spark's own sink; the words of the errors are its own
too. The schema is checked on the driver, without a broker. Tasks then pick columns by position. With `valueFormat` or
`keyFormat` an encoder makes the column out of others (`value_formats.py`), and `value` or `key` means nothing special.
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

_TEXT = (StringType, CharType, VarcharType)
_EXPECTED = {
    "topic": "string",
    "value": "string or binary",
    "key": "string or binary",
    "headers": "array<struct<key:string,value:binary>> or map<string,binary> or map<string,string>",
    "partition": "int",
    "timestamp": "timestamp or bigint",
}
_REMEDY = {
    # Spark's own sink passes over this column, so that a job may bring one of any type.
    "timestamp": "; CAST(timestamp AS TIMESTAMP) if it is the record's time, else drop or rename the column",
}
_CASTS = {"key": "STRING", "value": "STRING", "topic": "STRING", "partition": "INT"}
_CASTABLE = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "DATE", "STRING")


def plan_columns(
    schema: StructType, fixed_topic: str | None, encoders: Mapping[str, ColumnsEncoder | None] | None = None
) -> ColumnPlan:
    """Check the schema; all faults in one SchemaError. `encoders`: of `value` and `key`, where they have one."""
    names = schema.fieldNames()
    encoders = encoders or {}
    unused = {*encoders, "topic"} if fixed_topic is not None else {*encoders}
    relevant = [name for name in _EXPECTED if name in names and name not in unused]
    faults = []
    if fixed_topic is None and "topic" not in names:
        faults.append(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
            + _in_another_case("topic", names)
        )
    if "value" not in names and "value" not in encoders:
        faults.append(
            "Required attribute 'value' not found" + _in_another_case("value", names) + _no_value_column(names)
        )
    for name in relevant:
        if names.count(name) > 1:
            faults.append(
                f"The column '{name}' is there {names.count(name)} times; one of them must be renamed or dropped."
            )
            continue
        kind = schema[name].dataType
        if not _is_allowed(name, kind):
            faults.append(
                f"{name} attribute unsupported type {kind.simpleString()}. {name} must be a(n) {_EXPECTED[name]}"
                + (_REMEDY.get(name) or _cast_of(name, kind.simpleString()))
            )
    if faults:
        raise SchemaError("\n".join(faults))
    sources: dict[str, Any] = {name: names.index(name) for name in relevant} | dict(encoders)
    return ColumnPlan(fixed_topic=fixed_topic, **sources)


def _in_another_case(name: str, names: list[str]) -> str:
    found = next((other for other in names if other.lower() == name), None)
    return f" (there is '{found}', but the names of columns are case-sensitive)" if found else ""


def _is_allowed(column: str, kind: DataType) -> bool:
    if column == "topic":
        return isinstance(kind, _TEXT)
    if column == "partition":
        return isinstance(kind, IntegerType)
    if column == "timestamp":
        return isinstance(kind, (TimestampType, LongType))
    if column == "headers":
        return _is_header_type(kind)
    return isinstance(kind, (*_TEXT, BinaryType))


def _is_header_type(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, _TEXT) and isinstance(kind.valueType, (*_TEXT, BinaryType))
    if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType)):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _TEXT)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _no_value_column(names: Sequence[str]) -> str:
    """Which columns there are, which one may be meant, and what to write where there is none."""
    shown = [sanitize(name, MAX_NAME_CHARACTERS) for name in names]
    there = describe_columns(names)
    meant = next(iter(get_close_matches("value", [name.lower() for name in names], 1)), None)
    for name in (name for name in shown if name.lower() == meant):
        return f'. {there} Did you mean \'{name}\'? Rename it: .withColumnRenamed("{name}", "value")'
    return f'. {there} Make one, for instance of all of them: .selectExpr("to_json(struct(*)) AS value")'


def _cast_of(name: str, kind: str) -> str:
    """The expression that mends a column of a simple type, where there is one."""
    if name not in _CASTS or kind.upper() not in _CASTABLE:
        return ""
    return f"; CAST({name} AS {_CASTS[name]}) makes it one"
