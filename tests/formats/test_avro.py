"""Avro encoder, compared with fastavro."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidRecordError, RecordTooLargeError, SchemaError
from spark_kafka_sink.formats.avro import AvroFormat, build_record_writer
from spark_kafka_sink.formats.avro_schema import derive_schema, parse_full_record_name
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.records import joined_rows
from tests.formats.arrow_strategies import batches

AVRO_NAMES = st.lists(st.sampled_from(["a", "b", "_c", "d1", "Ee"]), min_size=1, max_size=4, unique=True)


def encode(schema: str, batch: pa.RecordBatch) -> list[bytes | None]:
    encoder = ColumnsEncoder(AvroFormat(schema), tuple(batch.schema), tuple(range(batch.num_columns)))
    rows: list[bytes | None] = pickle.loads(pickle.dumps(encoder)).encode(batch).to_pylist()
    return rows


def maps_to_dicts(value: Any, data_type: pa.DataType) -> Any:
    """Convert maps from lists of tuples to dicts. pyarrow 19 has no option for that."""
    if value is None:
        return None
    if pa.types.is_map(data_type):
        return {key: maps_to_dicts(item, data_type.item_type) for key, item in value}
    if pa.types.is_list(data_type):
        return [maps_to_dicts(item, data_type.value_type) for item in value]
    if pa.types.is_struct(data_type):
        return {field.name: maps_to_dicts(value[field.name], field.type) for field in data_type}
    return value


def encode_with_fastavro(schema: str, batch: pa.RecordBatch) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    rows = []
    for row in batch.to_pylist():
        buffer = io.BytesIO()
        fastavro.schemaless_writer(
            buffer, parsed, {field.name: maps_to_dicts(row[field.name], field.type) for field in batch.schema}
        )
        rows.append(buffer.getvalue())
    return rows


@given(batches(names=AVRO_NAMES), st.booleans())
def test_encoded_rows_equal_fastavro(batch: pa.RecordBatch, null_first: bool) -> None:
    schema = derive_schema(list(batch.schema), None, null_first=null_first)
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def record_schema(*fields: dict[str, Any], **attributes: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": fields, **attributes})


def field_schema(name: str, avro_type: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": avro_type, **attributes}


def logical_schema(avro_type: str, name: str, **attributes: Any) -> dict[str, Any]:
    return {"type": avro_type, "logicalType": name, **attributes}


@given(st.lists(st.none() | st.decimals(-(10**18), 10**18, places=4), min_size=1, max_size=6))
def test_decimals_have_minimum_size_or_size_of_fixed_type(values: list[Decimal | None]) -> None:
    batch = pa.record_batch({"a": pa.array(values, pa.decimal128(38, 4))})
    fixed = {"type": "fixed", "name": "f", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 4}
    for avro_type in (logical_schema("bytes", "decimal", precision=38, scale=4), fixed):
        schema = record_schema(field_schema("a", ["null", avro_type]))
        assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def test_encodes_decimals_of_every_size() -> None:
    edges = [sign * (2**bits + attributes) for bits in range(126) for attributes in (-1, 0, 1) for sign in (1, -1)]
    batch = pa.record_batch({"a": pa.array([Decimal(edge) for edge in edges], pa.decimal128(38, 0))})
    schema = record_schema(field_schema("a", logical_schema("bytes", "decimal", precision=38, scale=0)))
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def test_encodes_integers_of_every_size() -> None:
    edges = [sign * 2**bits + attributes for bits in range(63) for attributes in (-1, 0) for sign in (1, -1)]
    batch = pa.record_batch({"a": pa.array([*edges, -(2**63), 2**63 - 1], pa.int64())})
    schema = record_schema(field_schema("a", "long"))
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


DAY, NOW = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 30, 1, 234567)


@pytest.mark.parametrize(
    ("data_type", "avro", "values"),
    [
        (pa.int8(), "int", [1, -128]),
        (pa.int16(), "long", [1, -128]),
        (pa.int32(), "long", [2**31 - 1]),
        (pa.float32(), "double", [1.5]),
        (pa.date32(), logical_schema("int", "date"), [DAY]),
        (pa.timestamp("us", "UTC"), logical_schema("long", "timestamp-micros"), [NOW.replace(tzinfo=dt.timezone.utc)]),
        (pa.timestamp("us", "UTC"), logical_schema("long", "timestamp-millis"), [NOW.replace(tzinfo=dt.timezone.utc)]),
        (pa.timestamp("us"), logical_schema("long", "local-timestamp-micros"), [NOW]),
        (pa.timestamp("us"), logical_schema("long", "local-timestamp-millis"), [NOW]),
        (pa.time64("us"), logical_schema("long", "time-micros"), [NOW.time()]),
        (pa.time64("us"), logical_schema("int", "time-millis"), [NOW.time()]),
        (pa.string(), {"type": "enum", "name": "e", "symbols": ["A", "B"]}, ["B", "A"]),
        (pa.binary(), {"type": "fixed", "name": "f", "size": 3}, [b"abc"]),
        (pa.large_string(), "string", ["a", "bc"]),
        (pa.large_string(), {"type": "enum", "name": "e", "symbols": ["A", "B"]}, ["B", "A"]),
        (pa.map_(pa.large_string(), pa.large_string()), {"type": "map", "values": "string"}, [[("k", "v")], []]),
        (pa.string(), ["null", "int", "string"], ["a", None]),
        (pa.int64(), ["long", "null"], [None, 5]),
        (pa.list_(pa.string()), {"type": "array", "items": ["null", "string"]}, [["a", None], []]),
        (pa.map_(pa.string(), pa.int32()), {"type": "map", "values": "int"}, [[("k", 1)], []]),
        (pa.null(), ["null", "string"], [None]),
        (pa.null(), "null", [None]),
    ],
    ids=str,
)
def test_encodes_column_with_type_of_schema(data_type: pa.DataType, avro: Any, values: list[Any]) -> None:
    array = pa.array(values, data_type)
    array = array.cast(pa.time64("ns")) if data_type == pa.time64("us") else array
    schema = record_schema(field_schema("a", avro))
    parsed = fastavro.parse_schema(json.loads(schema))
    expected = []
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, {"a": dict(value) if pa.types.is_map(data_type) else value})
        expected.append(buffer.getvalue())
    assert encode(schema, pa.record_batch({"a": array})) == expected


def test_writes_fields_in_schema_order_with_null_for_missing_columns() -> None:
    schema = record_schema(field_schema("b", "string"), field_schema("gone", ["null", "int"]), field_schema("a", "int"))
    batch = pa.record_batch({"a": pa.array([1], pa.int32()), "b": ["x"]})
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


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


def test_ignores_fields_of_null_structs() -> None:
    data_type = pa.struct([("x", pa.string())])
    schema = record_schema(
        field_schema("a", ["null", {"type": "record", "name": "p", "fields": [field_schema("x", "string")]}])
    )
    # Like in Spark's batches, the field of a null struct is null, too.
    array = pa.StructArray.from_arrays([pa.array([None, "y"])], fields=list(data_type), mask=pa.array([True, False]))
    batch = pa.record_batch({"a": array})
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the Avro schema is not valid JSON"),
        ('"int"', "must be a record with a name"),
        (record_schema(field_schema("b", "int")), "the Avro schema has no field for the column a"),
        (
            record_schema(field_schema("a", "long"), field_schema("b", "int")),
            "no column for the field b of the Avro schema",
        ),
        (record_schema(field_schema("a", "string")), "column a of type int64 does not fit the schema's type string"),
        (record_schema(field_schema("a", "int")), "column a of type int64 does not fit the schema's type int"),
        (
            record_schema(field_schema("a", ["null", "string"])),
            "column a of type int64 does not fit the schema's type string",
        ),
        (record_schema(field_schema("a", logical_schema("long", "timestamp-micros"))), None),
        (record_schema(field_schema("a", "Unknown")), "the Avro schema uses the undefined name 'Unknown'"),
        (record_schema({"name": "a"}), "must be a list of objects with name and type"),
    ],
)
def test_rejects_schema_that_does_not_fit_columns(schema: str, message: str | None) -> None:
    arguments = (schema, ("a",), (pa.int64(),))
    if message is None:
        build_record_writer(*arguments)
        return
    with pytest.raises(SchemaError) as caught:
        build_record_writer(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("avro", "values", "message"),
    [
        ("string", ["a", None], "column a is null in 1 of 2 rows, but the schema does not allow null"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, ["A", "C"], "'C' is not a symbol of the enum e"),
    ],
)
def test_rejects_rows_that_violate_schema(avro: Any, values: list[str], message: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        encode(record_schema(field_schema("a", avro)), pa.record_batch({"a": values}))
    assert message in str(caught.value)


def test_rejects_enum_value_that_is_not_utf8_and_shows_it() -> None:
    invalid = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(InvalidRecordError, match=r"is not a symbol of the enum e") as caught:
        encode(
            record_schema(field_schema("a", {"type": "enum", "name": "e", "symbols": ["A"]})),
            pa.record_batch({"a": invalid}),
        )
    assert "\\xff" in str(caught.value)


def test_rejects_bytes_whose_size_differs_from_fixed_type() -> None:
    with pytest.raises(InvalidRecordError, match="the schema's fixed type has 3 bytes"):
        encode(
            record_schema(field_schema("a", {"type": "fixed", "name": "f", "size": 3})), pa.record_batch({"a": [b"ab"]})
        )


@pytest.mark.parametrize("is_nullable", [False, True])
def test_rejects_fixed_type_that_is_too_small_for_decimals(is_nullable: bool) -> None:
    """For example, 9,999,999,999 does not fit into four bytes."""
    for size, precision in ((4, 10), (0, 1), (16, 39), (16, 2**31 - 1)):
        digits = {"logicalType": "decimal", "precision": precision, "scale": 0}
        avro_type = {"type": "fixed", "name": "f", "size": size, **digits}
        with pytest.raises(SchemaError, match=rf"column a: .* {size} bytes .*precision {precision}"):
            build_record_writer(
                record_schema(field_schema("a", ["null", avro_type] if is_nullable else avro_type)),
                ("a",),
                (pa.decimal128(1, 0),),
            )
    build_record_writer(
        record_schema(field_schema("a", fixed_decimal_schema("a", 4, 9, 0))), ("a",), (pa.decimal128(9, 0),)
    )


def fixed_decimal_schema(path: str, size: int, precision: int, scale: int) -> dict[str, Any]:
    digits = {"logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": "fixed", "name": "fixed", "namespace": f"topLevelRecord.{path}", "size": size, **digits}


def test_derived_schema_equals_spark_to_avro() -> None:
    fields = [
        pa.field("id", pa.int64(), False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("s", pa.struct([pa.field("d", pa.decimal128(5, 1), False)])),
        pa.field("l", pa.list_(pa.field("element", pa.string(), True)), False),
    ]
    inner = {"type": "record", "name": "s", "fields": [field_schema("d", fixed_decimal_schema("s.d", 3, 5, 1))]}
    assert json.loads(derive_schema(fields, None, null_first=False)) == {
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
    schema = json.loads(derive_schema([pa.field("a", pa.int32())], "com.acme.Order", null_first=True))
    assert schema == {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [{"name": "a", "type": ["null", "int"], "default": None}],
    }
    assert parse_full_record_name(json.dumps(schema)) == "com.acme.Order"


def test_rejects_names_and_types_that_avro_does_not_support() -> None:
    with pytest.raises(SchemaError, match="column a b is not a valid Avro name"):
        derive_schema([pa.field("a b", pa.int32())], None, null_first=False)
    with pytest.raises(SchemaError, match=r"column m of type .* has no corresponding Avro type"):
        derive_schema([pa.field("m", pa.map_(pa.int32(), pa.int32()))], None, null_first=False)


def test_halves_batch_when_rows_exceed_array(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"a": [f"value {number}" for number in range(7)]})
    schema = derive_schema(list(batch.schema), None, null_first=False)
    expected = encode(schema, batch)
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", 3 * len(expected[0] or b""))
    assert encode(schema, batch) == expected
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", len(expected[0] or b"") - 1)
    with pytest.raises(RecordTooLargeError):
        encode(schema, batch)
