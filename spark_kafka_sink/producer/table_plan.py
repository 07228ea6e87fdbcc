"""Which columns of an Arrow table are the fields of a record: the arguments of send_table(), checked at first.

    send_table("orders", table)                                  columns named as in Spark's sink: value, key, ...
    send_table("orders", table, key="id", value="text")          columns of other names
    send_table("orders", table, key="id", value_format="json")   the value is made out of all other columns

Polars, DuckDB and pandas have Arrow types that Spark does not have: text in views or with wide offsets, dictionaries,
unsigned numbers. Formats get them as the type of Spark that holds the same values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.client.option_parsing import read_options
from spark_kafka_sink.column_names import no_such_column
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError, SchemaError
from spark_kafka_sink.formats.chosen_columns import plan_encoders, with_schema_id
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.options import FORMAT_OPTIONS, SIDES, FormatOptions, formats_of
from spark_kafka_sink.formats.registry_options import REGISTRY_OPTIONS, RegistryOptions, registry_of
from spark_kafka_sink.producer.partitioner import named_partitions
from spark_kafka_sink.producer.record import check_topic
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows, by_topic
from spark_kafka_sink.words import cleaned

ROLES = ("value", "key", "headers", "partition", "timestamp", "topic")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_OPTIONS = {option.name: option for option in (*FORMAT_OPTIONS, *REGISTRY_OPTIONS)}


def _argument(option: str) -> str:
    """value_format for valueFormat, schema_registry_url for schema.registry.url."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), option).replace(".", "_")


_ARGUMENTS = {_argument(name): name for name in _OPTIONS if not name.endswith("Columns")}
_AS_ARGUMENTS = {
    **{name: argument for argument, name in _ARGUMENTS.items()},
    "valueColumns": "value",
    "keyColumns": "key",
}
_NAMES_OF_OPTIONS = re.compile("|".join(re.escape(name) for name in sorted(_AS_ARGUMENTS, key=len, reverse=True)))


@dataclass(frozen=True)
class Mapped:
    """What the caller said of the columns. None: the column of that name, if there is one."""

    value: str | Sequence[str] | None = None
    key: str | Sequence[str] | None = None
    headers: str | None = None
    partition: int | str | None = None
    timestamp: str | None = None


@dataclass(frozen=True)
class TablePlan:
    """Where in a batch each field stands, or what makes it. `topic` is the name of one, or a column's position."""

    topic: str | int
    value: int | ColumnsEncoder
    key: int | ColumnsEncoder | None
    headers: int | None
    partition: int | None
    timestamp: int | None
    fixed_partition: int | None
    types: Mapping[int, pa.DataType]
    """What columns are turned into first, by their positions."""

    def rows(self, batch: pa.RecordBatch) -> Iterator[TopicRows]:
        """The rows of a batch, topic by topic."""
        batch = self._in_known_types(batch)
        columns = RecordColumns(
            _bytes(batch, self.value),
            None if self.key is None else _bytes(batch, self.key),
            _column(batch, self.headers),
            _column(batch, self.timestamp),
        )
        partition = _column(batch, self.partition)
        if isinstance(self.topic, str):
            yield TopicRows(self.topic, columns, partition)
        elif batch.num_rows:
            yield from by_topic(batch.column(self.topic), columns, partition)

    def _in_known_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.types:
            return batch
        columns = list(batch.columns)
        for position, kind in self.types.items():
            columns[position] = _cast(columns[position], kind, batch.schema.field(position).name)
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class ArrowColumns:
    """The columns of an Arrow schema, or the fields of a struct, as formats look at them."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields

    @property
    def names(self) -> Sequence[str]:
        return [field.name for field in self._fields]

    def field(self, position: int) -> pa.Field:
        field = self._fields[position]
        return pa.field(field.name, known_type(field.type), field.nullable)

    def fields_of(self, position: int) -> ArrowColumns | None:
        kind = self._fields[position].type
        return ArrowColumns([kind.field(i) for i in range(kind.num_fields)]) if pa.types.is_struct(kind) else None


def plan_table(topic: str | None, schema: pa.Schema, mapped: Mapped, formats: Mapping[str, object]) -> TablePlan:
    """ConfigurationError with all faults of the arguments and the columns. A schema registry is asked at the end."""
    if topic is not None:
        check_topic(topic)
    sides, registry, of_formats = _formats(topic, mapped, formats)
    encoded = {side for side in SIDES if f"{side}_format" in formats}
    places, of_places = _places(topic, schema, mapped, encoded)
    _raise_if_any(of_formats + of_places)
    sides = [_with_columns(side, schema, places) for side in sides]
    encoders, of_columns = plan_encoders(sides, ArrowColumns(list(schema)))
    _raise_if_any(of_columns)
    types = _types(schema, places, encoders)
    _raise_if_any(_faults_of_types(schema, places, types, mapped.partition))
    made: dict[str, Any] = dict(encoders)
    for side in sides:
        if side.has_registry and registry is not None:
            made[side.side] = with_schema_id(made[side.side], side, registry, topic)
    return TablePlan(
        topic=places["topic"] if topic is None else topic,
        value=made["value"] if "value" in made else places["value"],
        key=made.get("key", places.get("key")),
        headers=places.get("headers"),
        partition=places.get("partition"),
        timestamp=places.get("timestamp"),
        fixed_partition=mapped.partition if isinstance(mapped.partition, int) else None,
        types=types,
    )


def _raise_if_any(faults: Sequence[str]) -> None:
    """The faults with the names of arguments in place of those of Spark's options."""
    if faults:
        raise ConfigurationError(
            [
                _NAMES_OF_OPTIONS.sub(lambda match: _AS_ARGUMENTS[match[0]], fault).replace("Option '", "Argument '")
                for fault in faults
            ]
        )


def _formats(
    topic: str | None, mapped: Mapped, given: Mapping[str, object]
) -> tuple[list[FormatOptions], RegistryOptions | None, list[str]]:
    options = {_ARGUMENTS[name]: value for name, value in given.items() if name in _ARGUMENTS}
    of_names = [
        f"send_table() has no argument '{cleaned(name)}'. {no_such_column(name, _all_arguments(), 'arguments')}"
        for name in given
        if name not in _ARGUMENTS
    ]
    for side in SIDES:
        names = getattr(mapped, side) or ("key" if side == "key" else None)
        if f"{side}Format" in options and names is not None:
            listed = [names] if isinstance(names, str) else list(names)
            options[f"{side}Columns"] = ", ".join(f"`{name.replace('`', '``')}`" for name in listed)
    reading = read_options(_OPTIONS, options, (), "producer")
    sides, of_sides = formats_of(reading)
    registry, of_registry = registry_of(reading, sides, topic)
    return list(sides), registry, [*of_names, *reading.faults, *of_sides, *of_registry]


def _all_arguments() -> list[str]:
    return [*ROLES, "failed_rows_max", "progress", *_ARGUMENTS]


def _places(
    topic: str | None, schema: pa.Schema, mapped: Mapped, encoded: set[str]
) -> tuple[dict[str, int], list[str]]:
    """The position of the column of each field that has one, and what is wrong with the columns named."""
    names = schema.names
    places: dict[str, int] = {}
    faults: list[str] = []
    for role in ROLES:
        asked = None if role == "topic" else getattr(mapped, role)
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
                f"{role}: the column '{cleaned(name)}' is there {names.count(name)} times; rename or drop one."
            )
        elif name in names:
            places[role] = names.index(name)
        elif asked is not None:
            faults.append(f"{role}: there is no column '{cleaned(name)}'. {no_such_column(name, names)}")
        elif role == "value":
            faults.append(
                f"value: there is no column 'value'. {no_such_column(name, names)} Say which one it is, value=\"...\", "
                'or let a format make it out of the others: value_format="json".'
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
    """The columns that are not yet as formats, and the checks of records, know them."""
    used = {places[role] for role in ("headers", "topic", "timestamp") if role in places}
    for encoder in encoders.values():
        if encoder is not None:
            used.update(encoder.positions if encoder.parent is None else [encoder.parent])
    known = {position: known_type(schema.field(position).type) for position in sorted(used)}
    if "timestamp" in places and pa.types.is_integer(schema.field(places["timestamp"]).type):
        del known[places["timestamp"]]
    return {position: kind for position, kind in known.items() if kind != schema.field(position).type}


def _faults_of_types(
    schema: pa.Schema, places: Mapping[str, int], types: Mapping[int, pa.DataType], partition: Any
) -> list[str]:
    """Each column by itself, without rows, so that the fault names the argument."""
    faults: list[str] = []
    for position, field in enumerate(schema):
        roles = [role for role, place in places.items() if place == position]
        if not roles and position not in types:
            continue
        try:
            column = _cast(pa.nulls(0, field.type), types.get(position, field.type), field.name)
        except SchemaError as error:
            faults.append(f"{error}.")
            continue
        faults += [fault for role in roles if (fault := _role_fault(role, field, column))]
    if isinstance(partition, bool) or not (partition is None or isinstance(partition, int | str)):
        faults.append(f"partition must be a number or the name of a column, not {type(partition).__name__}.")
    return faults


def _role_fault(role: str, field: pa.Field, column: pa.Array) -> str | None:
    try:
        if role == "value":
            RecordColumns(column)
        elif role == "partition":
            named_partitions(column, 0)
        elif role != "topic":
            RecordColumns(pa.nulls(0, pa.binary()), **{role: column})
        elif not pa.types.is_string(column.type):
            raise SchemaError(f"column topic must be a string column, not {field.type}")
    except SchemaError as error:
        remedy = f'. Or let a format write it: {role}_format="json"' if role in SIDES else ""
        return f"{role}={field.name!r}: {error}{remedy}."
    return None


# --- Arrow types of others

_SIMPLE: tuple[tuple[Any, pa.DataType], ...] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_time, pa.time64("ns")),
)


def known_type(kind: pa.DataType) -> pa.DataType:
    """The type of Spark's that holds the same values; a type that has none stays, and formats refuse it."""
    types = pa.types
    simple = next((known for is_kind, known in _SIMPLE if is_kind(kind) and not types.is_decimal(kind)), None)
    if simple is not None:
        return simple
    if types.is_dictionary(kind):
        return known_type(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_known_field(kind.value_field))
    if types.is_map(kind):
        return pa.map_(known_type(kind.key_type), _known_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_known_field(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def _known_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, known_type(field.type), field.nullable)


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Times below a microsecond are cut off. A value that does not fit is an error."""
    if column.type == kind:
        return column
    try:
        if pa.types.is_dictionary(column.type):
            return pc.take(column.dictionary.cast(kind), column.indices)
        return column.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    except pa.ArrowNotImplementedError:
        raise SchemaError(f"column {cleaned(name)} of type {column.type} cannot be written; cast it") from None
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"column {cleaned(name)} of type {column.type}: {cleaned(str(error))}") from None


def _bytes(batch: pa.RecordBatch, source: int | ColumnsEncoder) -> ArrowColumn:
    return batch.column(source) if isinstance(source, int) else source.encode(batch)


def _column(batch: pa.RecordBatch, position: int | None) -> pa.Array | None:
    return None if position is None else batch.column(position)
