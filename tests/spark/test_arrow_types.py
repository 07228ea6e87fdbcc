"""Conversions between Spark's types and Arrow's."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from spark_kafka_sink.spark.arrow_types import to_struct_type


def test_converts_arrow_schema_to_spark_schema() -> None:
    schema = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.list_(pa.int64()), nullable=False)])
    assert to_struct_type(schema) == StructType(
        [StructField("key", StringType()), StructField("value", ArrayType(LongType()), nullable=False)]
    )


def test_keeps_spark_schema() -> None:
    schema = StructType([StructField("value", StringType())])
    assert to_struct_type(schema) is schema
