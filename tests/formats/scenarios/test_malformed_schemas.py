"""Malformed and hostile schemas: they are accepted or rejected with SchemaError, in bounded time."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats import avro
from spark_kafka_sink.formats.avro_scalars import ColumnWriter, build_scalar_writer
from spark_kafka_sink.formats.format_builders import SchemaSpec, build_format
from spark_kafka_sink.formats.schema_json import MAX_NESTING
from tests.formats.protobuf_reference import compile_proto

ID = [pa.field("id", pa.int64())]
FIELDS = [
    pa.field("a", pa.int64()),
    pa.field("s", pa.struct([pa.field("x", pa.string()), pa.field("d", pa.decimal128(10, 2))])),
    pa.field("l", pa.list_(pa.int32())),
    pa.field("m", pa.map_(pa.string(), pa.float64())),
    pa.field("t", pa.timestamp("us", "UTC")),
    pa.field("n", pa.null()),
    pa.field("b", pa.binary()),
]
AVRO = """{"type": "record", "name": "r", "namespace": "n", "fields": [
    {"name": "a", "type": ["null", "long"]},
    {"name": "s", "type": ["null", {"type": "record", "name": "S", "fields": [
        {"name": "x", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        {"name": "d", "type":
            {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2}}]}]},
    {"name": "l", "type": {"type": "array", "items": "int"}},
    {"name": "m", "type": {"type": "map", "values": ["double", "null"]}},
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "n", "type": ["null", "string"]},
    {"name": "b", "type": {"type": "fixed", "name": "G", "size": 3}}]}"""
JSON = """{"type": "object", "title": "x", "required": ["a"], "additionalProperties": false,
    "properties": {"a": {}, "s": {}, "l": {}, "m": {}, "t": {}, "n": {}, "b": {}}}"""
PROTOBUF = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
    message O { int64 a = 1; S s = 2; repeated int32 l = 3; map<string,double> m = 4; google.protobuf.Timestamp t = 5;
        message S { string x = 1; string d = 3; } oneof o { bytes b = 7; S q = 8; } string n = 9; }"""
REPLACEMENTS = (
    '[null, true, 1, -1, 1.5, "", "null", "record", [], {}, [[]], ["null"], {"type": "record"}, "\\ud800", 1e30]'
)


@pytest.mark.parametrize("name", ["avro", "avro-confluent", "json-schema-confluent"])
@pytest.mark.parametrize("levels", [MAX_NESTING, 5_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"type":', "}")])
def test_rejects_deeply_nested_schema(name: str, levels: int, opening: str, closing: str) -> None:
    brackets = opening * levels + "1" + closing * levels
    for text in (brackets, AVRO.replace('"long"', brackets)):
        with pytest.raises(SchemaError, match=f"is nested more than {MAX_NESTING} levels deep"):
            build_format(name, ID, SchemaSpec(text))


@pytest.mark.parametrize("levels", [10, 80])
def test_accepts_structs_of_eighty_levels(levels: int) -> None:
    data_type = pa.int64()
    for _ in range(levels):
        data_type = pa.struct([pa.field("x", data_type)])
    for name in ("avro", "avro-confluent", "json-schema-confluent", "protobuf-confluent"):
        format_and_schema = build_format(name, [pa.field("x", data_type)], SchemaSpec())
        if format_and_schema.schema is not None and name != "protobuf-confluent":
            build_format(name, [pa.field("x", data_type)], SchemaSpec(format_and_schema.schema.text))


def test_builds_each_union_branch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each level was built twice, sixty levels would take 2^60 steps."""
    schema: Any = "long"
    data_type = pa.int64()
    for _ in range(60):
        schema = ["null", {"type": "array", "items": schema}]
        data_type = pa.list_(data_type)
    built_paths: list[str] = []

    def count_calls(schema: Any, data_type: pa.DataType, path: str) -> ColumnWriter:
        built_paths.append(path)
        assert len(built_paths) == 1
        return build_scalar_writer(schema, data_type, path)

    monkeypatch.setattr(avro, "build_scalar_writer", count_calls)
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": schema}]})
    build_format("avro", [pa.field("id", data_type)], SchemaSpec(text))
    assert built_paths == ["id" + 60 * ".element"]


@pytest.mark.parametrize(("branches", "is_valid"), [(64, True), (65, False)])
def test_unions_have_at_most_64_branches(branches: int, is_valid: bool) -> None:
    other_branches = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(branches - 1)]
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": [*other_branches, "long"]}]})
    if is_valid:
        rows = build_format("avro", ID, SchemaSpec(text)).row_format.encode_rows(["id"], [pa.array([1])], 1, b"")
        assert rows.to_pylist() == [bytes([2 * (branches - 1), 2])]
    else:
        with pytest.raises(
            SchemaError, match="a type record whose fields must be a list of objects with name and type"
        ):
            build_format("avro", ID, SchemaSpec(text))


@pytest.mark.parametrize(("name", "base"), [("avro", AVRO), ("json-schema-confluent", JSON)])
def test_mutated_schema_is_accepted_or_rejected_with_schema_error(name: str, base: str) -> None:
    build_format(name, FIELDS, SchemaSpec(base))
    rejected = 0
    for seed in range(3_000):
        random_source, schema = random.Random(seed), json.loads(base)
        for _ in range(random_source.randint(1, 3)):
            mutate_schema(schema, random_source)
        try:
            build_format(name, FIELDS, SchemaSpec(json.dumps(schema)))
        except SchemaError:
            rejected += 1
    assert rejected > 100


def mutate_schema(schema: Any, random_source: random.Random) -> None:
    locations = list(find_locations(schema))
    if locations:
        container, key = random_source.choice(locations)
        if random_source.random() < 0.3:
            del container[key]
        else:
            container[key] = random_source.choice(json.loads(REPLACEMENTS))


def find_locations(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from find_locations(value[key])


def test_mutated_descriptor_is_accepted_or_rejected_with_schema_error() -> None:
    descriptor = compile_proto(PROTOBUF)
    fields = [field for field in FIELDS if field.name != "s"] + [pa.field("s", pa.struct([pa.field("x", pa.string())]))]
    build_format("protobuf-confluent", fields, SchemaSpec(base64.b64encode(descriptor).decode()))
    rejected = 0
    for seed in range(3_000):
        random_source, data = random.Random(seed), bytearray(descriptor)
        for _ in range(random_source.randint(1, 4)):
            data[random_source.randrange(len(data))] = random_source.randrange(256)
        try:
            build_format("protobuf-confluent", fields, SchemaSpec(base64.b64encode(data).decode()))
        except SchemaError:
            rejected += 1
    assert rejected > 100
