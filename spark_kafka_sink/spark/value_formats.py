"""Preparation of a Spark write's encoders on the driver: an adapter for Spark's schema, and the schema ids.

The schema registry is queried only after all other checks have passed. The encoders are pickled and sent to the tasks
together with their ids.
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
    """Adapts a Spark schema to the `Columns` protocol that the encoder builders expect."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    @property
    def names(self) -> Sequence[str]:
        return self._schema.fieldNames()

    def field(self, position: int) -> pa.Field:
        field = self._schema.fields[position]
        return to_arrow_field(field, field.name)

    def struct_fields(self, position: int) -> SparkColumns | None:
        """Return the fields of a struct column, or None if the column is not a struct."""
        data_type = self._schema.fields[position].dataType
        return SparkColumns(data_type) if isinstance(data_type, StructType) else None


def add_schema_ids(plan: ColumnPlan, options: SinkOptions, stream_start_id: str | None) -> ColumnPlan:
    """Return the plan with the registry's schema ids added to its encoders.

    `stream_start_id`: as in `check_and_plan_write`. The latest schemas are cached by this id.
    """
    encoders: dict[str, Any] = {}
    for format_options in options.formats:
        encoder = plan.value if format_options.record_part == "value" else plan.key
        # If a format uses a registry, the registry options and the encoder exist. The type checker does not know this.
        if format_options.has_registry and options.registry is not None and isinstance(encoder, ColumnsEncoder):
            encoders[format_options.record_part] = attach_schema_id(
                encoder, format_options, options.registry, options.topic, stream_start_id
            )
    return dataclasses.replace(plan, **encoders)
