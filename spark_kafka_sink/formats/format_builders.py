"""Row formats and their schemas, built on the driver from the name of the format.

Each builder checks that the format can encode the columns. For a format with schemas, it uses the user's schema or
derives one from the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro import AvroFormat, build_record_writer
from spark_kafka_sink.formats.avro_schema import derive_avro_schema, parse_full_record_name
from spark_kafka_sink.formats.encoder import ColumnsEncoder, RowFormat
from spark_kafka_sink.formats.json_schema import check_names_and_parse_title, derive_json_schema
from spark_kafka_sink.formats.json_text import JsonFormat, check_json_type
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_descriptor import parse_descriptor
from spark_kafka_sink.formats.protobuf_schema import derive_message
from spark_kafka_sink.formats.schema_registry import RegisteredSchema, Schema

MAGIC_BYTE = b"\0"
"""First byte of the prefix of a value or key. The schema id follows, and for Protobuf the message indexes."""
GUID_MAGIC_BYTE = b"\1"
"""First byte of a record header with the schema's GUID. The 16 bytes of the GUID follow."""

_MAX_COLUMN_NESTING = 100
"""Maximum depth of lists, maps and structs in a column. The formats recurse, with up to five frames per level."""


class SchemaSpec(NamedTuple):
    """A schema from the user or from a registry. If it is derived from the columns, only its name is given here."""

    text: str | None = None
    """The schema as JSON, or as a Protobuf descriptor in base64. None if the schema is derived from the columns."""
    name: str | None = None
    """Full name of the record or message. If None, a default name is used, or the first message of a descriptor."""


NO_SCHEMA = SchemaSpec()


class FormatAndSchema(NamedTuple):
    """A row format and the schema of its rows."""

    row_format: RowFormat
    schema: Schema | None = None
    """The schema of the rows, or None if the format has no schemas."""
    message_indexes: bytes = b""
    """A message's position in its Protobuf file, in Confluent's encoding; empty for other formats."""

    def build_row_prefix(self, schema_id: int) -> bytes:
        """Return the prefix of each row that carries the schema id, in Confluent's wire format."""
        return MAGIC_BYTE + schema_id.to_bytes(4, "big") + self.message_indexes

    def build_guid_header_value(self, guid: UUID) -> bytes:
        """Return the value of the record header that carries the schema's GUID, in Confluent's wire format."""
        return GUID_MAGIC_BYTE + guid.bytes + self.message_indexes


def build_format(format_name: str, fields: Sequence[pa.Field], schema: SchemaSpec) -> FormatAndSchema:
    """Build the format with this name. Raise SchemaError if it cannot encode the columns.

    `fields`: names and types of the encoded columns.
    """
    for field in fields:
        _check_nesting(field)
    format_and_schema = _BUILDERS[format_name](fields, schema)
    # Encode an empty batch, because Arrow rejects unsupported types (ArrowNotImplementedError) even without rows.
    empty_columns = [pa.nulls(0, field.type) for field in fields]
    empty_batch = pa.RecordBatch.from_arrays(empty_columns, [field.name for field in fields])
    encoder = ColumnsEncoder(format_and_schema.row_format, tuple(fields), positions=tuple(range(len(fields))))
    encoder.encode(empty_batch)
    return format_and_schema


def _check_nesting(field: pa.Field) -> None:
    """Raise SchemaError if lists, maps and structs are nested too deeply in a column."""
    # Descend one level of nesting per step, without recursion.
    types_at_depth = [field.type]
    for _ in range(_MAX_COLUMN_NESTING + 1):
        types_at_depth = [inner_type for data_type in types_at_depth for inner_type in _list_inner_types(data_type)]
        if not types_at_depth:
            return
    raise SchemaError(f"column {field.name} is nested more than {_MAX_COLUMN_NESTING} levels deep; flatten it")


def _list_inner_types(data_type: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def build_format_from_registry(
    format_name: str, fields: Sequence[pa.Field], registered_schema: RegisteredSchema, schema_name: str | None
) -> FormatAndSchema:
    """Build the format with this name for a schema from the registry. Raise SchemaError if the schema does not fit.

    `schema_name`: the full name of the message in a Protobuf schema; None for the first message.
    """
    expected_type = _SCHEMA_TYPES[format_name]
    if registered_schema.schema_type != expected_type:
        raise SchemaError(
            f"the schema with id {registered_schema.id} in the registry has type {registered_schema.schema_type}, not "
            f"{expected_type}"
        )
    return build_format(format_name, fields, SchemaSpec(registered_schema.text, schema_name))


def _build_json(fields: Sequence[pa.Field], _schema: SchemaSpec) -> FormatAndSchema:
    for field in fields:
        check_json_type(field.type, field.name)
    return FormatAndSchema(JsonFormat())


def _build_avro(fields: Sequence[pa.Field], schema: SchemaSpec) -> FormatAndSchema:
    return _build_avro_format(fields, schema.text or derive_avro_schema(fields, schema.name, null_first=False))


def _build_confluent_avro(fields: Sequence[pa.Field], schema: SchemaSpec) -> FormatAndSchema:
    return _build_avro_format(fields, schema.text or derive_avro_schema(fields, schema.name, null_first=True))


def _build_avro_format(fields: Sequence[pa.Field], schema_json: str) -> FormatAndSchema:
    # Build the writer only for its check that the columns fit the schema. The tasks build it again.
    build_record_writer(schema_json, tuple(field.name for field in fields), tuple(field.type for field in fields))
    return FormatAndSchema(
        AvroFormat(schema_json), Schema("AVRO", text=schema_json, name=parse_full_record_name(schema_json))
    )


def _build_protobuf(fields: Sequence[pa.Field], schema: SchemaSpec) -> FormatAndSchema:
    if schema.text is None:
        derived_message = derive_message(fields, schema.name)
        registry_schema = Schema("PROTOBUF", text=derived_message.text, name=derived_message.name)
        # The derived message is the first one in its file. This position is encoded as a single 0.
        return FormatAndSchema(ProtobufFormat(derived_message.fields), registry_schema, message_indexes=b"\0")
    message = parse_descriptor(schema.text, schema.name, fields)
    registry_schema = Schema("PROTOBUF", text=message.encoded_descriptor, name=message.name)
    return FormatAndSchema(ProtobufFormat(message.fields), registry_schema, message.message_indexes)


def _build_json_schema(fields: Sequence[pa.Field], schema: SchemaSpec) -> FormatAndSchema:
    format_and_schema = _build_json(fields, schema)
    schema_json = schema.text or derive_json_schema(fields, schema.name)
    # Columns of type null have no property in the schema, because null fields are omitted.
    property_names = [field.name for field in fields if not pa.types.is_null(field.type)]
    title = check_names_and_parse_title(schema_json, property_names)
    return FormatAndSchema(format_and_schema.row_format, Schema("JSON", text=schema_json, name=title))


_BUILDERS: dict[str, Callable[[Sequence[pa.Field], SchemaSpec], FormatAndSchema]] = {
    "json": _build_json,
    "avro": _build_avro,
    "avro-confluent": _build_confluent_avro,
    "protobuf-confluent": _build_protobuf,
    "json-schema-confluent": _build_json_schema,
}
FORMATS = tuple(_BUILDERS)
"""Names of all formats, as users type them."""
SCHEMA_FORMATS = tuple(name for name in FORMATS if name != "json")
"""Formats whose rows follow a schema."""
_SCHEMA_TYPES = {"avro-confluent": "AVRO", "protobuf-confluent": "PROTOBUF", "json-schema-confluent": "JSON"}
"""The `schemaType` in the schema registry, by format name."""
REGISTRY_FORMATS = tuple(_SCHEMA_TYPES)
"""Formats whose schemas are in a schema registry."""
DESCRIPTOR_FORMATS = ("protobuf-confluent",)
"""Formats whose schemas are binary descriptors, written as base64 text."""
