"""`valueFormat`, `valueColumns` and their like: from options and a schema to the encoders of value and key.

All of it runs on the driver. The options are read without a schema; an encoder is planned when the schema is known, and
every fault of it is one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.types import StructType

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.planning import FORMATS, WITH_SCHEMA, plan_format
from spark_kafka_sink.spark.arrow_types import arrow_field

SIDES = ("value", "key")
ROLES = ("key", "topic", "partition", "headers", "timestamp")
"""Columns that say where a record goes; they are no part of its value unless `valueColumns` names them."""

_MEANINGS = (
    ("Format", "makes the value out of columns: " + ", ".join(f"`{name}`" for name in FORMATS)),
    ("Columns", "the columns of the value, as `id, name`, or `payload.*` for the fields of a struct"),
    ("Schema", "the schema that the value follows; without one it is made from the types of the columns"),
    ("SchemaFile", "a file on the driver's machine with the schema of the value"),
    ("SchemaName", "how the record is called in a schema that is made for the value"),
)
FORMAT_OPTIONS = tuple(
    (f"{side}{name}", meaning.replace("value", side)) for side in SIDES for name, meaning in _MEANINGS
)
"""Names and meanings, for the table of all options."""

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^,`]+?))\s*(?:,|$)")


@dataclass(frozen=True)
class FormatOptions:
    """One of the two sides of a record, `value` or `key`, and how columns become it. No columns: all but the roles."""

    side: str
    format: str
    columns: tuple[str, ...] = ()
    schema: str | None = None
    schema_name: str | None = None


def encoded_sides(options: Mapping[str, str]) -> dict[str, ColumnsEncoder | None]:
    """Which of value and key are made out of columns, for options that may be faulty: no encoder is planned yet."""
    given = {name.lower() for name in options}
    return {side: None for side in SIDES if {f"{side}format", f"{side}columns"} & given}


def parse_formats(own: Mapping[str, str], faults: list[str]) -> tuple[FormatOptions, ...]:
    """`own` has its names in lower case."""
    parsed = [_parse_format(own, side, faults) for side in SIDES]
    return tuple(options for options in parsed if options is not None)


def plan_encoders(
    formats: Sequence[FormatOptions], schema: StructType, faults: list[str]
) -> dict[str, ColumnsEncoder | None]:
    """An encoder for each side that has a format; None, and a fault more, where the schema does not allow it."""
    return {options.side: _plan_encoder(options, schema, faults) for options in formats}


def _parse_format(own: Mapping[str, str], side: str, faults: list[str]) -> FormatOptions | None:
    """The options of one side, or None if its column is written as it is."""
    given = own.get(f"{side}format", own.get("valueformat") if f"{side}columns" in own else None)
    if given is None:
        if f"{side}columns" in own:
            faults.append(
                f"Option '{side}Columns' has no effect without '{side}Format'; set it to one of {_formats()}."
            )
        return None
    name = given.strip().lower()
    if name not in FORMATS:
        faults.append(f"Option '{side}Format' must be one of {_formats()}, not {given!r}.")
        return None
    columns = _names(own.get(f"{side}columns", ""), side, faults)
    if side == "key" and "keycolumns" not in own:
        faults.append("Option 'keyFormat' needs 'keyColumns': the columns that are the key.")
    return FormatOptions(side, name, columns, *_schema_options(own, side, name, faults))


def _schema_options(own: Mapping[str, str], side: str, name: str, faults: list[str]) -> tuple[str | None, str | None]:
    """The text of the schema, and the name of its record."""
    given = [option for option in ("Schema", "SchemaFile", "SchemaName") if own.get(f"{side}{option}".lower())]
    if given and name not in WITH_SCHEMA:
        faults.append(f"Option '{side}{given[0]}' has no effect, as the format '{name}' follows no schema.")
    text, path = own.get(f"{side}schema"), own.get(f"{side}schemafile")
    if text and path:
        faults.append(f"Options '{side}Schema' and '{side}SchemaFile' exclude each other.")
    elif path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            faults.append(f"Option '{side}SchemaFile': {path} cannot be read on the driver: {error}.")
    return text or None, own.get(f"{side}schemaname") or None


def _plan_encoder(options: FormatOptions, schema: StructType, faults: list[str]) -> ColumnsEncoder | None:
    known = len(faults)
    parent = _parent(options, schema, faults)
    fields = schema.fields if parent is None else _struct(schema, parent).fields
    chosen = _chosen(options, schema, faults) if parent is None else list(range(len(fields)))
    if len(faults) > known:
        return None
    try:
        columns = tuple(arrow_field(fields[position], fields[position].name) for position in chosen)
        row_format = plan_format(options.format, columns, options.schema, options.schema_name)
    except SchemaError as error:
        faults.append(f"{options.side}Format {options.format}: {error}.")
        return None
    return ColumnsEncoder(row_format, columns, tuple(chosen), parent)


def _formats() -> str:
    return ", ".join(f"'{name}'" for name in FORMATS)


def _names(text: str, side: str, faults: list[str]) -> tuple[str, ...]:
    """Names between commas; a name with a comma or a blank at its end stands in backticks, as in Spark."""
    names = []
    at = 0
    while at < len(text.rstrip()):
        match = _NAME.match(text, at)
        if match is None:
            faults.append(f"Option '{side}Columns': {text!r} is no list of columns such as 'id, name' or 'payload.*'.")
            return ()
        names.append(match[1].replace("``", "`") if match[1] else match[2])
        at = match.end()
    return tuple(names)


def _parent(options: FormatOptions, schema: StructType, faults: list[str]) -> int | None:
    """The position of the struct whose fields are meant, for `payload.*`."""
    if len(options.columns) != 1 or not options.columns[0].endswith(".*"):
        return None
    name, names = options.columns[0].removesuffix(".*"), schema.fieldNames()
    if names.count(name) == 1 and isinstance(schema[name].dataType, StructType):
        return names.index(name)
    faults.append(f"Option '{options.side}Columns': there is no struct column '{name}'.{_near(name, names)}")
    return None


def _struct(schema: StructType, position: int) -> StructType:
    kind = schema.fields[position].dataType
    assert isinstance(kind, StructType)
    return kind


def _chosen(options: FormatOptions, schema: StructType, faults: list[str]) -> list[int]:
    """The positions of the columns that are meant."""
    names = schema.fieldNames()
    columns: Sequence[str] = options.columns or [name for name in names if name not in ROLES]
    if not columns:
        faults.append(
            f"Option '{options.side}Format': the columns {', '.join(ROLES)} are not written into the value by "
            f"themselves, and there is no other. Name those that are meant in '{options.side}Columns'."
        )
    for name in dict.fromkeys(columns):
        if name not in names:
            faults.append(f"Option '{options.side}Columns': there is no column '{name}'.{_near(name, names)}")
        elif names.count(name) > 1 or columns.count(name) > 1:
            faults.append(f"Option '{options.side}Columns': the column '{name}' is there more than once.")
    return [names.index(name) for name in columns if name in names]


def _near(name: str, names: Sequence[str]) -> str:
    found = next((other for other in names if other.lower() == name.lower()), None)
    return f" There is '{found}', but the names of columns are case-sensitive." if found else ""
