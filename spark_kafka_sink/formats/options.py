"""Options that select the columns and format of a record's value and key, such as `valueFormat` and `keyColumns`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_kafka_sink.client.option_parsing import ParsedOptions, build_choice_parser, parse_optional_text, parse_text
from spark_kafka_sink.errors import option_placeholder
from spark_kafka_sink.formats.format_builders import (
    DESCRIPTOR_FORMATS,
    FORMATS,
    NO_SCHEMA,
    REGISTRY_FORMATS,
    SCHEMA_FORMATS,
    SchemaSpec,
)
from spark_kafka_sink.options import Option
from spark_kafka_sink.options.column_lists import parse_column_list
from spark_kafka_sink.options.files import build_unreadable_file_problem, read_bounded_file

RECORD_PARTS = ("value", "key")
"""Record fields that can be encoded from columns."""


class PartOptionNames(NamedTuple):
    """Names of the options that encode one part of a record, its value or its key, from columns."""

    format: str
    columns: str
    schema: str
    schema_file: str
    schema_name: str
    subject: str


OPTION_NAMES: Mapping[str, PartOptionNames] = {
    "value": PartOptionNames(
        format="valueFormat",
        columns="valueColumns",
        schema="valueSchema",
        schema_file="valueSchemaFile",
        schema_name="valueSchemaName",
        subject="valueSubject",
    ),
    "key": PartOptionNames(
        format="keyFormat",
        columns="keyColumns",
        schema="keySchema",
        schema_file="keySchemaFile",
        schema_name="keySchemaName",
        subject="keySubject",
    ),
}
"""The option names of each part in RECORD_PARTS."""


def _parse_columns(value: object) -> tuple[str, ...]:
    """Parse a comma-separated list of column names. Raise ValueError if it is invalid."""
    return tuple(name for name, _ in parse_column_list(parse_text(value), "'id, name' or 'payload.*'"))


_VALUE_OPTIONS = (
    Option(
        "valueFormat",
        None,
        build_choice_parser(*FORMATS),
        "the format used to encode columns as the value: " + ", ".join(f"`{name}`" for name in FORMATS),
    ),
    Option(
        "valueColumns",
        (),
        _parse_columns,
        "the columns of the value, for example `id, name`, or `payload.*` for the fields of the struct `payload`",
    ),
    Option(
        "valueSchema",
        None,
        parse_optional_text,
        "the schema of the value; by default it is derived from the column types",
    ),
    Option(
        "valueSchemaFile",
        None,
        parse_optional_text,
        "a file with the schema of the value, [read on the driver](security.md#decide-who-may-set-options)",
    ),
    Option(
        "valueSchemaName",
        None,
        parse_optional_text,
        "the full name of the record or message in the schema of the value, for example `com.acme.Order`",
    ),
    Option(
        "valueSubject",
        None,
        parse_optional_text,
        "the subject of the value's schema in the schema registry; overrides `subjectNameStrategy`",
    ),
)


def _to_key_option(value_option: Option) -> Option:
    """Build the option for the key that corresponds to an option for the value."""
    return replace(
        value_option,
        name=value_option.name.replace("value", "key"),
        description=value_option.description.replace("value", "key"),
    )


FORMAT_OPTIONS = (*_VALUE_OPTIONS, *map(_to_key_option, _VALUE_OPTIONS))


@dataclass(frozen=True)
class FormatOptions:
    """Options for encoding one part of a record, its value or its key, from columns."""

    record_part: str
    """`value` or `key`."""
    format: str
    """One of FORMATS."""
    columns: tuple[str, ...] = ()
    """Names of the encoded columns. If it is empty, all columns are encoded except those in NON_VALUE_COLUMNS."""
    schema: SchemaSpec = NO_SCHEMA
    subject: str | None = None
    """The subject in the schema registry, or None if the subject name strategy determines it."""

    @property
    def option_names(self) -> PartOptionNames:
        return OPTION_NAMES[self.record_part]

    @property
    def has_registry(self) -> bool:
        return self.format in REGISTRY_FORMATS


def find_encoded_parts(options: Mapping[str, str]) -> list[str]:
    """Return the parts of a record that are encoded from columns, in the order of RECORD_PARTS.

    `options`: unparsed options, which may be invalid and have names in any case.
    """
    lowercase_names = {name.lower() for name in options}
    return [
        part for part, names in OPTION_NAMES.items() if {names.format.lower(), names.columns.lower()} & lowercase_names
    ]


def has_registry_format(options: Mapping[str, str]) -> bool:
    """Return whether the value or the key has a format that uses a schema registry.

    `options`: as in `find_encoded_parts`.
    """
    format_options = {names.format.lower() for names in OPTION_NAMES.values()}
    return any(
        name.lower() in format_options and text.strip().lower() in REGISTRY_FORMATS for name, text in options.items()
    )


def parse_format_options(parsed_options: ParsedOptions) -> tuple[FormatOptions, ...]:
    """Return the options of each part that is encoded from columns.

    Add a problem to `parsed_options` for each option that is invalid, missing or has no effect.
    """
    options_by_part = [_parse_part_options(parsed_options, part) for part in RECORD_PARTS]
    return tuple(options for options in options_by_part if options is not None)


def _parse_part_options(parsed_options: ParsedOptions, part: str) -> FormatOptions | None:
    """Return one part's options, or None if its column is written without a format or the format is invalid.

    `part`: `value` or `key`.
    """
    names, option_values = OPTION_NAMES[part], parsed_options.values
    format_option = _find_format_option(parsed_options, names)
    if format_option in parsed_options.invalid_fields:
        return None
    format_name: str | None = option_values[format_option]
    if format_name is None:
        part_options = (option for option in FORMAT_OPTIONS if option.name in names)
        parsed_options.reject_unused(part_options, f"{option_placeholder(names.format)} is one of {_list_formats()}")
        return None
    if part == "key" and names.columns not in parsed_options.raw_values:
        parsed_options.problems.add(names.format, "requires {keyColumns}, which names the columns of the key.")
    subject = option_values[names.subject]
    if subject and format_name not in REGISTRY_FORMATS:
        parsed_options.problems.add(
            names.subject, f"has no effect, because the format '{format_name}' does not use a schema registry."
        )
    schema = _parse_schema_options(parsed_options, names, format_name)
    return FormatOptions(
        record_part=part,
        format=format_name,
        columns=option_values[names.columns],
        schema=schema,
        subject=subject,
    )


def _find_format_option(parsed_options: ParsedOptions, names: PartOptionNames) -> str:
    """Return the option that determines the part's format. Key columns have the value's format by default."""
    if names.columns in parsed_options.raw_values and names.format not in parsed_options.raw_values:
        return OPTION_NAMES["value"].format
    return names.format


def _parse_schema_options(parsed_options: ParsedOptions, names: PartOptionNames, format_name: str) -> SchemaSpec:
    """Return one part's schema, which is read from a file if the part's option SchemaFile is set.

    Add a problem to `parsed_options` if the file cannot be read, or if an option conflicts or has no effect.
    """
    schema_options = (names.schema, names.schema_file, names.schema_name)
    schema_text, path, schema_name = (parsed_options.values[name] for name in schema_options)
    if format_name not in SCHEMA_FORMATS:
        # One problem is enough, so only the first of these options is reported.
        useless_option = next((name for name in schema_options if parsed_options.values[name]), None)
        if useless_option is not None:
            reason = f"has no effect, because the format '{format_name}' has no schema."
            parsed_options.problems.add(useless_option, reason)
        return NO_SCHEMA
    if schema_text and path:
        file_placeholder = option_placeholder(names.schema_file)
        parsed_options.problems.add(names.schema, f"cannot be set together with {file_placeholder}.")
    elif path:
        is_binary = format_name in DESCRIPTOR_FORMATS
        try:
            schema_bytes = read_bounded_file(path)
            schema_text = base64.b64encode(schema_bytes).decode() if is_binary else schema_bytes.decode()
        except (OSError, ValueError) as error:
            content = "the descriptor in base64" if is_binary else "the schema"
            remedy = f"set {option_placeholder(names.schema)} to {content}"
            problem = build_unreadable_file_problem(names.schema_file, path, error, "the driver", content_remedy=remedy)
            parsed_options.problems.append(problem)
    return SchemaSpec(schema_text, schema_name)


def _list_formats() -> str:
    return ", ".join(f"'{name}'" for name in FORMATS)
