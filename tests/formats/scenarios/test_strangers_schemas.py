"""Schemas that others wrote: whatever they hold, the driver plans by them or refuses them with a sentence, and soon."""

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
from spark_kafka_sink.formats.format_builders import SchemaOptions, build_format
from spark_kafka_sink.formats.schema_json import MAX_NESTING
from tests.formats.test_protobuf import compiled

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
IN_PLACE = '[null, true, 1, -1, 1.5, "", "null", "record", [], {}, [[]], ["null"], {"type": "record"}, "\\ud800", 1e30]'


@pytest.mark.parametrize("name", ["avro", "avro-confluent", "json-schema-confluent"])
@pytest.mark.parametrize("levels", [MAX_NESTING, 5_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"type":', "}")])
def test_a_schema_of_many_brackets_is_refused_in_words(name: str, levels: int, opening: str, closing: str) -> None:
    brackets = opening * levels + "1" + closing * levels
    for text in (brackets, AVRO.replace('"long"', brackets)):
        with pytest.raises(SchemaError, match=f"is nested more than {MAX_NESTING} levels deep"):
            build_format(name, ID, SchemaOptions(text))


@pytest.mark.parametrize("levels", [10, 80])
def test_structs_may_be_eighty_levels_deep(levels: int) -> None:
    kind = pa.int64()
    for _ in range(levels):
        kind = pa.struct([pa.field("x", kind)])
    for name in ("avro", "avro-confluent", "json-schema-confluent", "protobuf-confluent"):
        planned = build_format(name, [pa.field("x", kind)], SchemaOptions())
        if planned.schema is not None and name != "protobuf-confluent":
            build_format(name, [pa.field("x", kind)], SchemaOptions(planned.schema.text))


def test_each_branch_of_a_union_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With twice at each level, a schema of sixty lines would take longer than the universe."""
    schema: Any = "long"
    for _ in range(60):
        schema = {"type": ["null", schema]}
    planned: list[str] = []

    def counted(schema: Any, kind: pa.DataType, where: str) -> ColumnWriter:
        planned.append(where)
        assert len(planned) == 1
        return build_scalar_writer(schema, kind, where)

    monkeypatch.setattr(avro, "build_scalar_writer", counted)
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": schema}]})
    build_format("avro", ID, SchemaOptions(text))
    assert planned == ["id"]


@pytest.mark.parametrize(("branches", "is_fine"), [(64, True), (65, False)])
def test_the_number_of_a_branch_is_one_byte(branches: int, is_fine: bool) -> None:
    others = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(branches - 1)]
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": [*others, "long"]}]})
    if is_fine:
        rows = build_format("avro", ID, SchemaOptions(text)).row_format.encode_rows(["id"], [pa.array([1])], 1, b"")
        assert rows.to_pylist() == [bytes([2 * (branches - 1), 2])]
    else:
        with pytest.raises(
            SchemaError, match="a type record whose fields must be a list of objects with name and type"
        ):
            build_format("avro", ID, SchemaOptions(text))


@pytest.mark.parametrize(("name", "base"), [("avro", AVRO), ("json-schema-confluent", JSON)])
def test_a_schema_with_anything_in_any_place_is_planned_or_refused(name: str, base: str) -> None:
    build_format(name, FIELDS, SchemaOptions(base))
    refused = 0
    for seed in range(3_000):
        choices, schema = random.Random(seed), json.loads(base)
        for _ in range(choices.randint(1, 3)):
            change_a_place(schema, choices)
        try:
            build_format(name, FIELDS, SchemaOptions(json.dumps(schema)))
        except SchemaError:
            refused += 1
    assert refused > 100


def change_a_place(schema: Any, choices: random.Random) -> None:
    places = list(places_in(schema))
    if places:
        whole, key = choices.choice(places)
        if choices.random() < 0.3:
            del whole[key]
        else:
            whole[key] = choices.choice(json.loads(IN_PLACE))


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places_in(value[key])


def test_a_descriptor_with_any_bytes_in_it_is_planned_or_refused() -> None:
    descriptor = compiled(PROTOBUF)
    fields = [field for field in FIELDS if field.name != "s"] + [pa.field("s", pa.struct([pa.field("x", pa.string())]))]
    build_format("protobuf-confluent", fields, SchemaOptions(base64.b64encode(descriptor).decode()))
    refused = 0
    for seed in range(3_000):
        choices, data = random.Random(seed), bytearray(descriptor)
        for _ in range(choices.randint(1, 4)):
            data[choices.randrange(len(data))] = choices.randrange(256)
        try:
            build_format("protobuf-confluent", fields, SchemaOptions(base64.b64encode(data).decode()))
        except SchemaError:
            refused += 1
    assert refused > 100
