"""Builders of the value and key encoders, from the format options and a table's columns.

The value and the key are called the *parts* of a record here. Each part that has a format gets its own encoder.

The columns come from a Spark schema or an Arrow schema. Column errors and option errors are reported together. If
there are no errors, the schema registry is queried for schema ids.
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
    OptionProblem,
    OptionProblems,
    SchemaError,
    SchemaRegistryError,
    option_placeholder,
)
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.format_builders import (
    DESCRIPTOR_FORMATS,
    FormatAndSchema,
    build_format,
    build_format_from_registry,
)
from spark_kafka_sink.formats.options import FormatOptions
from spark_kafka_sink.formats.registry_options import RegistryOptions
from spark_kafka_sink.formats.schema_registry import RegisteredSchema, get_registry_client

NON_VALUE_COLUMNS = ("key", "topic", "partition", "headers", "timestamp")
"""Columns that hold the fields of a record other than its value.

They become part of the value only if `valueColumns` names them.
"""


class Columns(Protocol):
    """The columns of a table, or the fields of a struct, by position."""

    @property
    def names(self) -> Sequence[str]: ...

    def field(self, position: int) -> pa.Field:
        """Return a column's name and Arrow type. Raise SchemaError if no format supports the type."""
        ...

    def struct_fields(self, position: int) -> Columns | None:
        """Return the fields of a struct column, or None if the column is not a struct."""
        ...


def build_encoders(
    formats: Sequence[FormatOptions], columns: Columns, problems: OptionProblems
) -> dict[str, ColumnsEncoder | None]:
    """Build an encoder for each part that has a format. Return the encoders by part (`value` or `key`).

    If a part's columns do not fit its format, the encoder is None and the errors are added to `problems`. Raise
    MissingDependencyError if a package is missing.
    """
    return {options.record_part: _try_build_encoder(options, columns, problems) for options in formats}


def attach_schema_id(
    encoder: ColumnsEncoder,
    options: FormatOptions,
    registry_options: RegistryOptions,
    topic: str | None,
    stream_start_id: str | None = None,
) -> ColumnsEncoder:
    """Query the schema registry and return a copy of the encoder that adds the schema's id or GUID to each record.

    By default, the id precedes each encoded row. With schemaIdLocation=header, a record header contains the GUID.

    Raise SchemaRegistryError if a request fails or the registry's schema cannot be used. Raise SchemaError if the
    columns do not fit the latest schema.

    `topic`: the topic of all records; None if each record names its topic.
    `stream_start_id`: as in `SchemaRegistryClient.get_latest`. The latest schema is cached by this id, so that all
    micro-batches that this process plans use the same schema.
    """
    if registry_options.schema_source == "latest":
        return _attach_latest_schema(encoder, options, registry_options, topic, stream_start_id)
    return _attach_own_schema(encoder, options, registry_options, topic)


def _attach_latest_schema(
    encoder: ColumnsEncoder,
    options: FormatOptions,
    registry_options: RegistryOptions,
    topic: str | None,
    stream_start_id: str | None,
) -> ColumnsEncoder:
    """Return a copy of the encoder that uses the latest schema of the subject.

    Raise SchemaError if the columns do not fit this schema, and SchemaRegistryError if it has references.
    """
    client = get_registry_client(registry_options.config)
    subject = options.subject or registry_options.build_subject_name(
        options.record_part, topic, options.schema.name or ""
    )
    latest_schema = client.get_latest(
        subject, as_serialized_descriptor=options.format in DESCRIPTOR_FORMATS, stream_start_id=stream_start_id
    )
    if latest_schema.has_references:
        spell = registry_options.config.spell
        raise SchemaRegistryError(
            f"The latest schema of subject '{subject}' has references to other subjects, which are not supported. Set "
            f"{spell(options.option_names.schema)} to a schema without references, and {spell('schemaSource')} to "
            "'lookup'."
        )
    try:
        format_and_schema = build_format_from_registry(
            options.format, encoder.fields, latest_schema, options.schema.name
        )
    except SchemaError as error:
        reason = client.sanitize(str(error))
        # `from None`, because the original error contains text from the registry that has not been sanitized.
        raise SchemaError(f"The columns do not fit the latest schema of subject '{subject}': {reason}.") from None
    return _attach_registered_schema(encoder, format_and_schema, latest_schema, subject, options, registry_options)


def _attach_own_schema(
    encoder: ColumnsEncoder, options: FormatOptions, registry_options: RegistryOptions, topic: str | None
) -> ColumnsEncoder:
    """Return a copy of the encoder that uses the user's schema, or the schema derived from the columns.

    The registry provides only the schema's id.
    """
    client = get_registry_client(registry_options.config)
    format_and_schema = build_format(options.format, encoder.fields, options.schema)
    assert format_and_schema.schema is not None  # every registry format has a schema
    subject = options.subject or registry_options.build_subject_name(
        options.record_part, topic, format_and_schema.schema.name
    )
    if registry_options.schema_source == "register":
        registered_schema = client.register(subject, format_and_schema.schema)
    else:
        registered_schema = client.lookup(subject, format_and_schema.schema)
    if registry_options.has_id_in_header and registered_schema.guid is None:
        # Some registries return the GUID only in response to a lookup, and not when the schema is registered.
        is_registered = registry_options.schema_source == "register"
        registered_schema = client.lookup(subject, format_and_schema.schema, after_registration=is_registered)
    return _attach_registered_schema(encoder, format_and_schema, registered_schema, subject, options, registry_options)


def _attach_registered_schema(
    encoder: ColumnsEncoder,
    format_and_schema: FormatAndSchema,
    registered_schema: RegisteredSchema,
    subject: str,
    options: FormatOptions,
    registry_options: RegistryOptions,
) -> ColumnsEncoder:
    """Return a copy of the encoder that uses `format_and_schema`, and adds the schema's id or GUID to each record.

    Raise SchemaRegistryError if the registry options require a GUID and the registry returned none.
    """
    if not registry_options.has_id_in_header:
        prefix = format_and_schema.build_row_prefix(registered_schema.id)
        ignores_prefix = options.record_part == "key" and registry_options.partitioner_ignores_schema_id
        return dataclasses.replace(
            encoder,
            format=format_and_schema.row_format,
            prefix=prefix,
            ignored_key_bytes=len(prefix) if ignores_prefix else 0,
        )
    if registered_schema.guid is None:
        location_option = registry_options.config.spell("schemaIdLocation")
        raise SchemaRegistryError(
            f"The schema registry returned no GUID for the schema of subject '{subject}', but {location_option} is "
            f"'header', which requires one. Set {location_option} to 'prefix', or use a registry with GUIDs, such as "
            "Confluent Platform 8.0."
        )
    record_header = (
        f"__{options.record_part}_schema_id",
        format_and_schema.build_guid_header_value(registered_schema.guid),
    )
    return dataclasses.replace(encoder, format=format_and_schema.row_format, record_header=record_header)


def _try_build_encoder(options: FormatOptions, columns: Columns, problems: OptionProblems) -> ColumnsEncoder | None:
    """Build an encoder. If its columns do not fit the format, add the errors to `problems` and return None."""
    try:
        return _build_encoder(options, columns)
    except MissingDependencyError:
        raise
    except ConfigurationError as error:
        problems += error.unrendered_problems
    return None


def _build_encoder(options: FormatOptions, columns: Columns) -> ColumnsEncoder:
    """Build the encoder for one part. Raise ConfigurationError with all errors about its columns."""
    struct_position = _find_struct_position(options, columns)
    source_columns = columns if struct_position is None else columns.struct_fields(struct_position)
    assert source_columns is not None
    positions = _find_positions(options, columns) if struct_position is None else list(range(len(source_columns.names)))
    try:
        fields = tuple(source_columns.field(position) for position in positions)
        format_and_schema = build_format(options.format, fields, options.schema)
    except SchemaError as error:
        placeholders = {"format": options.format, "problem": sanitize(str(error), 1_000)}
        raise ConfigurationError(
            OptionProblem(options.option_names.format, "{format}: {problem}.", placeholders)
        ) from error
    return ColumnsEncoder(format_and_schema.row_format, fields, tuple(positions), struct_position)


def _find_struct_position(options: FormatOptions, columns: Columns) -> int | None:
    """Return the position of the struct column whose fields are encoded, or None if the table's columns are encoded.

    The option names such a struct column with `.*` at the end, for example `payload.*`. Raise ConfigurationError if
    there is no struct column with this name, or if several columns have the name.
    """
    if len(options.columns) != 1 or not options.columns[0].endswith(".*"):
        return None
    requested_name = options.columns[0].removesuffix(".*")
    names = list(columns.names)
    struct_names = [name for position, name in enumerate(names) if columns.struct_fields(position) is not None]
    is_unique = names.count(requested_name) == 1
    if is_unique and requested_name in struct_names:
        return names.index(requested_name)
    if is_unique:
        problem = "names the column '{name}', which is not a struct. {alternatives}"
    elif requested_name in names:
        problem = "names the column '{name}', which occurs more than once."
    else:
        problem = "names the struct column '{name}', which does not exist. {alternatives}"
    alternatives = describe_missing_column(requested_name, struct_names, "struct columns")
    placeholders = {"name": requested_name, "alternatives": alternatives}
    raise ConfigurationError(OptionProblem(options.option_names.columns, problem, placeholders))


def _find_positions(options: FormatOptions, columns: Columns) -> list[int]:
    """Return the positions of the selected columns: those listed in the option or, if it is not set, the default ones.

    Raise ConfigurationError if no columns are selected, or if a name does not exist or occurs more than once.
    """
    names = list(columns.names)
    selected_names: Sequence[str] = options.columns or [name for name in names if name not in NON_VALUE_COLUMNS]
    option_names, problems = options.option_names, OptionProblems()
    if not selected_names:
        problems.add(
            option_names.format,
            f"has no columns to encode: {', '.join(NON_VALUE_COLUMNS)} are not part of the value by default, and the "
            f"table has no other columns. Name the columns in {option_placeholder(option_names.columns)}.",
        )
    for name in dict.fromkeys(selected_names):
        if name not in names:
            alternatives = describe_missing_column(name, names)
            struct_name = name.partition(".")[0]
            if struct_name in names and columns.struct_fields(names.index(struct_name)) is not None:
                alternatives += f" To encode all fields of the struct, name only '{sanitize(struct_name)}.*'."
            problems.add(
                option_names.columns,
                "names the column '{name}', which does not exist. {alternatives}",
                name=name,
                alternatives=alternatives,
            )
        elif names.count(name) > 1 or selected_names.count(name) > 1:
            problems.add(option_names.columns, "names the column '{name}', which occurs more than once.", name=name)
    if problems:
        raise ConfigurationError(problems)
    return [names.index(name) for name in selected_names]
