"""From the name of a format and the columns to the RowFormat that writes them, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from spark_kafka_sink.formats.avro import AvroFormat, record_writer
from spark_kafka_sink.formats.avro_schema import derived_schema
from spark_kafka_sink.formats.encoder import RowFormat
from spark_kafka_sink.formats.json_text import JsonFormat, check_json_type

Planner = Callable[[Sequence[pa.Field], "str | None", "str | None"], RowFormat]


def plan_format(format_name: str, fields: Sequence[pa.Field], schema: str | None, name: str | None) -> RowFormat:
    """Raise SchemaError if these columns cannot be written so.

    `schema` is the user's; without one it is made from the types of the columns, and its record is called `name`.
    """
    return _PLANNERS[format_name](fields, schema, name)


def _json(fields: Sequence[pa.Field], _schema: str | None, _name: str | None) -> RowFormat:
    for field in fields:
        check_json_type(field.type, field.name)
    return JsonFormat()


def _avro(fields: Sequence[pa.Field], schema: str | None, name: str | None) -> RowFormat:
    chosen = schema or derived_schema(fields, name, null_first=False)
    record_writer(chosen, tuple(field.name for field in fields), tuple(field.type for field in fields))
    return AvroFormat(chosen)


_PLANNERS: dict[str, Planner] = {"json": _json, "avro": _avro}
FORMATS = tuple(_PLANNERS)
WITH_SCHEMA = ("avro",)
"""Formats whose rows follow a schema."""
