"""Mapping of the columns of an Arrow table to record fields, from the arguments of send_table().

    send_table("orders", table)                                  columns named as in Spark's sink: value, key, ...
    send_table("orders", table, key="id", value="text")          columns of other names
    send_table("orders", table, key="id", value_format="json")   all other columns are encoded into the value

Arrow types without a Spark equivalent are converted first: `table_types`.
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
from spark_kafka_sink.errors import ConfigurationError, OptionFaults, OptionSpelling, SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.encoder_builders import attach_schema_id, build_encoders
from spark_kafka_sink.formats.options import FORMAT_OPTIONS, SIDES, FormatOptions, parse_format_options
from spark_kafka_sink.formats.registry_options import REGISTRY_OPTIONS, RegistryOptions, parse_registry_options
from spark_kafka_sink.options import build_option_table
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.partitioner import parse_requested_partitions
from spark_kafka_sink.producer.record import check_topic
from spark_kafka_sink.producer.table_types import BatchConversion, convert_column, dictionary_value_type, to_spark_type
from spark_kafka_sink.records.columns import RecordColumns

ROLES = ("value", "key", "headers", "partition", "timestamp", "topic")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_OPTIONS = build_option_table((*FORMAT_OPTIONS, *REGISTRY_OPTIONS))


def _argument(option: str) -> str:
    """Convert an option name to an argument name: valueFormat to value_format."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), option).replace(".", "_")


TABLE_ARGUMENTS = {_argument(name): option for name, option in _OPTIONS.items() if not name.endswith("Columns")}
"""Options of formats and schema registries, by their argument names."""
_AS_ARGUMENTS = {
    **{option.name: argument for argument, option in TABLE_ARGUMENTS.items()},
    "valueColumns": "value",
    "keyColumns": "key",
}
_ARGUMENTS_IN_LOWER_CASE = {option.lower(): argument for option, argument in _AS_ARGUMENTS.items()}
_ARGUMENT_SPELLING = OptionSpelling(lambda option: f"'{_AS_ARGUMENTS.get(option, option)}'", "Argument ")


@dataclass(frozen=True)
class ColumnMapping:
    """The column arguments of send_table(). None: the column with the name of the field, if it exists."""

    value: str | Sequence[str] | None = None
    key: str | Sequence[str] | None = None
    headers: str | None = None
    partition: int | str | None = None
    timestamp: str | None = None


class TablePlan(NamedTuple):
    """How the batches of a table become rows: `conversion` is applied first, and `columns` then names its columns."""

    conversion: BatchConversion
    columns: ColumnPlan


class ArrowColumns:
    """The columns of an Arrow schema, or the fields of a struct, as formats look at them."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields

    @property
    def names(self) -> Sequence[str]:
        return [field.name for field in self._fields]

    def field(self, position: int) -> pa.Field:
        field = self._fields[position]
        return pa.field(field.name, to_spark_type(field.type), field.nullable)

    def struct_fields(self, position: int) -> ArrowColumns | None:
        kind = self._fields[position].type
        return ArrowColumns([kind.field(i) for i in range(kind.num_fields)]) if pa.types.is_struct(kind) else None


def plan_table(
    topic: str | None, schema: pa.Schema, mapping: ColumnMapping, formats: Mapping[str, object]
) -> TablePlan:
    """ConfigurationError with all faults of the arguments and the columns. A schema registry is asked at the end."""
    if topic is not None:
        check_topic(topic)
    formats = {name: value for name, value in formats.items() if value is not None}
    if isinstance(mapping.partition, SupportsIndex) and not isinstance(mapping.partition, bool):
        mapping = replace(mapping, partition=operator.index(mapping.partition))  # numpy's integers are no int
    _raise_if_any(_faults_of_arguments(mapping))
    sides, registry, faults = _formats(topic, mapping, formats)
    encoded = {side for side in SIDES if f"{side}_format" in formats}
    places, of_places = _places(topic, schema, mapping, encoded)
    _raise_if_any(faults + of_places)
    sides = [_with_columns(side, schema, places) for side in sides]
    of_columns = OptionFaults()
    encoders = build_encoders(sides, ArrowColumns(list(schema)), of_columns)
    _raise_if_any(of_columns.render(_ARGUMENT_SPELLING))
    types = _types(schema, places, encoders)
    _raise_if_any(_faults_of_types(schema, places, types))
    made: dict[str, Any] = dict(encoders)
    for side in sides:
        if side.has_registry and registry is not None:
            made[side.side] = attach_schema_id(made[side.side], side, registry, topic)
    conversion = _conversion(schema, types, places.get("timestamp"))
    columns = ColumnPlan(
        value=made["value"] if "value" in made else places["value"],
        key=made.get("key", places.get("key")),
        topic=places.get("topic"),
        partition=places.get("partition"),
        headers=places.get("headers"),
        timestamp=len(conversion.columns) - 1 if "timestamp" in places else None,
        fixed_topic=topic,
        fixed_partition=mapping.partition if isinstance(mapping.partition, int) else None,
    )
    return TablePlan(conversion, columns)


def _conversion(schema: pa.Schema, types: Mapping[int, pa.DataType], timestamp: int | None) -> BatchConversion:
    """Convert columns in place. The timestamps of records are one more column: a format may have another type of it."""
    columns = [(position, types.get(position, field.type)) for position, field in enumerate(schema)]
    if timestamp is not None:
        columns.append((timestamp, _timestamp_type(schema.field(timestamp).type)))
    return BatchConversion(columns)


def _raise_if_any(faults: Sequence[str]) -> None:
    if faults:
        raise ConfigurationError(faults)


def _faults_of_arguments(mapping: ColumnMapping) -> list[str]:
    """Check that each argument names columns. A number or a list that is ignored would lose the field of every row."""
    faults: list[str] = []
    for role in ("value", "key", "headers", "partition", "timestamp"):
        argument = getattr(mapping, role)
        names = list(argument) if role in SIDES and isinstance(argument, list | tuple) else [argument]
        is_number = role == "partition" and isinstance(argument, int) and not isinstance(argument, bool)
        if argument is None or is_number or (names and all(isinstance(name, str) for name in names)):
            continue
        more = {"value": " or a list of names", "key": " or a list of names", "partition": " or a number"}.get(role, "")
        faults.append(f"{role} must be the name of a column{more}, not {sanitize(repr(argument), 100)}.")
    return faults


def _formats(
    topic: str | None, mapping: ColumnMapping, given: Mapping[str, object]
) -> tuple[list[FormatOptions], RegistryOptions | None, list[str]]:
    options = {TABLE_ARGUMENTS[name].name: value for name, value in given.items() if name in TABLE_ARGUMENTS}
    of_names = [_unknown_argument(name) for name in given if name not in TABLE_ARGUMENTS]
    for side in SIDES:
        names = getattr(mapping, side) or ("key" if side == "key" else None)
        if f"{side}Format" in options and names is not None:
            listed = [names] if isinstance(names, str) else list(names)
            options[f"{side}Columns"] = ", ".join(f"`{name.replace('`', '``')}`" for name in listed)
    parsed_options = parse_option_values(_OPTIONS, options, (), "producer")
    sides = parse_format_options(parsed_options)
    registry = parse_registry_options(parsed_options, sides, topic)
    return list(sides), registry, [*of_names, *parsed_options.faults.render(_ARGUMENT_SPELLING)]


def _unknown_argument(name: str) -> str:
    """Return the error for a name as the user typed it, with the argument for an option of Spark's sink."""
    argument = _ARGUMENTS_IN_LOWER_CASE.get(name.lower())
    if argument is None and _argument(name) in TABLE_ARGUMENTS:
        argument = _argument(name)
    if argument is not None:
        suggestion = f"Did you mean '{argument}'?"
    else:
        suggestion = describe_missing_column(name, _all_arguments(), "arguments")
    return f"send_table() has no argument '{sanitize(name)}'. {suggestion}"


def _all_arguments() -> list[str]:
    return [*ROLES, "failed_rows_max", "progress", *TABLE_ARGUMENTS]


def _places(
    topic: str | None, schema: pa.Schema, mapping: ColumnMapping, encoded: set[str]
) -> tuple[dict[str, int], list[str]]:
    """Return the column position of each record field that has a column, and the faults of the named columns."""
    names = schema.names
    places: dict[str, int] = {}
    faults: list[str] = []
    for role in ROLES:
        asked = None if role == "topic" else getattr(mapping, role)
        if role in encoded or (role == "topic" and topic is not None) or isinstance(asked, int):
            continue
        if asked is not None and not isinstance(asked, str):
            faults.append(
                f"{role}={list(asked)!r} names several columns, of which bytes are made by a format: add "
                f'{role}_format="json", or another one.'
            )
            continue
        name = role if asked is None else asked
        if names.count(name) > 1:
            faults.append(
                f"{role}: the column '{sanitize(name)}' is there {names.count(name)} times; rename or drop one."
            )
        elif name in names:
            places[role] = names.index(name)
        elif asked is not None:
            faults.append(f"{role}: there is no column '{sanitize(name)}'. {describe_missing_column(name, names)}")
        elif role == "value":
            faults.append(
                f"value: there is no column 'value'. {describe_missing_column(name, names)} Say which one it is, "
                'value="...", or let a format make it out of the others: value_format="json".'
            )
        elif role == "topic":
            faults.append("topic: it is None, and there is no column 'topic', which would say where each row goes.")
    return places, faults


def _with_columns(side: FormatOptions, schema: pa.Schema, places: Mapping[str, int]) -> FormatOptions:
    """Without names, a value has all columns that are nothing else. pandas brings its index as one more."""
    if side.columns:
        return side
    taken = {schema.names[place] for place in places.values()} | set(ROLES) - {"value"}
    return replace(
        side, columns=tuple(name for name in schema.names if name not in taken and not _PANDAS_INDEX.fullmatch(name))
    )


def _types(
    schema: pa.Schema, places: Mapping[str, int], encoders: Mapping[str, ColumnsEncoder | None]
) -> dict[int, pa.DataType]:
    """Return the columns to cast, with the types that formats and the validation of records expect."""
    used = {places[role] for role in ("headers", "topic") if role in places}
    used |= {places[side] for side in SIDES if side in places and _is_dictionary(schema, places[side])}
    for encoder in encoders.values():
        if encoder is not None:
            used.update(encoder.positions if encoder.parent is None else [encoder.parent])
    known = {position: to_spark_type(schema.field(position).type) for position in sorted(used)}
    return {position: kind for position, kind in known.items() if kind != schema.field(position).type}


def _is_dictionary(schema: pa.Schema, position: int) -> bool:
    return bool(pa.types.is_dictionary(schema.field(position).type))


def _faults_of_types(schema: pa.Schema, places: Mapping[str, int], types: Mapping[int, pa.DataType]) -> list[str]:
    """Each column by itself, without rows, so that the fault names the argument."""
    faults: list[str] = []
    for position, field in enumerate(schema):
        roles = [role for role, place in places.items() if place == position]
        if not roles and position not in types:
            continue
        try:
            empty = pa.nulls(0, field.type)
            column = convert_column(empty, types.get(position, field.type), field.name)
            if "timestamp" in roles:
                timestamp = convert_column(empty, _timestamp_type(field.type), field.name)
        except SchemaError as error:
            faults.append(f"{error}.")
            continue
        faults += [
            fault for role in roles if (fault := _role_fault(role, field, timestamp if role == "timestamp" else column))
        ]
    return faults


def _role_fault(role: str, field: pa.Field, column: pa.Array) -> str | None:
    try:
        if role == "value":
            RecordColumns(column)
        elif role == "partition":
            parse_requested_partitions(column, 0)
        elif role != "topic":
            RecordColumns(pa.nulls(0, pa.binary()), **{role: column})
        elif not pa.types.is_string(column.type):
            raise SchemaError(f"column topic must be a string column, not {field.type}")
    except SchemaError as error:
        remedy = f'. Or let a format write it: {role}_format="json"' if role in SIDES else ""
        return f"{role}={field.name!r}: {error}{remedy}."
    return None


def _timestamp_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of record timestamps from a column: in its own unit, so that only rows out of range fail."""
    kind = dictionary_value_type(kind)
    return pa.int64() if pa.types.is_uint64(kind) else kind
