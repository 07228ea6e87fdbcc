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


def test_resolves_named_types_in_objects() -> None:
    point = {"type": "record", "name": "Point", "fields": [field_schema("x", "int")]}
    data_type = pa.struct([("x", pa.int32())])
    batch = pa.record_batch(
        {
            "a": pa.array([[{"x": 1}]], pa.list_(data_type)),
            "b": pa.array([{"x": 2}], data_type),
            "c": pa.array([[("k", {"x": 3})]], pa.map_(pa.string(), data_type)),
        }
    )

    def build_schema(reference: Any) -> str:
        return record_schema(
            field_schema("a", {"type": "array", "items": point}),
            field_schema("b", ["null", reference]),
            field_schema("c", {"type": "map", "values": reference}),
            namespace="geo",
        )

    for name in ("Point", "geo.Point"):
        assert encode(build_schema({"type": name, "doc": "a point"}), batch) == encode(build_schema(name), batch)
    with pytest.raises(SchemaError, match="the Avro schema uses the undefined name 'Line'"):
        encode(build_schema({"type": "Line"}), batch)


@pytest.mark.parametrize(
    ("avro_type", "foreign_attributes"),
    [
        ({"type": "int"}, {"items": {"x": 1}, "values": [{"code": "A"}], "fields": [5]}),
        ({"type": "array", "items": "int"}, {"values": 5, "fields": [{"name": "x", "type": 5}]}),
        ({"type": "map", "values": "int"}, {"items": {"x": 1}}),
        ({"type": "record", "name": "I", "fields": [field_schema("x", "int")]}, {"items": {"x": 1}, "values": 5}),
    ],
)
def test_ignores_attributes_of_other_types(avro_type: Any, foreign_attributes: dict[str, Any]) -> None:
    """Like Java, treat attributes that the specification does not define for a type as metadata."""
    schema = {**avro_type, **foreign_attributes}
    values: dict[str, tuple[Any, pa.DataType]] = {
        "int": (1, pa.int32()),
        "array": ([1], pa.list_(pa.int32())),
        "map": ([("k", 1)], pa.map_(pa.string(), pa.int32())),
        "record": ({"x": 1}, pa.struct([("x", pa.int32())])),
    }
    value, data_type = values[schema["type"]]
    batch = pa.record_batch({"a": pa.array([value], data_type)})
    assert encode(record_schema(field_schema("a", schema)), batch) == encode(
        record_schema(field_schema("a", avro_type)), batch
    )


@pytest.mark.parametrize("logical_type", ["", 5, {"x": 1}, None, "\n"])
def test_ignores_logical_type_that_is_not_a_name(logical_type: Any) -> None:
    """Avro's specification requires that invalid logical types are ignored."""
    schema = record_schema(field_schema("a", {"type": "int", "logicalType": logical_type}))
    days = pa.record_batch({"a": pa.array([1], pa.int32()).view(pa.date32())})
    assert encode(schema, days) == [b"\2"]
    texts = pa.record_batch({"a": ["x"]})
    with pytest.raises(SchemaError, match="column a has type string, which cannot be written as Avro type int"):
        encode(schema, texts)


@pytest.mark.parametrize(
    ("avro_type", "message"),
    [
        ({"type": 5}, "has an object whose type is missing or invalid"),
        ({"type": "enum", "name": "e", "symbols": "A"}, "has a type enum whose symbols must be a list of names"),
    ],
)
def test_rejects_invalid_attribute_of_nested_type(avro_type: Any, message: str) -> None:
    items = {"type": "array", "items": avro_type}
    with pytest.raises(SchemaError, match=message):
        NamedTypes({"type": "record", "name": "r", "fields": [field_schema("a", items)]})
