"""From the name of a format and the columns to what writes them, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro import AvroFormat, record_writer
from spark_kafka_sink.formats.avro_schema import derived_schema, record_name
from spark_kafka_sink.formats.encoder import ColumnsEncoder, RowFormat
from spark_kafka_sink.formats.json_schema import check_json_schema, derived_json_schema
from spark_kafka_sink.formats.json_text import JsonFormat, check_json_type
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_derived import derived_message
from spark_kafka_sink.formats.protobuf_descriptor import described_message
from spark_kafka_sink.formats.schema_registry import Registered, Schema

MAGIC = b"\0"
"""What every record begins with whose schema is in a registry; the id of the schema follows."""


class SchemaChoice(NamedTuple):
    """The user's schema, if there is one, and the name for the record of one that is made."""

    text: str | None = None
    name: str | None = None


NO_SCHEMA = SchemaChoice()


class PlannedFormat(NamedTuple):
    """What writes the rows, and for a registry the schema, with the bytes that stand between its id and the row."""

    rows: RowFormat
    schema: Schema | None = None
    after_id: bytes = b""

    def header(self, schema_id: int) -> bytes:
        return MAGIC + schema_id.to_bytes(4, "big") + self.after_id


def plan_format(name: str, fields: Sequence[pa.Field], choice: SchemaChoice) -> PlannedFormat:
    """Raise SchemaError if these columns cannot be written so."""
    planned = _PLANNERS[name](fields, choice)
    # Arrow raises ArrowNotImplementedError by the type alone, so a batch without rows is enough to find it here.
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in fields], [field.name for field in fields])
    ColumnsEncoder(planned.rows, tuple(fields), tuple(range(len(fields)))).encode(empty)
    return planned


def plan_latest(name: str, fields: Sequence[pa.Field], found: Registered, schema_name: str | None) -> PlannedFormat:
    """By a schema that a registry gave."""
    wanted = _KINDS[name]
    if found.kind != wanted:
        raise SchemaError(f"the registry's schema with the id {found.id} is of type {found.kind}, not {wanted}")
    return plan_format(name, fields, SchemaChoice(found.text, schema_name))


def _json(fields: Sequence[pa.Field], _choice: SchemaChoice) -> PlannedFormat:
    for field in fields:
        check_json_type(field.type, field.name)
    return PlannedFormat(JsonFormat())


def _avro(fields: Sequence[pa.Field], choice: SchemaChoice) -> PlannedFormat:
    return _planned_avro(fields, choice.text or derived_schema(fields, choice.name, null_first=False))


def _registered_avro(fields: Sequence[pa.Field], choice: SchemaChoice) -> PlannedFormat:
    return _planned_avro(fields, choice.text or derived_schema(fields, choice.name, null_first=True))


def _planned_avro(fields: Sequence[pa.Field], text: str) -> PlannedFormat:
    record_writer(text, tuple(field.name for field in fields), tuple(field.type for field in fields))
    return PlannedFormat(AvroFormat(text), Schema("AVRO", text, record_name(text)))


def _protobuf(fields: Sequence[pa.Field], choice: SchemaChoice) -> PlannedFormat:
    if choice.text is None:
        made = derived_message(fields, choice.name)
        return PlannedFormat(ProtobufFormat(made.fields), Schema("PROTOBUF", made.text, made.name), b"\0")
    found = described_message(choice.text, choice.name, fields)
    return PlannedFormat(ProtobufFormat(found.fields), Schema("PROTOBUF", found.text, found.name), found.indexes)


def _json_schema(fields: Sequence[pa.Field], choice: SchemaChoice) -> PlannedFormat:
    planned = _json(fields, choice)
    text = choice.text or derived_json_schema(fields, choice.name)
    written = [field.name for field in fields if not pa.types.is_null(field.type)]  # a null is left out
    title = check_json_schema(text, written)
    return PlannedFormat(planned.rows, Schema("JSON", text, title))


_PLANNERS: dict[str, Callable[[Sequence[pa.Field], SchemaChoice], PlannedFormat]] = {
    "json": _json,
    "avro": _avro,
    "avro-confluent": _registered_avro,
    "protobuf-confluent": _protobuf,
    "json-schema-confluent": _json_schema,
}
FORMATS = tuple(_PLANNERS)
WITH_SCHEMA = tuple(name for name in FORMATS if name != "json")
"""Formats whose rows follow a schema."""
_KINDS = {"avro-confluent": "AVRO", "protobuf-confluent": "PROTOBUF", "json-schema-confluent": "JSON"}
WITH_REGISTRY = tuple(_KINDS)
"""Formats whose schemas are in a registry."""
WITH_DESCRIPTOR = ("protobuf-confluent",)
"""Formats whose schemas are descriptors: bytes, which stand in base64 where text is wanted."""
