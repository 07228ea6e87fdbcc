"""From the name of a format and the columns to what writes them, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro import AvroFormat, record_writer
from spark_kafka_sink.formats.avro_schema import derive_schema, record_name
from spark_kafka_sink.formats.encoder import ColumnsEncoder, RowFormat
from spark_kafka_sink.formats.json_schema import check_json_schema, derive_json_schema
from spark_kafka_sink.formats.json_text import JsonFormat, check_json_type
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_descriptor import parse_descriptor
from spark_kafka_sink.formats.protobuf_schema import derive_message
from spark_kafka_sink.formats.schema_registry import RegisteredSchema, Schema

MAGIC = b"\0"
"""What every record begins with whose schema is in a registry; the id of the schema follows."""


class SchemaOptions(NamedTuple):
    """The user's schema, if there is one, and the name for the record of one that is made."""

    text: str | None = None
    name: str | None = None


NO_SCHEMA = SchemaOptions()


class SchemaFormat(NamedTuple):
    """What writes the rows, and for a registry the schema, with the bytes that stand between its id and the row."""

    row_format: RowFormat
    schema: Schema | None = None
    after_id: bytes = b""

    def header(self, schema_id: int) -> bytes:
        return MAGIC + schema_id.to_bytes(4, "big") + self.after_id


def build_format(name: str, fields: Sequence[pa.Field], choice: SchemaOptions) -> SchemaFormat:
    """Raise SchemaError if these columns cannot be written so."""
    schema_format = _BUILDERS[name](fields, choice)
    # Arrow raises ArrowNotImplementedError by the type alone, so a batch without rows is enough to find it here.
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in fields], [field.name for field in fields])
    ColumnsEncoder(schema_format.row_format, tuple(fields), tuple(range(len(fields)))).encode(empty)
    return schema_format


def build_latest_format(
    name: str, fields: Sequence[pa.Field], found: RegisteredSchema, schema_name: str | None
) -> SchemaFormat:
    """By a schema that a registry gave."""
    wanted = _KINDS[name]
    if found.kind != wanted:
        raise SchemaError(f"the registry's schema with the id {found.id} is of type {found.kind}, not {wanted}")
    return build_format(name, fields, SchemaOptions(found.text, schema_name))


def _json(fields: Sequence[pa.Field], _choice: SchemaOptions) -> SchemaFormat:
    for field in fields:
        check_json_type(field.type, field.name)
    return SchemaFormat(JsonFormat())


def _avro(fields: Sequence[pa.Field], choice: SchemaOptions) -> SchemaFormat:
    return _avro_format(fields, choice.text or derive_schema(fields, choice.name, null_first=False))


def _registered_avro(fields: Sequence[pa.Field], choice: SchemaOptions) -> SchemaFormat:
    return _avro_format(fields, choice.text or derive_schema(fields, choice.name, null_first=True))


def _avro_format(fields: Sequence[pa.Field], text: str) -> SchemaFormat:
    record_writer(text, tuple(field.name for field in fields), tuple(field.type for field in fields))
    return SchemaFormat(AvroFormat(text), Schema("AVRO", text, record_name(text)))


def _protobuf(fields: Sequence[pa.Field], choice: SchemaOptions) -> SchemaFormat:
    if choice.text is None:
        made = derive_message(fields, choice.name)
        return SchemaFormat(ProtobufFormat(made.fields), Schema("PROTOBUF", made.text, made.name), b"\0")
    found = parse_descriptor(choice.text, choice.name, fields)
    return SchemaFormat(ProtobufFormat(found.fields), Schema("PROTOBUF", found.text, found.name), found.indexes)


def _json_schema(fields: Sequence[pa.Field], choice: SchemaOptions) -> SchemaFormat:
    schema_format = _json(fields, choice)
    text = choice.text or derive_json_schema(fields, choice.name)
    written = [field.name for field in fields if not pa.types.is_null(field.type)]  # a null is left out
    title = check_json_schema(text, written)
    return SchemaFormat(schema_format.row_format, Schema("JSON", text, title))


_BUILDERS: dict[str, Callable[[Sequence[pa.Field], SchemaOptions], SchemaFormat]] = {
    "json": _json,
    "avro": _avro,
    "avro-confluent": _registered_avro,
    "protobuf-confluent": _protobuf,
    "json-schema-confluent": _json_schema,
}
FORMATS = tuple(_BUILDERS)
WITH_SCHEMA = tuple(name for name in FORMATS if name != "json")
"""Formats whose rows follow a schema."""
_KINDS = {"avro-confluent": "AVRO", "protobuf-confluent": "PROTOBUF", "json-schema-confluent": "JSON"}
WITH_REGISTRY = tuple(_KINDS)
"""Formats whose schemas are in a registry."""
WITH_DESCRIPTOR = ("protobuf-confluent",)
"""Formats whose schemas are descriptors: bytes, which stand in base64 where text is wanted."""
