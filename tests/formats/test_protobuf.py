"""Protobuf encoder, compared with the protobuf package."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_schema import derive_message
from tests.formats.arrow_strategies import SCALAR_COLUMNS, Column, fixed_structs
from tests.formats.protobuf_reference import (
    EVERY_TYPE_PROTO,
    ONEOF_PROTO,
    REQUIRED_PROTO,
    compile_proto,
    encode,
    encode_with_protobuf,
    message_class,
    parse_format,
)

NAMES = st.lists(st.sampled_from(["a", "b_c", "_d", "Ee", "f1"]), min_size=1, max_size=4, unique=True)


@st.composite
def message_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Record batches that Protobuf supports: without lists in lists and without null elements."""

    def with_collections(column: Column) -> st.SearchStrategy[Column]:
        arrow_type, values = column
        # protobuf writes the entries of a map in an unspecified order, so there is at most one.
        entries = st.dictionaries(st.text("abc", max_size=2), values, max_size=1)
        return st.sampled_from(
            [
                column,
                (pa.list_(arrow_type), st.lists(values, max_size=3)),
                (pa.map_(pa.string(), arrow_type), entries.map(lambda mapping: list(mapping.items()))),
            ]
        )

    scalars = st.sampled_from(SCALAR_COLUMNS)
    columns = (scalars | fixed_structs(scalars.flatmap(with_collections), NAMES)).flatmap(with_collections)
    rows = draw(st.integers(0, 5))
    arrays, fields = [], []
    for name in draw(NAMES):
        data_type, values = draw(columns)
        is_nullable = draw(st.booleans())
        column = draw(st.lists(st.none() | values if is_nullable else values, min_size=rows, max_size=rows))
        arrays.append(pa.array(column, data_type))
        fields.append(pa.field(name, data_type, is_nullable))
    return pa.record_batch(arrays, schema=pa.schema(fields)).slice(draw(st.integers(0, rows)))


@given(message_batches())
def test_encoded_rows_equal_protobuf(batch: pa.RecordBatch) -> None:
    derived = derive_message(list(batch.schema), "com.acme.Order")
    expected = encode_with_protobuf(compile_proto(derived.text), "com.acme.Order", batch)
    assert encode(ProtobufFormat(derived.fields), batch) == expected
    assert encode(parse_format(derived.text, batch), batch) == expected


def test_map_with_several_entries_can_be_parsed() -> None:
    entries = [("a", 1), ("", 0), ("b", -1)]
    batch = pa.record_batch({"m": pa.array([entries, [], None], pa.map_(pa.string(), pa.int64()))})
    derived = derive_message(list(batch.schema), "M")
    message_type = message_class(compile_proto(derived.text), "M")
    rows = [message_type.FromString(row) for row in encode(ProtobufFormat(derived.fields), batch)]
    assert [dict(row.m) for row in rows] == [dict(entries), {}, {}]


def test_encodes_every_numeric_type_and_enums() -> None:
    numbers = [0, 1, 127, 128, 2**31 - 1]
    signed = [0, -1, 64, -(2**31), 2**31 - 1]
    batch = pa.record_batch(
        {
            **{name: pa.array(numbers, pa.int32()) for name in "cg"},
            **{name: pa.array(signed, pa.int32()) for name in "aeil"[:3]},
            **{name: pa.array([number << 31 for number in signed], pa.int64()) for name in "bfj"},
            **{name: pa.array([number << 31 for number in numbers], pa.int64()) for name in "dh"},
            "k": [True, False, True, False, True],
            "l": pa.array([0.0, -0.0, 1.5, float("inf"), -1e-40], pa.float32()),
            "m": [0.0, -0.0, 1.5, float("inf"), 5e-324],
            "n": [[1, -1], [], [2**40], [0], [5]],
            "o": pa.array([[1, -1], [], [7], [0], [5]], pa.list_(pa.int32())),
            "q": ["ZERO", "MINUS", None, "ONE", "ONE"],
            "r": [["ONE", "ZERO"], [], None, ["MINUS"], []],
        }
    )
    expected = encode_with_protobuf(compile_proto(EVERY_TYPE_PROTO), "M", batch)
    assert encode(parse_format(EVERY_TYPE_PROTO, batch), batch) == expected


def test_omits_zero_of_enums_without_presence() -> None:
    for values in (pa.array(["ZERO", "ONE"]), pa.array([0, 1], pa.int32())):
        batch = pa.record_batch({"p": values})
        expected = encode_with_protobuf(compile_proto(EVERY_TYPE_PROTO), "M", batch)
        assert encode(parse_format(EVERY_TYPE_PROTO, batch), batch) == expected


def test_encodes_timestamp_as_well_known_type() -> None:
    times = [dt.datetime(2024, 2, 29, 1, 2, 3, 456789), dt.datetime(1901, 1, 1, 0, 0, 0, 5), None]
    batch = pa.record_batch({"a": pa.array(times, pa.timestamp("us", "UTC")), "b": pa.array(times, pa.timestamp("us"))})
    derived = derive_message(list(batch.schema), None)
    expected = []
    for time in times:
        message = message_class(compile_proto(derived.text), derived.name)()
        if time is not None:
            message.a.FromDatetime(time)
            message.b = time.isoformat(timespec="milliseconds")
        expected.append(message.SerializeToString())
    assert encode(ProtobufFormat(derived.fields), batch) == expected
    assert timestamp_pb2.DESCRIPTOR.name in derived.text


def test_writes_proto2_fields_in_order_of_numbers() -> None:
    batch = pa.record_batch({"id": [1, 2], "name": ["a", None], "card": ["x", None], "cash": [None, 5]})
    expected = encode_with_protobuf(compile_proto(ONEOF_PROTO), "Order", batch)
    assert encode(parse_format(ONEOF_PROTO, batch, "Order"), batch) == expected


def test_rejects_row_with_two_members_of_oneof() -> None:
    batch = pa.record_batch({"id": [1], "card": ["x"], "cash": [5]})
    with pytest.raises(InvalidRecordError, match="more than one column of the oneof paid is set"):
        encode(parse_format(ONEOF_PROTO, batch, "Order"), batch)


def test_replaces_invalid_utf8_in_strings_but_not_in_bytes() -> None:
    invalid = pa.array([b"\xff\xfe", b""], pa.binary())
    texts = invalid.view(pa.string())
    entries = pa.MapArray.from_arrays(pa.array([0, 1, 1], pa.int32()), texts[:1], texts[:1])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), texts)
    batch = pa.record_batch(
        {"s": texts, "b": invalid, "m": entries, "l": lists, "large": texts.cast(pa.large_string())}
    )
    fields = [field.with_type(pa.string()) if field.name == "large" else field for field in batch.schema]
    derived = derive_message(fields, "M")
    message_type = message_class(compile_proto(derived.text), "M")
    row, empty_row = (message_type.FromString(row) for row in encode(ProtobufFormat(derived.fields), batch))
    text = "\ufffd\ufffd"
    assert (row.s, row.b, dict(row.m), list(row.l), row.large) == (text, b"\xff\xfe", {text: text}, [text, ""], text)
    assert (empty_row.s, empty_row.b) == ("", b"")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([[1, None]]), "column a has null elements"),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.int32())), "column a has null elements"),
    ],
)
def test_rejects_null_elements(array: pa.Array, message: str) -> None:
    batch = pa.record_batch({"a": array})
    with pytest.raises(InvalidRecordError, match=message):
        encode(ProtobufFormat(derive_message(list(batch.schema), None).fields), batch)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, None, None), (None, None, None)], "column id is null in 1 of 2 rows, but the schema does not allow null"),
        ([(1, {"amount": None}, None), (2, None, None)], "column line.amount is null in 1 of 2 rows"),
        ([(1, None, [{"amount": 1}, {"amount": None}])], "column lines.element.amount is null in 1 of 2 rows"),
    ],
)
def test_rejects_null_in_required_field(rows: list[Any], message: str) -> None:
    batch = _build_order_batch(rows)
    with pytest.raises(InvalidRecordError) as caught:
        encode(parse_format(REQUIRED_PROTO, batch, "Order"), batch)
    assert message in str(caught.value)
    assert "make the field optional" in str(caught.value)


def test_required_fields_of_absent_messages_may_be_null() -> None:
    batch = _build_order_batch([(1, None, None), (2, {"amount": 3}, []), (0, {"amount": 0}, [{"amount": 4}])])
    expected = encode_with_protobuf(compile_proto(REQUIRED_PROTO), "Order", batch)
    assert encode(parse_format(REQUIRED_PROTO, batch, "Order"), batch) == expected


def _build_order_batch(rows: list[Any]) -> pa.RecordBatch:
    line_type = pa.struct([("amount", pa.int64())])
    types = {"id": pa.int64(), "line": line_type, "lines": pa.list_(line_type)}
    columns = zip(*rows, strict=True)
    return pa.record_batch({name: pa.array(column, types[name]) for name, column in zip(types, columns, strict=True)})


def test_rejects_values_that_violate_schema() -> None:
    for column, message in (
        ({"c": pa.array([-1], pa.int32())}, "is out of range for the schema's unsigned type"),
        ({"q": ["TWO"]}, "'TWO' is not a value of the enum"),
    ):
        batch = pa.record_batch(column)
        with pytest.raises(InvalidRecordError, match=message):
            encode(parse_format(EVERY_TYPE_PROTO, batch), batch)
