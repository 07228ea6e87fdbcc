"""Row formats by name: the wire format of schema ids, and schemas from a registry that do not fit the format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.format_builders import (
    FORMATS,
    NO_SCHEMA,
    FormatAndSchema,
    SchemaSpec,
    build_format,
    build_format_from_registry,
)
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


def _nest(levels: int, nest: Callable[[Any], Any], innermost: Any) -> Any:
    for _ in range(levels):
        innermost = nest(innermost)
    return innermost


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    "nest",
    [pa.list_, lambda inner: pa.struct([("x", inner)]), lambda inner: pa.map_(pa.string(), inner)],
    ids=["list", "struct", "map"],
)
def test_rejects_deeply_nested_columns(format_name: str, nest: Callable[[Any], Any]) -> None:
    for levels in (101, 1_000):
        columns = [pa.field("id", pa.int64()), pa.field("a", _nest(levels, nest, pa.int32()))]
        with pytest.raises(SchemaError, match="column a is nested more than 100 levels deep; flatten it"):
            build_format(format_name, columns, NO_SCHEMA)


def test_accepts_columns_of_maximum_depth() -> None:
    list_type = _nest(100, pa.list_, pa.int32())
    for data_type in (list_type, _nest(100, lambda inner: pa.struct([("x", inner)]), pa.int32())):
        assert build_format("json", [pa.field("a", data_type)], NO_SCHEMA)
    array_schema = _nest(100, lambda items: {"type": "array", "items": items}, "int")
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": array_schema}]})
    assert build_format("avro", [pa.field("a", list_type)], SchemaSpec(schema))


_ELEMENT_TYPES = [
    pa.binary(),
    pa.string(),
    pa.list_(pa.binary()),
    pa.list_(pa.string()),
    pa.struct([("b", pa.binary()), ("s", pa.string()), ("d", pa.decimal128(5, 2)), ("t", pa.timestamp("us"))]),
]


def _build_empty_array(data_type: pa.DataType) -> pa.Array:
    """Build an array like an empty child vector of Arrow Java before version 19, whose buffers have no bytes."""
    buffers = [None, *[pa.py_buffer(b"")] * (data_type.num_buffers - 1)]
    children = [_build_empty_array(data_type.field(index).type) for index in range(data_type.num_fields)]
    return pa.Array.from_buffers(data_type, 0, buffers, children=children)


@pytest.mark.parametrize(
    ("format_name", "element_type"),
    [
        (format_name, element_type)
        for format_name in FORMATS
        for element_type in _ELEMENT_TYPES
        if not (format_name == "protobuf-confluent" and pa.types.is_list(element_type))  # Protobuf has no such lists
    ],
    ids=str,
)
@pytest.mark.parametrize("row_count", [0, 2])
def test_encodes_empty_lists_whose_elements_have_buffers_without_bytes(
    format_name: str, element_type: pa.DataType, row_count: int
) -> None:
    """Arrow Java before version 19, as in Spark 3.5 to 4.1, exports no offset for a vector without values."""
    field = pa.field("a", pa.list_(element_type))
    buffers = [None, pa.py_buffer(bytes(4 * (row_count + 1)))]
    column = pa.Array.from_buffers(field.type, row_count, buffers, children=[_build_empty_array(element_type)])
    row_format = build_format(format_name, [field], NO_SCHEMA).row_format
    rows, usual_rows = (
        ColumnsEncoder(row_format, (field,), (0,)).encode(pa.RecordBatch.from_arrays([array], ["a"])).to_pylist()
        for array in (column, pa.array([[]] * row_count, field.type))
    )
    assert rows == usual_rows
    assert len(rows) == row_count
