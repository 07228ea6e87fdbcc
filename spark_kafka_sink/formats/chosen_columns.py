"""From the options of formats and a table's columns to the encoders of value and key.

The columns come from Spark's schema or from Arrow's. Every fault of them is one sentence, reported with those of the
options. Then, if nothing else is wrong, a schema registry is asked for the ids of the schemas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from spark_kafka_sink.column_names import no_such_column
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.options import FormatOptions
from spark_kafka_sink.formats.planning import WITH_DESCRIPTOR, plan_format, plan_latest
from spark_kafka_sink.formats.registry_options import RegistryOptions
from spark_kafka_sink.formats.schema_registry import schema_registry
from spark_kafka_sink.words import cleaned

ROLES = ("key", "topic", "partition", "headers", "timestamp")
"""Columns that say where a record goes; they are no part of its value unless `valueColumns` names them."""


class Columns(Protocol):
    """The columns of a table, or the fields of a struct, by their positions."""

    @property
    def names(self) -> Sequence[str]: ...

    def field(self, position: int) -> pa.Field:
        """Its type as formats know it. SchemaError for a type that no format can write."""
        ...

    def fields_of(self, position: int) -> Columns | None:
        """The fields of a struct; None for a column of another type."""
        ...


def plan_encoders(
    formats: Sequence[FormatOptions], columns: Columns
) -> tuple[dict[str, ColumnsEncoder | None], list[str]]:
    """An encoder for each side that has a format, or None where the columns do not allow it; and why not."""
    planned = {options.side: _plan_encoder(options, columns) for options in formats}
    encoders = {side: encoder for side, (encoder, _) in planned.items()}
    return encoders, [fault for _, faults in planned.values() for fault in faults]


def with_schema_id(
    encoder: ColumnsEncoder,
    options: FormatOptions,
    registry: RegistryOptions,
    topic: str | None,
    start: str | None = None,
) -> ColumnsEncoder:
    """The encoder that writes the id of the schema in front of each record. `start`: of a stream of Spark."""
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


def _plan_encoder(options: FormatOptions, columns: Columns) -> tuple[ColumnsEncoder | None, list[str]]:
    parent, faults = _parent(options, columns)
    if faults:
        return None, faults
    within = columns if parent is None else columns.fields_of(parent)
    assert within is not None
    chosen, faults = _chosen(options, columns) if parent is None else (list(range(len(within.names))), [])
    if faults:
        return None, faults
    try:
        fields = tuple(within.field(position) for position in chosen)
        planned = plan_format(options.format, fields, options.schema)
    except SchemaError as error:
        return None, [f"{options.side}Format {options.format}: {cleaned(str(error), 1_000)}."]
    return ColumnsEncoder(planned.rows, fields, tuple(chosen), parent), []


def _parent(options: FormatOptions, columns: Columns) -> tuple[int | None, list[str]]:
    """The position of the struct whose fields are meant, for `payload.*`; None where the columns themselves are."""
    if len(options.columns) != 1 or not options.columns[0].endswith(".*"):
        return None, []
    name, names = options.columns[0].removesuffix(".*"), list(columns.names)
    structs = [other for position, other in enumerate(names) if columns.fields_of(position) is not None]
    if names.count(name) == 1 and name in structs:
        return names.index(name), []
    there = no_such_column(name, structs, "struct columns")
    return None, [f"Option '{options.side}Columns': there is no struct column '{name}'. {there}"]


def _chosen(options: FormatOptions, columns: Columns) -> tuple[list[int], list[str]]:
    """The positions of the columns that the option names."""
    names = list(columns.names)
    meant: Sequence[str] = options.columns or [name for name in names if name not in ROLES]
    faults = []
    if not meant:
        faults.append(
            f"Option '{options.side}Format': the columns {', '.join(ROLES)} are not written into the value by "
            f"themselves, and there is no other. Name those that are meant in '{options.side}Columns'."
        )
    for name in dict.fromkeys(meant):
        if name not in names:
            faults.append(f"Option '{options.side}Columns': there is no column '{name}'. {no_such_column(name, names)}")
        elif names.count(name) > 1 or meant.count(name) > 1:
            faults.append(f"Option '{options.side}Columns': the column '{name}' is there more than once.")
    return [names.index(name) for name in meant if name in names], faults
