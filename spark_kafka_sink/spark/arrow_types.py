"""The Arrow type in which Spark hands a column to a data source in Python.

Spark gives a timestamp's type the session's time zone, which is known in the tasks only; here it is UTC.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types

from spark_kafka_sink.errors import SchemaError

_SIMPLE: dict[type[types.DataType], Any] = {
    types.BooleanType: pa.bool_(),
    types.ByteType: pa.int8(),
    types.ShortType: pa.int16(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.StringType: pa.string(),
    types.CharType: pa.string(),
    types.VarcharType: pa.string(),
    types.BinaryType: pa.binary(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", "UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
    types.NullType: pa.null(),
}
if hasattr(types, "TimeType"):
    _SIMPLE[types.TimeType] = pa.time64("ns")


def to_arrow_type(kind: types.DataType, where: str) -> pa.DataType:
    """Raise SchemaError for a type that no format can write: intervals, variants and what Spark may add."""
    simple = _SIMPLE.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.ArrayType):
        return pa.list_(_field("element", to_arrow_type(kind.elementType, f"{where}.element"), kind.containsNull))
    if isinstance(kind, types.MapType):
        value = _field("value", to_arrow_type(kind.valueType, f"{where}.value"), kind.valueContainsNull)
        key = to_arrow_type(kind.keyType, f"{where}.key")
        # Arrow has no map whose keys have no type. That of `map()`, which is empty, may have any.
        return pa.map_(pa.string() if pa.types.is_null(key) else key, value)
    if isinstance(kind, types.StructType):
        return pa.struct([to_arrow_field(field, f"{where}.{field.name}") for field in kind.fields])
    raise SchemaError(f"column {where} of type {kind.simpleString()} cannot be written; cast it to a string")


def to_arrow_field(field: types.StructField, where: str) -> pa.Field:
    return _field(field.name, to_arrow_type(field.dataType, where), field.nullable)


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    """Of `array()` Spark says that no element is null; Arrow has no such field without a type."""
    return pa.field(name, kind, nullable or pa.types.is_null(kind))
