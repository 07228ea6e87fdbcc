"""From the options of formats and a DataFrame's schema to the encoders of value and key, on the driver.

A schema registry is asked for the ids of the schemas when nothing else is wrong; tasks find them in their encoders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.encoder_builders import attach_schema_id
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.arrow_types import to_arrow_field
from spark_kafka_sink.spark.options.sink_options import SinkOptions


class SparkColumns:
    """The columns of a DataFrame, as formats look at them."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    @property
    def names(self) -> Sequence[str]:
        return self._schema.fieldNames()

    def field(self, position: int) -> pa.Field:
        field = self._schema.fields[position]
        return to_arrow_field(field, field.name)

    def struct_fields(self, position: int) -> SparkColumns | None:
        kind = self._schema.fields[position].dataType
        return SparkColumns(kind) if isinstance(kind, StructType) else None


def add_schema_ids(plan: ColumnPlan, options: SinkOptions, start: str | None) -> ColumnPlan:
    """The plan with the ids of the schemas, for which the registry is asked. `start`: of a stream."""
    changed: dict[str, Any] = {}
    for side in options.formats:
        encoder = plan.value if side.side == "value" else plan.key
        if side.has_registry and options.registry is not None and isinstance(encoder, ColumnsEncoder):
            changed[side.side] = attach_schema_id(encoder, side, options.registry, options.topic, start)
    return dataclasses.replace(plan, **changed)
