"""Row formats by name: the wire format of schema ids, and schemas from a registry that do not fit the format."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.format_builders import FormatAndSchema, build_format_from_registry
from spark_kafka_sink.formats.json_text import JsonFormat
from spark_kafka_sink.formats.schema_registry import RegisteredSchema

INDEXED_FORMAT = FormatAndSchema(JsonFormat(), message_indexes=b"\2\2")


def test_prefix_of_rows_has_magic_byte_schema_id_and_message_indexes() -> None:
    assert INDEXED_FORMAT.build_row_prefix(0x01020304) == b"\0\1\2\3\4\2\2"


def test_header_with_guid_has_magic_byte_guid_and_message_indexes() -> None:
    assert INDEXED_FORMAT.build_guid_header_value(UUID(int=5)) == b"\1" + bytes(15) + b"\5\2\2"


def test_rejects_latest_schema_of_another_type() -> None:
    registered = RegisteredSchema(7, text='{"type": "object"}', schema_type="JSON")
    with pytest.raises(SchemaError, match="the schema with id 7 in the registry has type JSON, not AVRO"):
        build_format_from_registry("avro-confluent", [pa.field("a", pa.int64())], registered, None)
