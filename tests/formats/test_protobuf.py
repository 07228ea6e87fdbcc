"""Protobuf encoder, compared with the package protobuf."""

from __future__ import annotations

import base64
import datetime as dt
import pickle
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_descriptor import encode_message_indexes, parse_descriptor
from spark_kafka_sink.formats.protobuf_schema import derive_message
from tests.documents import command_lines
from tests.formats.arrow_strategies import SCALAR_COLUMNS, Column, fixed_structs

WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
NAMES = st.lists(st.sampled_from(["a", "b_c", "_d", "Ee", "f1"]), min_size=1, max_size=4, unique=True)


@lru_cache(maxsize=256)
def compile_proto(text: str) -> bytes:
    """Compile a .proto file with protoc and return its FileDescriptorSet."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test.proto").write_text(text)
        output = f"{folder}/set"
        arguments = [f"-I{folder}", f"-I{WELL_KNOWN}", "--include_imports", f"--descriptor_set_out={output}"]
        assert protoc.main(["protoc", *arguments, "test.proto"]) == 0
        return Path(output).read_bytes()


def message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def fill_message(message: Any, row: dict[str, Any]) -> Any:
    for name, value in row.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            for key, item in value:
                if isinstance(item, dict):
                    fill_message(getattr(message, name)[key], item)
                    getattr(message, name)[key].SetInParent()
                else:
                    getattr(message, name)[key] = item
        elif field.is_repeated:
            repeated = getattr(message, name)
            for item in value:
                fill_message(repeated.add(), item) if isinstance(item, dict) else repeated.append(item)
        elif isinstance(value, dict):
            getattr(message, name).SetInParent()
            fill_message(getattr(message, name), value)
        elif isinstance(value, dt.datetime):
            getattr(message, name).FromDatetime(value)
        else:
            setattr(message, name, value)
    return message


def encode_with_protobuf(descriptors: bytes, name: str, batch: pa.RecordBatch) -> list[bytes]:
    message_type = message_class(descriptors, name)
    return [fill_message(message_type(), row).SerializeToString(deterministic=True) for row in batch.to_pylist()]


def encode(row_format: ProtobufFormat, batch: pa.RecordBatch) -> list[bytes]:
    encoder = ColumnsEncoder(row_format, tuple(batch.schema), tuple(range(batch.num_columns)))
    rows: list[bytes] = pickle.loads(pickle.dumps(encoder)).encode(batch).to_pylist()
    return rows


def parse_format(text: str, batch: pa.RecordBatch, name: str | None = None) -> ProtobufFormat:
    schema = base64.b64encode(compile_proto(text)).decode()
    return ProtobufFormat(parse_descriptor(schema, name, list(batch.schema)).fields)


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


EVERY_TYPE_PROTO = """
syntax = "proto3";
message M {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; fixed32 g = 7; fixed64 h = 8;
  sfixed32 i = 9; sfixed64 j = 10; bool k = 11; float l = 12; double m = 13; repeated sint64 n = 2000;
  repeated int32 o = 15 [packed = false]; E p = 16; optional E q = 17; repeated E r = 18;
  enum E { ZERO = 0; ONE = 1; MINUS = -1; }
}
"""


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


def test_encodes_types_without_protobuf_type_as_strings() -> None:
    batch = pa.record_batch({"d": pa.array([dt.date(2024, 1, 2)], pa.date32())})
    derived = derive_message(list(batch.schema), None)
    assert encode(ProtobufFormat(derived.fields), batch) == [b"\n\n2024-01-02"]


def test_derived_message_has_proto_text() -> None:
    fields = [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int32())),
        pa.field("ship_to", pa.struct([pa.field("zip", pa.string())])),
    ]
    assert derive_message(fields, "com.acme.Order").text == (
        'syntax = "proto3";\npackage com.acme;\n\nmessage Order {\n  int64 id = 1;\n  optional string name = 2;\n'
        "  repeated string tags = 3;\n  map<string, int32> counts = 4;\n  ShipToRecord ship_to = 5;\n"
        "  message ShipToRecord {\n    optional string zip = 1;\n  }\n}\n"
    )


ONEOF_PROTO = """
syntax = "proto2";
message First { optional int32 x = 1; }
message Order {
  required int64 id = 3; optional string name = 1;
  oneof paid { string card = 7; int64 cash = 6; }
  message Line { optional int32 amount = 1; message Part { optional int32 n = 1; } }
}
"""


def test_writes_proto2_fields_in_order_of_numbers() -> None:
    batch = pa.record_batch({"id": [1, 2], "name": ["a", None], "card": ["x", None], "cash": [None, 5]})
    expected = encode_with_protobuf(compile_proto(ONEOF_PROTO), "Order", batch)
    assert encode(parse_format(ONEOF_PROTO, batch, "Order"), batch) == expected


@pytest.mark.parametrize(
    ("name", "indexes"), [(None, b"\0"), ("First", b"\0"), ("Order", b"\2\2"), ("Order.Line.Part", b"\6\2\0\0")]
)
def test_message_indexes_identify_message_in_file(name: str | None, indexes: bytes) -> None:
    schema = base64.b64encode(compile_proto(ONEOF_PROTO)).decode()
    columns = [pa.field("id", pa.int64())] if name == "Order" else []
    assert parse_descriptor(schema, name, columns).message_indexes == indexes
    assert encode_message_indexes([3]) == b"\2\6"


def test_rejects_row_with_two_members_of_oneof() -> None:
    batch = pa.record_batch({"id": [1], "card": ["x"], "cash": [5]})
    with pytest.raises(InvalidRecordError, match="more than one column of the oneof paid is set"):
        encode(parse_format(ONEOF_PROTO, batch, "Order"), batch)


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


def test_rejects_values_that_violate_schema() -> None:
    for column, message in (
        ({"c": pa.array([-1], pa.int32())}, "is out of range for the schema's unsigned type"),
        ({"q": ["TWO"]}, "'TWO' is not a value of the enum"),
    ):
        batch = pa.record_batch(column)
        with pytest.raises(InvalidRecordError, match=message):
            encode(parse_format(EVERY_TYPE_PROTO, batch), batch)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("a", pa.string()), "column a of type string does not fit the Protobuf type int32"),
        (pa.field("n", pa.int64()), "column n of type int64 does not fit a repeated Protobuf field"),
        (pa.field("zz", pa.int64()), "the message M has no field for the column zz"),
    ],
)
def test_rejects_columns_that_do_not_fit_message(field: pa.Field, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_descriptor(base64.b64encode(compile_proto(EVERY_TYPE_PROTO)).decode(), None, [field])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("bm9wZQ==", None, "the Protobuf schema"),
        (base64.b64encode(compile_proto(ONEOF_PROTO)).decode(), "Nope", "has no message Nope"),
        (base64.b64encode(compile_proto(ONEOF_PROTO)).decode(), "Order", "no column for the required field id"),
    ],
)
def test_rejects_descriptor_without_matching_message(text: str, name: str | None, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_descriptor(text, name, [])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("a b", pa.int32()), "column a b is not a valid Protobuf name"),
        (pa.field("a", pa.list_(pa.list_(pa.int32()))), "wrap the inner list or map in a struct"),
        (pa.field("a", pa.map_(pa.float64(), pa.int32())), "a Protobuf map cannot have keys"),
    ],
)
def test_rejects_column_without_protobuf_type(field: pa.Field, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        derive_message([field], None)
    assert message in str(caught.value)


def test_accepts_schema_from_documented_protoc_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = (line for line in command_lines("docs/registry.md") if line.startswith("protoc"))
    (tmp_path / "order.proto").write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    monkeypatch.chdir(tmp_path)
    assert protoc.main(line.split()) == 0
    text = base64.b64encode((tmp_path / "order.desc").read_bytes()).decode()
    assert parse_descriptor(text, None, [pa.field("id", pa.int64())]).name == "Order"
