"""From the options of formats and a table's columns to the encoders of value and key.

The columns come from Spark's schema or from Arrow's. Every fault of them is one sentence, reported with those of the
options. Then, if nothing else is wrong, a schema registry is asked for the ids of the schemas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from spark_kafka_sink.diagnostics.column_names import describe_missing_column
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import (
    ConfigurationError,
    MissingDependencyError,
    OptionFault,
    OptionFaults,
    SchemaError,
)
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.format_builders import WITH_DESCRIPTOR, build_format, build_latest_format
from spark_kafka_sink.formats.options import FormatOptions
from spark_kafka_sink.formats.registry_options import RegistryOptions
from spark_kafka_sink.formats.schema_registry import get_registry_client

ROLES = ("key", "topic", "partition", "headers", "timestamp")
"""Columns that say where a record goes; they are no part of its value unless `valueColumns` names them."""


class Columns(Protocol):
    """The columns of a table, or the fields of a struct, by their positions."""

    @property
    def names(self) -> Sequence[str]: ...

    def field(self, position: int) -> pa.Field:
        """Its type as formats know it. SchemaError for a type that no format can write."""
        ...

    def struct_fields(self, position: int) -> Columns | None:
        """The fields of a struct; None for a column of another type."""
        ...


def build_encoders(
    formats: Sequence[FormatOptions], columns: Columns, faults: OptionFaults
) -> dict[str, ColumnsEncoder | None]:
    """An encoder for each side that has a format, or None where the columns do not allow it: `faults` say why."""
    return {options.side: _try_to_build(options, columns, faults) for options in formats}


def attach_schema_id(
    encoder: ColumnsEncoder,
    options: FormatOptions,
    registry: RegistryOptions,
    topic: str | None,
    start: str | None = None,
) -> ColumnsEncoder:
    """The encoder that writes the id of the schema in front of each record. `start`: of a stream of Spark."""
    client = get_registry_client(registry.config)
    if registry.source == "latest":
        subject = options.subject or registry.subject(options.side, topic, options.schema.name or "")
        found = client.latest(subject, is_serialized=options.format in WITH_DESCRIPTOR, start=start)
        try:
            schema_format = build_latest_format(options.format, encoder.fields, found, options.schema.name)
        except SchemaError as error:
            words = client.shown(str(error))
            raise SchemaError(f"The columns do not fit the latest schema of '{subject}': {words}.") from None
        return dataclasses.replace(encoder, format=schema_format.row_format, header=schema_format.header(found.id))
    schema_format = build_format(options.format, encoder.fields, options.schema)
    assert schema_format.schema is not None  # formats with a registry have one
    subject = options.subject or registry.subject(options.side, topic, schema_format.schema.name)
    ask = client.register if registry.source == "register" else client.lookup
    return dataclasses.replace(
        encoder, format=schema_format.row_format, header=schema_format.header(ask(subject, schema_format.schema))
    )


def _try_to_build(options: FormatOptions, columns: Columns, faults: OptionFaults) -> ColumnsEncoder | None:
    try:
        return _build_encoder(options, columns)
    except MissingDependencyError:
        raise
    except ConfigurationError as error:
        faults += error.unrendered_faults
    return None


def _build_encoder(options: FormatOptions, columns: Columns) -> ColumnsEncoder:
    """Raise ConfigurationError with everything that is wrong with the columns of one side."""
    parent = _parent(options, columns)
    within = columns if parent is None else columns.struct_fields(parent)
    assert within is not None
    chosen = _chosen(options, columns) if parent is None else list(range(len(within.names)))
    try:
        fields = tuple(within.field(position) for position in chosen)
        schema_format = build_format(options.format, fields, options.schema)
    except SchemaError as error:
        problem = {"format": options.format, "problem": sanitize(str(error), 1_000)}
        raise ConfigurationError(OptionFault(f"{options.side}Format", "{format}: {problem}.", problem)) from error
    return ColumnsEncoder(schema_format.row_format, fields, tuple(chosen), parent)


def _parent(options: FormatOptions, columns: Columns) -> int | None:
    """The position of the struct whose fields are meant, for `payload.*`; None where the columns themselves are."""
    if len(options.columns) != 1 or not options.columns[0].endswith(".*"):
        return None
    name, names = options.columns[0].removesuffix(".*"), list(columns.names)
    structs = [other for position, other in enumerate(names) if columns.struct_fields(position) is not None]
    if names.count(name) == 1 and name in structs:
        return names.index(name)
    values = {"name": name, "there": describe_missing_column(name, structs, "struct columns")}
    raise ConfigurationError(
        OptionFault(f"{options.side}Columns", "names a struct column '{name}', which does not exist. {there}", values)
    )


def _chosen(options: FormatOptions, columns: Columns) -> list[int]:
    """The positions of the columns that the option names."""
    names = list(columns.names)
    meant: Sequence[str] = options.columns or [name for name in names if name not in ROLES]
    option, faults = f"{options.side}Columns", OptionFaults()
    if not meant:
        faults.add(
            f"{options.side}Format",
            f"finds no columns: {', '.join(ROLES)} are not written into the value by themselves, and there is no "
            f"other. Name the columns in {{{option}}}.",
        )
    for name in dict.fromkeys(meant):
        if name not in names:
            there = describe_missing_column(name, names)
            faults.add(option, "names a column '{name}', which does not exist. {there}", name=name, there=there)
        elif names.count(name) > 1 or meant.count(name) > 1:
            faults.add(option, "names the column '{name}', which is there more than once.", name=name)
    if faults:
        raise ConfigurationError(faults)
    return [names.index(name) for name in meant]
