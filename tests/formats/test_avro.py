"""Avro out of columns is byte for byte what fastavro writes for each row."""

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
from spark_kafka_sink.formats.avro_schema import derive_schema, full_record_name
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.records import joined_rows
from tests.formats.arrow_strategies import batches

AVRO_NAMES = st.lists(st.sampled_from(["a", "b", "_c", "d1", "Ee"]), min_size=1, max_size=4, unique=True)


def encoded(schema: str, batch: pa.RecordBatch) -> list[bytes | None]:
    encoder = ColumnsEncoder(AvroFormat(schema), tuple(batch.schema), tuple(range(batch.num_columns)))
    rows: list[bytes | None] = pickle.loads(pickle.dumps(encoder)).encode(batch).to_pylist()
    return rows


def with_maps(value: Any, kind: pa.DataType) -> Any:
    """What Arrow makes of a map is a list of tuples; pyarrow 19 has no option for that."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: with_maps(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [with_maps(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {part.name: with_maps(value[part.name], part.type) for part in kind}
    return value


def by_fastavro(schema: str, batch: pa.RecordBatch) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    rows = []
    for row in batch.to_pylist():
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, parsed, {part.name: with_maps(row[part.name], part.type) for part in batch.schema}
        )
        rows.append(out.getvalue())
    return rows


@given(batches(names=AVRO_NAMES), st.booleans())
def test_columns_become_the_bytes_of_fastavro(batch: pa.RecordBatch, null_first: bool) -> None:
    schema = derive_schema(list(batch.schema), None, null_first=null_first)
    assert encoded(schema, batch) == by_fastavro(schema, batch)


def record(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": fields, **more})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


@given(st.lists(st.none() | st.decimals(-(10**18), 10**18, places=4), min_size=1, max_size=6))
def test_decimals_take_as_few_bytes_as_they_need_or_those_of_the_fixed_type(values: list[Decimal | None]) -> None:
    batch = pa.record_batch({"a": pa.array(values, pa.decimal128(38, 4))})
    fixed = {"type": "fixed", "name": "f", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 4}
    for kind in (logical("bytes", "decimal", precision=38, scale=4), fixed):
        schema = record(field("a", ["null", kind]))
        assert encoded(schema, batch) == by_fastavro(schema, batch)


def test_every_number_of_bytes_of_a_decimal() -> None:
    edges = [sign * (2**bits + more) for bits in range(126) for more in (-1, 0, 1) for sign in (1, -1)]
    batch = pa.record_batch({"a": pa.array([Decimal(edge) for edge in edges], pa.decimal128(38, 0))})
    schema = record(field("a", logical("bytes", "decimal", precision=38, scale=0)))
    assert encoded(schema, batch) == by_fastavro(schema, batch)


def test_integers_of_every_length() -> None:
    edges = [sign * 2**bits + more for bits in range(63) for more in (-1, 0) for sign in (1, -1)]
    batch = pa.record_batch({"a": pa.array([*edges, -(2**63), 2**63 - 1], pa.int64())})
    schema = record(field("a", "long"))
    assert encoded(schema, batch) == by_fastavro(schema, batch)


DAY, NOW = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 30, 1, 234567)


@pytest.mark.parametrize(
    ("kind", "avro", "values"),
    [
        (pa.int8(), "int", [1, -128]),
        (pa.int16(), "long", [1, -128]),
        (pa.int32(), "long", [2**31 - 1]),
        (pa.float32(), "double", [1.5]),
        (pa.date32(), logical("int", "date"), [DAY]),
        (pa.timestamp("us", "UTC"), logical("long", "timestamp-micros"), [NOW.replace(tzinfo=dt.timezone.utc)]),
        (pa.timestamp("us", "UTC"), logical("long", "timestamp-millis"), [NOW.replace(tzinfo=dt.timezone.utc)]),
        (pa.timestamp("us"), logical("long", "local-timestamp-micros"), [NOW]),
        (pa.timestamp("us"), logical("long", "local-timestamp-millis"), [NOW]),
        (pa.time64("us"), logical("long", "time-micros"), [NOW.time()]),
        (pa.time64("us"), logical("int", "time-millis"), [NOW.time()]),
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
def test_a_column_takes_the_type_that_the_schema_gives_it(kind: pa.DataType, avro: Any, values: list[Any]) -> None:
    array = pa.array(values, kind)
    array = array.cast(pa.time64("ns")) if kind == pa.time64("us") else array
    schema = record(field("a", avro))
    parsed = fastavro.parse_schema(json.loads(schema))
    expected = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {"a": dict(value) if pa.types.is_map(kind) else value})
        expected.append(out.getvalue())
    assert encoded(schema, pa.record_batch({"a": array})) == expected


def test_the_order_is_that_of_the_schema_and_a_field_without_a_column_is_null() -> None:
    schema = record(field("b", "string"), field("gone", ["null", "int"]), field("a", "int"))
    batch = pa.record_batch({"a": pa.array([1], pa.int32()), "b": ["x"]})
    assert encoded(schema, batch) == by_fastavro(schema, batch)


def test_a_type_is_defined_once_and_used_by_its_name() -> None:
    point = {"type": "record", "name": "Point", "namespace": "geo", "fields": [field("x", "int")]}
    schema = record(
        field("a", point), field("b", ["null", "geo.Point"]), field("c", {"type": "array", "items": "geo.Point"})
    )
    kind = pa.struct([("x", pa.int32())])
    batch = pa.record_batch(
        {
            "a": pa.array([{"x": 1}], kind),
            "b": pa.array([{"x": 2}], kind),
            "c": pa.array([[{"x": 3}]], pa.list_(kind)),
        }
    )
    assert encoded(schema, batch) == by_fastavro(schema, batch)
    inside = record(field("a", {"type": "enum", "name": "E", "symbols": ["A"]}), field("b", "E"), namespace="n.s")
    texts = pa.record_batch({"a": ["A"], "b": ["A"]})
    assert encoded(inside, texts) == by_fastavro(inside, texts)


def test_what_lies_under_a_null_struct_is_not_looked_at() -> None:
    kind = pa.struct([("x", pa.string())])
    schema = record(field("a", ["null", {"type": "record", "name": "p", "fields": [field("x", "string")]}]))
    # As Spark hands it over: the field is null as well.
    array = pa.StructArray.from_arrays([pa.array([None, "y"])], fields=list(kind), mask=pa.array([True, False]))
    batch = pa.record_batch({"a": array})
    assert encoded(schema, batch) == by_fastavro(schema, batch)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "the Avro schema is not valid JSON"),
        ('"int"', "must be a record with a name"),
        (record(field("b", "int")), "the Avro schema has no field for the column a"),
        (record(field("a", "long"), field("b", "int")), "no column for the field b of the Avro schema"),
        (record(field("a", "string")), "column a of type int64 does not fit the schema's type string"),
        (record(field("a", "int")), "column a of type int64 does not fit the schema's type int"),
        (record(field("a", ["null", "string"])), "column a of type int64 does not fit the schema's type string"),
        (record(field("a", logical("long", "timestamp-micros"))), None),
        (record(field("a", "Unknown")), "the Avro schema uses the undefined name 'Unknown'"),
        (record({"name": "a"}), "must be a list of objects with name and type"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(schema: str, words: str | None) -> None:
    plan = (schema, ("a",), (pa.int64(),))
    if words is None:
        build_record_writer(*plan)
        return
    with pytest.raises(SchemaError) as refused:
        build_record_writer(*plan)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("avro", "values", "words"),
    [
        ("string", ["a", None], "column a is null in 1 of 2 rows, but the schema does not allow null"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, ["A", "C"], "'C' is not a symbol of the enum e"),
    ],
)
def test_rows_that_the_schema_does_not_allow_are_refused(avro: Any, values: list[str], words: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        encoded(record(field("a", avro)), pa.record_batch({"a": values}))
    assert words in str(refused.value)


def test_enum_value_that_is_not_utf8_is_refused_and_shown() -> None:
    invalid = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(InvalidRecordError, match=r"is not a symbol of the enum e") as refused:
        encoded(record(field("a", {"type": "enum", "name": "e", "symbols": ["A"]})), pa.record_batch({"a": invalid}))
    assert "\\xff" in str(refused.value)


def test_bytes_of_another_size_than_the_fixed_types_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="the schema's fixed type has 3 bytes"):
        encoded(record(field("a", {"type": "fixed", "name": "f", "size": 3})), pa.record_batch({"a": [b"ab"]}))


@pytest.mark.parametrize("is_nullable", [False, True])
def test_a_fixed_type_that_is_too_small_for_its_decimals_is_refused(is_nullable: bool) -> None:
    """It has room for four bytes, and 9,999,999,999 needs five."""
    for size, precision in ((4, 10), (0, 1), (16, 39), (16, 2**31 - 1)):
        digits = {"logicalType": "decimal", "precision": precision, "scale": 0}
        kind = {"type": "fixed", "name": "f", "size": size, **digits}
        with pytest.raises(SchemaError, match=rf"column a: .* {size} bytes .*precision {precision}"):
            build_record_writer(
                record(field("a", ["null", kind] if is_nullable else kind)), ("a",), (pa.decimal128(1, 0),)
            )
    build_record_writer(record(field("a", fixed_decimal("a", 4, 9, 0))), ("a",), (pa.decimal128(9, 0),))


def fixed_decimal(path: str, size: int, precision: int, scale: int) -> dict[str, Any]:
    digits = {"logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": "fixed", "name": "fixed", "namespace": f"topLevelRecord.{path}", "size": size, **digits}


def test_a_derived_schema_is_that_of_sparks_to_avro() -> None:
    fields = [
        pa.field("id", pa.int64(), False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("s", pa.struct([pa.field("d", pa.decimal128(5, 1), False)])),
        pa.field("l", pa.list_(pa.field("element", pa.string(), True)), False),
    ]
    inner = {"type": "record", "name": "s", "fields": [field("d", fixed_decimal("s.d", 3, 5, 1))]}
    assert json.loads(derive_schema(fields, None, null_first=False)) == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            field("id", "long"),
            field("price", [fixed_decimal("price", 5, 10, 2), "null"]),
            field("s", [{**inner, "namespace": "topLevelRecord"}, "null"]),
            field("l", {"type": "array", "items": ["string", "null"]}),
        ],
    }


def test_a_schema_for_a_registry_has_null_first_and_as_the_default() -> None:
    schema = json.loads(derive_schema([pa.field("a", pa.int32())], "com.acme.Order", null_first=True))
    assert schema == {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [{"name": "a", "type": ["null", "int"], "default": None}],
    }
    assert full_record_name(json.dumps(schema)) == "com.acme.Order"


def test_a_name_that_avro_does_not_allow_is_refused() -> None:
    with pytest.raises(SchemaError, match="column a b is not a valid Avro name"):
        derive_schema([pa.field("a b", pa.int32())], None, null_first=False)
    with pytest.raises(SchemaError, match=r"column m of type .* has no corresponding Avro type"):
        derive_schema([pa.field("m", pa.map_(pa.int32(), pa.int32()))], None, null_first=False)


def test_rows_that_need_more_than_an_array_can_hold_are_encoded_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"a": [f"value {number}" for number in range(7)]})
    schema = derive_schema(list(batch.schema), None, null_first=False)
    wanted = encoded(schema, batch)
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", 3 * len(wanted[0] or b""))
    assert encoded(schema, batch) == wanted
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", len(wanted[0] or b"") - 1)
    with pytest.raises(RecordTooLargeError):
        encoded(schema, batch)
