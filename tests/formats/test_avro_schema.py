"""Avro schemas: derived from columns, and checked and resolved when a user gives one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro_schema import NamedTypes, derive_avro_schema, parse_full_record_name
from tests.formats.avro_reference import (
    encode,
    encode_with_fastavro,
    field_schema,
    fixed_decimal_schema,
    record_schema,
)


def test_resolves_references_to_named_types() -> None:
    point = {"type": "record", "name": "Point", "namespace": "geo", "fields": [field_schema("x", "int")]}
    schema = record_schema(
        field_schema("a", point),
        field_schema("b", ["null", "geo.Point"]),
        field_schema("c", {"type": "array", "items": "geo.Point"}),
    )
    data_type = pa.struct([("x", pa.int32())])
    batch = pa.record_batch(
        {
            "a": pa.array([{"x": 1}], data_type),
            "b": pa.array([{"x": 2}], data_type),
            "c": pa.array([[{"x": 3}]], pa.list_(data_type)),
        }
    )
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)
    schema_with_namespace = record_schema(
        field_schema("a", {"type": "enum", "name": "E", "symbols": ["A"]}), field_schema("b", "E"), namespace="n.s"
    )
    texts = pa.record_batch({"a": ["A"], "b": ["A"]})
    assert encode(schema_with_namespace, texts) == encode_with_fastavro(schema_with_namespace, texts)


def test_derived_schema_equals_spark_to_avro() -> None:
    fields = [
        pa.field("id", pa.int64(), False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("s", pa.struct([pa.field("d", pa.decimal128(5, 1), False)])),
        pa.field("l", pa.list_(pa.field("element", pa.string(), True)), False),
    ]
    inner = {"type": "record", "name": "s", "fields": [field_schema("d", fixed_decimal_schema("s.d", 3, 5, 1))]}
    assert json.loads(derive_avro_schema(fields, None, null_first=False)) == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            field_schema("id", "long"),
            field_schema("price", [fixed_decimal_schema("price", 5, 10, 2), "null"]),
            field_schema("s", [{**inner, "namespace": "topLevelRecord"}, "null"]),
            field_schema("l", {"type": "array", "items": ["string", "null"]}),
        ],
    }


def test_derived_registry_schema_has_null_first_and_as_default() -> None:
    schema = json.loads(derive_avro_schema([pa.field("a", pa.int32())], "com.acme.Order", null_first=True))
    assert schema == {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [{"name": "a", "type": ["null", "int"], "default": None}],
    }
    assert parse_full_record_name(json.dumps(schema)) == "com.acme.Order"


def test_rejects_names_and_types_that_avro_does_not_support() -> None:
    with pytest.raises(SchemaError, match="column a b is not a valid Avro name"):
        derive_avro_schema([pa.field("a b", pa.int32())], None, null_first=False)
    with pytest.raises(SchemaError, match=r"column m of type .* has no corresponding Avro type"):
        derive_avro_schema([pa.field("m", pa.map_(pa.int32(), pa.int32()))], None, null_first=False)


def test_resolves_names_of_types_defined_in_union_and_in_dotted_namespace() -> None:
    line = {"type": "record", "name": "geo.Line", "fields": [field_schema("x", "int")]}
    shape = {"type": "record", "name": "geo.Shape", "fields": [field_schema("line", "Line")]}
    schema = record_schema(field_schema("a", ["null", line]), field_schema("b", shape))
    line_type = pa.struct([("x", pa.int32())])
    batch = pa.record_batch(
        {
            "a": pa.array([{"x": 1}], line_type),
            "b": pa.array([{"line": {"x": 2}}], pa.struct([("line", line_type)])),
        }
    )
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


@pytest.mark.parametrize(
    ("avro_type", "message"),
    [
        ({"type": 5}, "has an object whose type is missing or invalid"),
        ({"type": "long", "logicalType": 5}, "has a logicalType that is not a name"),
        ({"type": "enum", "name": "e", "symbols": "A"}, "has a type enum whose symbols must be a list of names"),
    ],
)
def test_rejects_invalid_attribute_of_nested_type(avro_type: Any, message: str) -> None:
    items = {"type": "array", "items": avro_type}
    with pytest.raises(SchemaError, match=message):
        NamedTypes({"type": "record", "name": "r", "fields": [field_schema("a", items)]})
