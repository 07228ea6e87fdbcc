"""From the options of formats and a schema to the encoders of value and key, on the driver.

Every fault of the columns is one sentence, reported with those of the options. Then, if nothing else is wrong, a schema
registry is asked for the ids of the schemas; tasks find them in their encoders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructType

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.planning import WITH_DESCRIPTOR, plan_format, plan_latest
from spark_kafka_sink.formats.schema_registry import schema_registry
from spark_kafka_sink.spark.arrow_types import arrow_field
from spark_kafka_sink.spark.columns import ColumnPlan
from spark_kafka_sink.spark.options.formats import FormatOptions
from spark_kafka_sink.spark.options.registry import RegistryOptions
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.words import no_such_column
from spark_kafka_sink.words import cleaned

ROLES = ("key", "topic", "partition", "headers", "timestamp")
"""Columns that say where a record goes; they are no part of its value unless `valueColumns` names them."""


def plan_encoders(
    formats: Sequence[FormatOptions], schema: StructType, faults: list[str]
) -> dict[str, ColumnsEncoder | None]:
    """An encoder for each side that has a format; None, and a fault more, where the schema does not allow it."""
    return {options.side: _plan_encoder(options, schema, faults) for options in formats}


def with_schema_ids(plan: ColumnPlan, options: SinkOptions, start: str | None) -> ColumnPlan:
    """The plan with the ids of the schemas, for which the registry is asked. `start`: of a stream."""
    changed: dict[str, Any] = {}
    for side in options.formats:
        encoder = plan.value if side.side == "value" else plan.key
        if side.has_registry and options.registry is not None and isinstance(encoder, ColumnsEncoder):
            changed[side.side] = _with_schema_id(encoder, side, options.registry, options.topic, start)
    return dataclasses.replace(plan, **changed)


def _with_schema_id(
    encoder: ColumnsEncoder, options: FormatOptions, registry: RegistryOptions, topic: str | None, start: str | None
) -> ColumnsEncoder:
    """The encoder that writes the id of the schema in front of each record."""
    client = schema_registry(registry.config)
    if registry.source == "latest":
        subject = options.subject or registry.subject(options.side, topic, options.schema.name or "")
        found = client.latest(subject, is_serialized=options.format in WITH_DESCRIPTOR, start=start)
        try:
            planned = plan_latest(options.format, encoder.fields, found, options.schema.name)
        except SchemaError as error:
            words = client.shown(str(error))
            raise SchemaError(f"The columns do not fit the latest schema of '{subject}': {words}.") from None
        return dataclasses.replace(encoder, format=planned.rows, header=planned.header(found.id))
    planned = plan_format(options.format, encoder.fields, options.schema)
    assert planned.schema is not None  # formats with a registry have one
    subject = options.subject or registry.subject(options.side, topic, planned.schema.name)
    ask = client.register if registry.source == "register" else client.lookup
    return dataclasses.replace(encoder, format=planned.rows, header=planned.header(ask(subject, planned.schema)))


def _plan_encoder(options: FormatOptions, schema: StructType, faults: list[str]) -> ColumnsEncoder | None:
    known = len(faults)
    parent = _parent(options, schema, faults)
    fields = schema.fields if parent is None else _struct(schema, parent).fields
    chosen = _chosen(options, schema, faults) if parent is None else list(range(len(fields)))
    if len(faults) > known:
        return None
    try:
        columns = tuple(arrow_field(fields[position], fields[position].name) for position in chosen)
        planned = plan_format(options.format, columns, options.schema)
    except SchemaError as error:
        faults.append(f"{options.side}Format {options.format}: {cleaned(str(error), 1_000)}.")
        return None
    return ColumnsEncoder(planned.rows, columns, tuple(chosen), parent)


def _parent(options: FormatOptions, schema: StructType, faults: list[str]) -> int | None:
    """The position of the struct whose fields are meant, for `payload.*`."""
    if len(options.columns) != 1 or not options.columns[0].endswith(".*"):
        return None
    name, names = options.columns[0].removesuffix(".*"), schema.fieldNames()
    if names.count(name) == 1 and isinstance(schema[name].dataType, StructType):
        return names.index(name)
    structs = [field.name for field in schema if isinstance(field.dataType, StructType)]
    there = no_such_column(name, structs, "struct columns")
    faults.append(f"Option '{options.side}Columns': there is no struct column '{name}'. {there}")
    return None


def _struct(schema: StructType, position: int) -> StructType:
    kind = schema.fields[position].dataType
    assert isinstance(kind, StructType)
    return kind


def _chosen(options: FormatOptions, schema: StructType, faults: list[str]) -> list[int]:
    """The positions of the columns that the option names."""
    names = schema.fieldNames()
    columns: Sequence[str] = options.columns or [name for name in names if name not in ROLES]
    if not columns:
        faults.append(
            f"Option '{options.side}Format': the columns {', '.join(ROLES)} are not written into the value by "
            f"themselves, and there is no other. Name those that are meant in '{options.side}Columns'."
        )
    for name in dict.fromkeys(columns):
        if name not in names:
            faults.append(f"Option '{options.side}Columns': there is no column '{name}'. {no_such_column(name, names)}")
        elif names.count(name) > 1 or columns.count(name) > 1:
            faults.append(f"Option '{options.side}Columns': the column '{name}' is there more than once.")
    return [names.index(name) for name in columns if name in names]
