"""Avro encoder, compared with fastavro."""

from __future__ import annotations

import datetime as dt
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidRecordError, RecordTooLargeError, SchemaError
from spark_kafka_sink.formats.avro import build_record_writer
from spark_kafka_sink.formats.avro_schema import derive_avro_schema
from spark_kafka_sink.records import joined_rows
from tests.formats.arrow_strategies import batches
from tests.formats.avro_reference import (
    encode,
    encode_with_fastavro,
    field_schema,
    logical_schema,
    record_schema,
)

AVRO_NAMES = st.lists(st.sampled_from(["a", "b", "_c", "d1", "Ee"]), min_size=1, max_size=4, unique=True)


@given(batches(names=AVRO_NAMES), st.booleans())
def test_encoded_rows_equal_fastavro(batch: pa.RecordBatch, null_first: bool) -> None:
    schema = derive_avro_schema(list(batch.schema), None, null_first=null_first)
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
        (pa.null(), {"type": "null"}, [None]),
        (pa.string(), [{"type": "string"}, {"type": "null", "doc": "absent"}], ["a", None]),
        (pa.null(), [{"type": "null"}, "string"], [None]),
        (pa.list_(pa.string()), {"type": "array", "items": [{"type": "null"}, "string"]}, [["a", None], []]),
        (pa.map_(pa.string(), pa.int32()), {"type": "map", "values": [{"type": "null"}, "int"]}, [[("k", None)]]),
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


@pytest.mark.parametrize(
    ("wrapped", "unwrapped"),
    [
        ([{"type": "bytes"}, {"type": "null"}], ["bytes", "null"]),
        ({"type": ["null", "string"]}, ["null", "string"]),
        (["null", {"type": {"type": "string"}, "doc": "text"}], ["null", "string"]),
    ],
)
def test_types_in_objects_are_equivalent_to_types(wrapped: Any, unwrapped: Any) -> None:
    """fastavro does not accept all of these schemas."""
    # The field b has no column, so it must be nullable.
    batch = pa.record_batch({"a": pa.array([b"x", None] if "bytes" in unwrapped else ["x", None])})
    rows = [
        encode(record_schema(field_schema("a", avro_type), field_schema("b", avro_type)), batch)
        for avro_type in (wrapped, unwrapped)
    ]
    assert rows[0] == rows[1]


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
        (
            record_schema(field_schema("a", "string")),
            "column a has type int64, which cannot be written as Avro type string",
        ),
        (record_schema(field_schema("a", "int")), "column a has type int64, which cannot be written as Avro type int"),
        (
            record_schema(field_schema("a", ["null", "string"])),
            "column a has type int64, which cannot be written as Avro type string",
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


def test_halves_batch_when_rows_exceed_array(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"a": [f"value {number}" for number in range(7)]})
    schema = derive_avro_schema(list(batch.schema), None, null_first=False)
    expected = encode(schema, batch)
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", 3 * len(expected[0] or b""))
    assert encode(schema, batch) == expected
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", len(expected[0] or b"") - 1)
    with pytest.raises(RecordTooLargeError):
        encode(schema, batch)
