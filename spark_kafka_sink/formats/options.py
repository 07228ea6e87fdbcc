"""The options that say which columns become the value or the key, in which format: `valueFormat` and its like."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from spark_kafka_sink.client.option_parsing import ParsedOptions, choice_parser, parse_optional_text, parse_text
from spark_kafka_sink.formats.format_builders import (
    FORMATS,
    NO_SCHEMA,
    WITH_DESCRIPTOR,
    WITH_REGISTRY,
    WITH_SCHEMA,
    SchemaOptions,
)
from spark_kafka_sink.options import Option
from spark_kafka_sink.options.column_lists import parse_column_list
from spark_kafka_sink.options.files import read_regular_file

SIDES = ("value", "key")


def _columns(value: object) -> tuple[str, ...]:
    return tuple(name for name, _ in parse_column_list(parse_text(value), "'id, name' or 'payload.*'"))


_ROWS = (
    (
        "Format",
        None,
        choice_parser(*FORMATS),
        "makes the value out of columns: " + ", ".join(f"`{name}`" for name in FORMATS),
    ),
    ("Columns", (), _columns, "the columns of the value, as `id, name`, or `payload.*` for the fields of a struct"),
    (
        "Schema",
        None,
        parse_optional_text,
        "the schema that the value follows; without one it is made from the types of the columns",
    ),
    (
        "SchemaFile",
        None,
        parse_optional_text,
        "a file with the schema of the value, which the driver [reads](security.md#decide-who-may-set-options)",
    ),
    ("SchemaName", None, parse_optional_text, "how the record or message of the value is called"),
    (
        "Subject",
        None,
        parse_optional_text,
        "the subject of the schema registry, in place of the one by `subjectNameStrategy`",
    ),
)
FORMAT_OPTIONS = tuple(
    Option(f"{side}{name}", default, parse, meaning.replace("value", side))
    for side in SIDES
    for name, default, parse, meaning in _ROWS
)


@dataclass(frozen=True)
class FormatOptions:
    """One of the two sides of a record, `value` or `key`, and how columns become it. No columns: all but the roles."""

    side: str
    format: str
    columns: tuple[str, ...] = ()
    schema: SchemaOptions = NO_SCHEMA
    subject: str | None = None

    @property
    def has_registry(self) -> bool:
        return self.format in WITH_REGISTRY


def find_encoded_sides(options: Mapping[str, str]) -> dict[str, None]:
    """Which of value and key are made out of columns, for options that may be faulty: no encoder is built yet."""
    given = {name.lower() for name in options}
    return dict.fromkeys(side for side in SIDES if {f"{side}format", f"{side}columns"} & given)


def parse_format_options(parsed_options: ParsedOptions) -> tuple[FormatOptions, ...]:
    """The sides that are made out of columns."""
    read = (_format_of(parsed_options, side) for side in SIDES)
    return tuple(options for options in read if options is not None)


def _format_of(parsed_options: ParsedOptions, side: str) -> FormatOptions | None:
    """The options of one side, or None if its column is written as it is."""
    values = parsed_options.values
    asked = f"{side}Format"
    if asked not in parsed_options.raw_values and f"{side}Columns" in parsed_options.raw_values:
        asked = "valueFormat"
    if asked in parsed_options.invalid_fields:
        return None
    name: str | None = values[asked]
    if name is None:
        side_options = (option for option in FORMAT_OPTIONS if option.name.startswith(side))
        parsed_options.reject_unused(side_options, f"{{{side}Format}} is one of {_listed_formats()}")
        return None
    if side == "key" and "keyColumns" not in parsed_options.raw_values:
        parsed_options.faults.add("keyFormat", "needs {keyColumns}: the columns that are the key.")
    subject = values[f"{side}Subject"]
    if subject and name not in WITH_REGISTRY:
        parsed_options.faults.add(f"{side}Subject", f"has no effect, as the format '{name}' has no registry.")
    return FormatOptions(side, name, values[f"{side}Columns"], _schema_choice(parsed_options, side, name), subject)


def _schema_choice(parsed_options: ParsedOptions, side: str, name: str) -> SchemaOptions:
    values = parsed_options.values
    options = [f"{side}{option}" for option in ("Schema", "SchemaFile", "SchemaName")]
    text, path, record = (values[option] for option in options)
    if name not in WITH_SCHEMA:
        for option in [option for option in options if values[option]][:1]:
            parsed_options.faults.add(option, f"has no effect, as the format '{name}' follows no schema.")
    if text and path:
        parsed_options.faults.add(f"{side}Schema", f"cannot be set together with {{{side}SchemaFile}}.")
    elif path:
        try:
            data = read_regular_file(path)
            text = base64.b64encode(data).decode() if name in WITH_DESCRIPTOR else data.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            parsed_options.faults.add(
                f"{side}SchemaFile",
                "is {path}, which cannot be read on the driver: {reason}.",
                path=path,
                reason=reason,
            )
    return SchemaOptions(text, record)


def _listed_formats() -> str:
    return ", ".join(f"'{name}'" for name in FORMATS)
