"""Mapping of Spark column types to the Arrow types in which Spark passes the columns to a Python data source.

Spark's Arrow timestamps have the session's time zone. Only the tasks know it, so the types here have UTC instead.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types

from spark_kafka_sink.errors import SchemaError

_ATOMIC_TYPES: dict[type[types.DataType], Any] = {
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
    _ATOMIC_TYPES[types.TimeType] = pa.time64("ns")


def to_struct_type(schema: types.StructType | pa.Schema) -> types.StructType:
    """Convert a DataFrame's schema to a Spark schema. Sail passes an Arrow schema to data sources."""
    if isinstance(schema, pa.Schema):
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(schema)
    return schema


def to_arrow_type(data_type: types.DataType, path: str) -> pa.DataType:
    """Convert a Spark type to its Arrow type.

    Raise SchemaError if no format can write the type: intervals, variants, and types of future Spark versions.

    `path`: the name of the column in errors, for example `address.city`.
    """
    atomic_type = _ATOMIC_TYPES.get(type(data_type))
    if atomic_type is not None:
        return atomic_type
    if isinstance(data_type, types.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, types.ArrayType):
        element_type = to_arrow_type(data_type.elementType, f"{path}.element")
        return pa.list_(_build_field("element", element_type, is_nullable=data_type.containsNull))
    if isinstance(data_type, types.MapType):
        value_type = to_arrow_type(data_type.valueType, f"{path}.value")
        key_type = to_arrow_type(data_type.keyType, f"{path}.key")
        # Arrow map keys cannot have the type null. In Spark, only the empty `map()` has keys of type null. This map has
        # no entries, so any key type will do.
        key_type = pa.string() if pa.types.is_null(key_type) else key_type
        return pa.map_(key_type, _build_field("value", value_type, is_nullable=data_type.valueContainsNull))
    if isinstance(data_type, types.StructType):
        return pa.struct([to_arrow_field(field, f"{path}.{field.name}") for field in data_type.fields])
    raise SchemaError(f"column {path} of type {data_type.simpleString()} cannot be written; cast it to a string")


def to_arrow_field(field: types.StructField, path: str) -> pa.Field:
    """Convert a Spark field to an Arrow field. Raise SchemaError if no format can write its type.

    `path`: the name of the column in errors, for example `address.city`.
    """
    return _build_field(field.name, to_arrow_type(field.dataType, path), is_nullable=field.nullable)


def _build_field(name: str, data_type: pa.DataType, *, is_nullable: bool) -> pa.Field:
    """Build a field. A field of type null is always nullable.

    Arrow requires this, but Spark declares the elements of the empty `array()`, which have type null, as not nullable.
    """
    return pa.field(name, data_type, is_nullable or pa.types.is_null(data_type))
