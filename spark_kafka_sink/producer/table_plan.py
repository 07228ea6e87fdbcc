"""TablePlan: how send_table() turns the columns of an Arrow table into the fields of records.

    send_table("orders", table)                                  columns named as in the Spark sink: value, key, ...
    send_table("orders", table, key="id", value="text")          columns with other names
    send_table("orders", table, key="id", value_format="json")   all other columns are encoded into the value

Some arguments of send_table() name the column of each record field; they are called the *mapping*. A *format*, such as
JSON, encodes several columns into one field. A column *position* is the index of a column in the table's schema.

Arrow types without a Spark equivalent are converted before a field is read or encoded (table_types.py). All functions
that find problems return them as messages, one per problem, so that one ConfigurationError can list all of them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex

import pyarrow as pa

from spark_kafka_sink.client.option_parsing import parse_option_values
from spark_kafka_sink.diagnostics.column_names import describe_missing_column
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import ConfigurationError, OptionProblems, OptionSpelling, SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.encoder_builders import attach_schema_id, build_encoders
from spark_kafka_sink.formats.options import (
    FORMAT_OPTIONS,
    OPTION_NAMES,
    RECORD_PARTS,
    FormatOptions,
    parse_format_options,
)
from spark_kafka_sink.formats.registry_options import (
    REGISTRY_OPTIONS,
    RegistryOptions,
    parse_registry_options,
    suggest_for_serializers,
)
from spark_kafka_sink.options import build_option_table
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.partitioner import parse_requested_partitions
from spark_kafka_sink.producer.record import validate_topic
from spark_kafka_sink.producer.table_types import (
    BatchConversion,
    convert_column,
    find_dictionary_value_type,
    to_spark_type,
)
from spark_kafka_sink.records.columns import RecordColumns

FIELD_NAMES = ("value", "key", "headers", "partition", "timestamp", "topic")
"""The fields of a record. By default, a field is read from the column with its name."""
_REQUIRED_FIELDS = ("value", "topic")
"""Record fields that need a column, unless a format encodes the value or the caller passes a topic."""
_PANDAS_INDEX_PATTERN = re.compile(r"__index_level_\d+__")
"""Names that pandas gives to the columns of an unnamed index when it exports a DataFrame."""
_OPTIONS = build_option_table((*FORMAT_OPTIONS, *REGISTRY_OPTIONS))
"""The options of formats and of schema registries, by their names in the Spark sink."""


def _to_argument_name(option_name: str) -> str:
    """Convert the name of a Spark option to the name of an argument: valueFormat becomes value_format."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), option_name).replace(".", "_")


TABLE_ARGUMENTS = {_to_argument_name(name): option for name, option in _OPTIONS.items() if not name.endswith("Columns")}
"""The options that send_table() accepts as keyword arguments, keyed by argument name."""
_ARGUMENTS_BY_OPTION = {
    **{option.name: argument for argument, option in TABLE_ARGUMENTS.items()},
    "valueColumns": "value",
    "keyColumns": "key",
}
_ARGUMENTS_BY_LOWER_CASE_OPTION = {option.lower(): argument for option, argument in _ARGUMENTS_BY_OPTION.items()}
_ARGUMENT_SPELLING = OptionSpelling(lambda option: f"'{_ARGUMENTS_BY_OPTION.get(option, option)}'", "Argument ")


@dataclass(frozen=True)
class ColumnMapping:
    """The column arguments of a send_table() call. None stands for the column with the field's name, if it exists."""

    value: str | Sequence[str] | None = None
    key: str | Sequence[str] | None = None
    headers: str | None = None
    partition: int | str | None = None
    timestamp: str | None = None


class TablePlan(NamedTuple):
    """The steps that turn a batch of the table into records."""

    conversion: BatchConversion
    """The first step, which converts the types of columns."""
    columns: ColumnPlan
    """The second step, which reads or encodes the record fields. Its column positions are those in the converted
    batch."""


class _FieldSources(NamedTuple):
    """The sources of the record fields: a column for each field, or a format that encodes several columns."""

    positions: dict[str, int]
    """The position of each column that is read as a record field, keyed by the name of the field."""
    formats: Sequence[FormatOptions]
    """The formats that encode the value or the key. Each lists its columns."""
    registry: RegistryOptions | None
    """The options of the schema registry; None if no format uses one."""


class _ParsedFormats(NamedTuple):
    """The parsed format arguments of a send_table() call."""

    formats: list[FormatOptions]
    registry: RegistryOptions | None
    """The options of the schema registry; None if no format uses one."""
    problems: list[str]
    """A message for each invalid argument."""


class ArrowColumns:
    """Columns of an Arrow schema, or fields of a struct, with the Spark types that formats expect."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields

    @property
    def names(self) -> Sequence[str]:
        return [field.name for field in self._fields]

    def field(self, position: int) -> pa.Field:
        """Return the field at a position, with its Spark type."""
        field = self._fields[position]
        return pa.field(field.name, to_spark_type(field.type), field.nullable)

    def struct_fields(self, position: int) -> ArrowColumns | None:
        """Return the fields of a struct column, or None for a column of another type."""
        data_type = self._fields[position].type
        return ArrowColumns(list(data_type)) if pa.types.is_struct(data_type) else None


def plan_table(
    topic: str | None, schema: pa.Schema, mapping: ColumnMapping, table_options: Mapping[str, object]
) -> TablePlan:
    """Return the plan for a table with this schema.

    `topic`: the topic of all rows; None if a column contains the topic of each row.
    `table_options`: format and schema registry options, keyed by the name of the send_table() argument.

    Raise ConfigurationError if the arguments do not fit the schema. Each check relies on the success of those before
    it, so the error lists only the problems of the first check that finds any.
    """
    if topic is not None:
        validate_topic(topic)
    mapping = _normalize_partition(mapping)
    _ensure_no_problems(_find_argument_problems(mapping))
    sources = _find_field_sources(topic, schema, mapping, table_options)
    positions = sources.positions
    schema_encoders = _build_encoders(sources.formats, schema)
    target_types = _find_target_types(schema, positions, schema_encoders)
    _ensure_no_problems(_find_type_problems(schema, positions, target_types))
    # Query the schema registry only after all checks have passed, because that may register a schema.
    encoders = _attach_schema_ids(schema_encoders, sources.formats, sources.registry, topic)
    conversion, timestamp_position = _build_conversion(schema, target_types, positions.get("timestamp"))
    columns = ColumnPlan(
        value=encoders["value"] if "value" in encoders else positions["value"],
        key=encoders.get("key", positions.get("key")),
        topic=positions.get("topic"),
        partition=positions.get("partition"),
        headers=positions.get("headers"),
        timestamp=timestamp_position,
        fixed_topic=topic,
        fixed_partition=mapping.partition if isinstance(mapping.partition, int) else None,
    )
    return TablePlan(conversion, columns)


def _ensure_no_problems(problems: Sequence[str]) -> None:
    """Raise ConfigurationError with all problems if there are any."""
    if problems:
        raise ConfigurationError(problems)


def _find_field_sources(
    topic: str | None, schema: pa.Schema, mapping: ColumnMapping, table_options: Mapping[str, object]
) -> _FieldSources:
    """Find the source of each record field. Raise ConfigurationError with all invalid options and missing columns."""
    explicit_options = {name: value for name, value in table_options.items() if value is not None}
    parsed_formats = _parse_formats(topic, mapping, explicit_options)
    encoded_fields = {part for part in RECORD_PARTS if f"{part}_format" in explicit_options}
    positions, position_problems = _find_column_positions(topic, schema, mapping, encoded_fields)
    _ensure_no_problems(parsed_formats.problems + position_problems)
    formats = [_with_default_columns(format_options, schema, positions) for format_options in parsed_formats.formats]
    return _FieldSources(positions, formats, parsed_formats.registry)


def _build_encoders(formats: Sequence[FormatOptions], schema: pa.Schema) -> dict[str, ColumnsEncoder | None]:
    """Return the encoder of each format, keyed by record part: `value` or `key`.

    Raise ConfigurationError if the columns of a format have types that it cannot encode.
    """
    problems = OptionProblems()
    encoders = build_encoders(formats, ArrowColumns(list(schema)), problems)
    _ensure_no_problems(problems.render(_ARGUMENT_SPELLING))
    return encoders


def _normalize_partition(mapping: ColumnMapping) -> ColumnMapping:
    """Return the mapping with its partition number, if it has one, converted to an int.

    Later steps check whether the partition is an int, which is False for numpy's integers, for example. A bool is left
    alone: it is an int in Python, but not a partition number.
    """
    if isinstance(mapping.partition, SupportsIndex) and not isinstance(mapping.partition, bool):
        return replace(mapping, partition=operator.index(mapping.partition))
    return mapping


def _attach_schema_ids(
    schema_encoders: Mapping[str, ColumnsEncoder | None],
    formats: Sequence[FormatOptions],
    registry: RegistryOptions | None,
    topic: str | None,
) -> dict[str, Any]:
    """Query the schema registry for the formats that use it, and return the encoders by record part.

    The encoders of these formats then add the id of their schema to each record. All other encoders are unchanged.
    Errors name options as arguments of send_table().
    """
    encoders: dict[str, Any] = dict(schema_encoders)
    for format_options in formats:
        if format_options.has_registry and registry is not None:
            part = format_options.record_part
            try:
                encoders[part] = attach_schema_id(encoders[part], format_options, registry, topic)
            except ConfigurationError as error:  # the trust store or key store of the registry cannot be read
                raise type(error)(error.render(_ARGUMENT_SPELLING)) from error
    return encoders


def _build_conversion(
    schema: pa.Schema, target_types: Mapping[int, pa.DataType], timestamp_position: int | None
) -> tuple[BatchConversion, int | None]:
    """Return the conversion of a batch, and the position of the record timestamps in the converted batch.

    All columns keep their positions. The record timestamps are appended as another column, because a format may encode
    the original column as another type. If `timestamp_position` is None, there are no record timestamps: no column is
    appended, and the returned position is None, too.
    """
    columns = [(position, target_types.get(position, field.type)) for position, field in enumerate(schema)]
    if timestamp_position is None:
        return BatchConversion(columns), None
    columns.append((timestamp_position, _to_timestamp_type(schema.field(timestamp_position).type)))
    return BatchConversion(columns), len(columns) - 1


def _find_argument_problems(mapping: ColumnMapping) -> list[str]:
    """Return a message for each argument that cannot be the name of a column.

    If such an argument were ignored, every row would be written without the field.
    """
    problems: list[str] = []
    for field_name in ("value", "key", "headers", "partition", "timestamp"):
        argument = getattr(mapping, field_name)
        accepts_list, accepts_number = field_name in RECORD_PARTS, field_name == "partition"
        names = list(argument) if accepts_list and isinstance(argument, list | tuple) else [argument]
        are_valid_names = len(names) > 0 and all(isinstance(name, str) for name in names)
        is_valid_number = accepts_number and isinstance(argument, int) and not isinstance(argument, bool)
        if argument is None or is_valid_number or are_valid_names:
            continue
        alternative = ""
        if accepts_list:
            alternative = " or a list of names"
        elif accepts_number:
            alternative = " or a number"
        shown_argument = sanitize(repr(argument), max_characters=100)
        problems.append(f"{field_name} must be the name of a column{alternative}, not {shown_argument}.")
    return problems


def _parse_formats(topic: str | None, mapping: ColumnMapping, arguments: Mapping[str, object]) -> _ParsedFormats:
    """Parse the format and schema registry arguments of a send_table() call."""
    options = {TABLE_ARGUMENTS[name].name: value for name, value in arguments.items() if name in TABLE_ARGUMENTS}
    name_problems = [_describe_unknown_argument(name) for name in arguments if name not in TABLE_ARGUMENTS]
    for part, option_names in OPTION_NAMES.items():
        # By default, a key format encodes the column `key`, and a value format encodes all other columns.
        default_columns = "key" if part == "key" else None
        columns = getattr(mapping, part) or default_columns
        if option_names.format in options and columns is not None:
            column_names = [columns] if isinstance(columns, str) else list(columns)
            # The names are quoted as in Spark SQL, so that a name may contain a comma.
            options[option_names.columns] = ", ".join(f"`{name.replace('`', '``')}`" for name in column_names)
    parsed_options = parse_option_values(_OPTIONS, options, other_names=(), component="producer")
    formats = parse_format_options(parsed_options)
    registry = parse_registry_options(parsed_options, formats, topic, _ARGUMENT_SPELLING)
    return _ParsedFormats(
        formats=list(formats),
        registry=registry,
        problems=[*name_problems, *parsed_options.problems.render(_ARGUMENT_SPELLING)],
    )


def _describe_unknown_argument(name: str) -> str:
    """Return the message for an unknown argument, with a suggestion.

    If the argument has the name of a Spark option, the message suggests the corresponding argument.
    """
    argument = _ARGUMENTS_BY_LOWER_CASE_OPTION.get(name.lower())
    if argument is None and _to_argument_name(name) in TABLE_ARGUMENTS:
        argument = _to_argument_name(name)
    serializer_suggestion = suggest_for_serializers(name.replace("_", "."))
    if argument is not None:
        suggestion = f"Did you mean '{argument}'?"
    elif serializer_suggestion is not None:
        suggestion = _ARGUMENT_SPELLING.format_text(serializer_suggestion)
    else:
        suggestion = describe_missing_column(name, _list_arguments(), "arguments")
    return f"send_table() has no argument '{sanitize(name)}'. {suggestion}"


def _list_arguments() -> list[str]:
    """Return the names of all arguments of send_table()."""
    return [*FIELD_NAMES, "max_failed_rows", "progress", *TABLE_ARGUMENTS]


def _find_column_positions(
    topic: str | None, schema: pa.Schema, mapping: ColumnMapping, encoded_fields: set[str]
) -> tuple[dict[str, int], list[str]]:
    """Return the position of each record field's column, and a message for each problem found.

    A record field has no position if a format encodes it, if an argument sets it for all rows, or if it is optional and
    has no column.

    `encoded_fields`: the record fields that a format encodes.
    """
    column_names = schema.names
    positions: dict[str, int] = {}
    problems: list[str] = []
    for field_name in FIELD_NAMES:
        argument = None if field_name == "topic" else getattr(mapping, field_name)
        is_fixed = isinstance(argument, int) or (field_name == "topic" and topic is not None)
        if is_fixed or field_name in encoded_fields:
            continue
        if argument is not None and not isinstance(argument, str):
            problems.append(
                f"{field_name}={list(argument)!r} names several columns, and only a format can combine them. Add "
                f'{field_name}_format="json" or another format.'
            )
            continue
        column_name = field_name if argument is None else argument
        if column_names.count(column_name) == 1:
            positions[field_name] = column_names.index(column_name)
        elif column_name in column_names:
            problems.append(
                f"{field_name}: there are {column_names.count(column_name)} columns named '{sanitize(column_name)}'. "
                "Rename or drop all but one of them."
            )
        elif argument is not None or field_name in _REQUIRED_FIELDS:
            problems.append(_explain_missing_column(field_name, argument, column_names))
    return positions, problems


def _explain_missing_column(field_name: str, argument: str | None, column_names: Sequence[str]) -> str:
    """Return the message for a record field whose column does not exist.

    `argument`: the column name that the caller passed; None if the column should have the field's name.
    """
    if argument is None and field_name == "topic":
        return (
            "topic: the argument is None and there is no column 'topic'. Pass a topic, or add a column 'topic' with "
            "the topic of each row."
        )
    column_name = field_name if argument is None else argument
    message = (
        f"{field_name}: there is no column '{sanitize(column_name)}'. "
        f"{describe_missing_column(column_name, column_names)}"
    )
    if argument is None and field_name == "value":
        message += (
            ' Name the column with value="...", or encode the other columns into the value with value_format="json".'
        )
    return message


def _with_default_columns(
    format_options: FormatOptions, schema: pa.Schema, positions: Mapping[str, int]
) -> FormatOptions:
    """Return the options of a format. If they name no columns, add the columns that it encodes by default.

    By default, the value consists of all columns, with three exceptions: pandas' index, the columns that other record
    fields are read from (`positions`), and columns that have the name of another record field.
    """
    if format_options.columns:
        return format_options
    names_used_elsewhere = {schema.names[position] for position in positions.values()}
    other_field_names = set(FIELD_NAMES) - {"value"}  # a column named `value` is part of the value
    excluded_names = names_used_elsewhere | other_field_names
    encoded_names = [
        name for name in schema.names if name not in excluded_names and not _PANDAS_INDEX_PATTERN.fullmatch(name)
    ]
    return replace(format_options, columns=tuple(encoded_names))


def _find_target_types(
    schema: pa.Schema, positions: Mapping[str, int], encoders: Mapping[str, ColumnsEncoder | None]
) -> dict[int, pa.DataType]:
    """Return the target type of each column that must be converted, by column position.

    These are the columns whose types RecordColumns or the encoders would not accept.
    """
    converted_positions = {positions[field_name] for field_name in ("headers", "topic") if field_name in positions}
    # Keys and values are converted only if they are dictionaries. RecordColumns accepts or rejects all other types.
    converted_positions |= {
        positions[part] for part in RECORD_PARTS if part in positions and _is_dictionary(schema, positions[part])
    }
    for encoder in encoders.values():
        if encoder is not None:
            converted_positions.update(encoder.source_positions)
    spark_types = {position: to_spark_type(schema.field(position).type) for position in sorted(converted_positions)}
    return {
        position: spark_type
        for position, spark_type in spark_types.items()
        if spark_type != schema.field(position).type
    }


def _is_dictionary(schema: pa.Schema, position: int) -> bool:
    return bool(pa.types.is_dictionary(schema.field(position).type))


def _find_type_problems(
    schema: pa.Schema, field_positions: Mapping[str, int], target_types: Mapping[int, pa.DataType]
) -> list[str]:
    """Return a message for each column whose type cannot be used.

    `field_positions`: the positions of the columns that are read as record fields, keyed by the name of the field.
    `target_types`: the types of converted columns, by column position.
    """
    problems: list[str] = []
    # Try the conversion with an empty column. Convert one column at a time, so that each message can name its column.
    for position, arrow_field in enumerate(schema):
        record_fields = [name for name, field_position in field_positions.items() if field_position == position]
        if not record_fields and position not in target_types:
            continue
        try:
            empty_column = pa.nulls(0, arrow_field.type)
            column = convert_column(empty_column, target_types.get(position, arrow_field.type), arrow_field.name)
            converted_columns = dict.fromkeys(record_fields, column)
            if "timestamp" in record_fields:  # record timestamps are converted separately (see _build_conversion)
                timestamp_type = _to_timestamp_type(arrow_field.type)
                converted_columns["timestamp"] = convert_column(empty_column, timestamp_type, arrow_field.name)
        except SchemaError as error:
            problems.append(f"{error}.")
            continue
        for record_field, converted_column in converted_columns.items():
            problem = _find_column_problem(record_field, arrow_field, converted_column)
            if problem is not None:
                problems.append(problem)
    return problems


def _find_column_problem(record_field: str, arrow_field: pa.Field, empty_column: pa.Array) -> str | None:
    """Return a message if a column cannot be used for the record field, or None if it can.

    `arrow_field`: the column as the caller passed it, for the message.
    `empty_column`: the column without rows, converted to the type that the record field is read from.
    """
    try:
        # The only purpose of these calls is to raise SchemaError for an unsuitable type.
        if record_field == "value":
            RecordColumns(empty_column)
        elif record_field == "partition":
            parse_requested_partitions(empty_column, row_count=0)
        elif record_field == "topic":
            if not pa.types.is_string(empty_column.type):
                raise SchemaError(f"column topic must be a string column, not {arrow_field.type}")
        else:
            RecordColumns(pa.nulls(0, pa.binary()), **{record_field: empty_column})
    except SchemaError as error:
        message = f"{record_field}={arrow_field.name!r}: {error}."
        if record_field in RECORD_PARTS:
            message += f' Alternatively, encode the column by setting {record_field}_format="json".'
        return message
    return None


def _to_timestamp_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type to which a column of record timestamps is converted.

    The unit stays the same, so that only rows whose timestamp is out of range fail.
    """
    value_type = find_dictionary_value_type(data_type)
    return pa.int64() if pa.types.is_uint64(value_type) else value_type
