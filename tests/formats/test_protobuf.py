"""Protobuf out of columns is byte for byte what protobuf itself writes for each row."""

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
from tests.formats.arrow_strategies import SIMPLE, Column, fixed_structs

WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
NAMES = st.lists(st.sampled_from(["a", "b_c", "_d", "Ee", "f1"]), min_size=1, max_size=4, unique=True)


@lru_cache(maxsize=256)
def compiled(text: str) -> bytes:
    """A set of descriptors, by protoc."""
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


def fill(message: Any, row: dict[str, Any]) -> Any:
    for name, value in row.items():
        if value is None:
            continue
        kind = message.DESCRIPTOR.fields_by_name[name]
        is_map = kind.message_type is not None and kind.message_type.GetOptions().map_entry
        if is_map:
            for key, item in value:
                if isinstance(item, dict):
                    fill(getattr(message, name)[key], item)
                    getattr(message, name)[key].SetInParent()
                else:
                    getattr(message, name)[key] = item
        elif kind.is_repeated:
            repeated = getattr(message, name)
            for item in value:
                fill(repeated.add(), item) if isinstance(item, dict) else repeated.append(item)
        elif isinstance(value, dict):
            getattr(message, name).SetInParent()
            fill(getattr(message, name), value)
        elif isinstance(value, dt.datetime):
            getattr(message, name).FromDatetime(value)
        else:
            setattr(message, name, value)
    return message


def by_protobuf(descriptors: bytes, name: str, batch: pa.RecordBatch) -> list[bytes]:
    kind = message_class(descriptors, name)
    return [fill(kind(), row).SerializeToString(deterministic=True) for row in batch.to_pylist()]


def encoded(row_format: ProtobufFormat, batch: pa.RecordBatch) -> list[bytes]:
    encoder = ColumnsEncoder(row_format, tuple(batch.schema), tuple(range(batch.num_columns)))
    rows: list[bytes] = pickle.loads(pickle.dumps(encoder)).encode(batch).to_pylist()
    return rows


def described(text: str, batch: pa.RecordBatch, name: str | None = None) -> ProtobufFormat:
    schema = base64.b64encode(compiled(text)).decode()
    return ProtobufFormat(parse_descriptor(schema, name, list(batch.schema)).fields)


@st.composite
def message_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """What Protobuf can write: no list in a list, no null among elements."""

    def among(kind: Column) -> st.SearchStrategy[Column]:
        arrow, values = kind
        # The order in which protobuf writes the entries of a map is its own.
        entries = st.dictionaries(st.text("abc", max_size=2), values, max_size=1).map(lambda made: list(made.items()))
        return st.sampled_from(
            [kind, (pa.list_(arrow), st.lists(values, max_size=3)), (pa.map_(pa.string(), arrow), entries)]
        )

    simple = st.sampled_from(SIMPLE)
    columns = (simple | fixed_structs(simple.flatmap(among), NAMES)).flatmap(among)
    rows = draw(st.integers(0, 5))
    arrays, fields = [], []
    for name in draw(NAMES):
        kind, values = draw(columns)
        is_nullable = draw(st.booleans())
        column = draw(st.lists(st.none() | values if is_nullable else values, min_size=rows, max_size=rows))
        arrays.append(pa.array(column, kind))
        fields.append(pa.field(name, kind, is_nullable))
    return pa.record_batch(arrays, schema=pa.schema(fields)).slice(draw(st.integers(0, rows)))


@given(message_batches())
def test_columns_become_the_bytes_of_protobuf(batch: pa.RecordBatch) -> None:
    derived = derive_message(list(batch.schema), "com.acme.Order")
    expected = by_protobuf(compiled(derived.text), "com.acme.Order", batch)
    assert encoded(ProtobufFormat(derived.fields), batch) == expected
    assert encoded(described(derived.text, batch), batch) == expected


def test_a_map_of_several_entries_is_read_back() -> None:
    entries = [("a", 1), ("", 0), ("b", -1)]
    batch = pa.record_batch({"m": pa.array([entries, [], None], pa.map_(pa.string(), pa.int64()))})
    derived = derive_message(list(batch.schema), "M")
    kind = message_class(compiled(derived.text), "M")
    rows = [kind.FromString(row) for row in encoded(ProtobufFormat(derived.fields), batch)]
    assert [dict(row.m) for row in rows] == [dict(entries), {}, {}]


EVERY_NUMBER = """
syntax = "proto3";
message M {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; fixed32 g = 7; fixed64 h = 8;
  sfixed32 i = 9; sfixed64 j = 10; bool k = 11; float l = 12; double m = 13; repeated sint64 n = 2000;
  repeated int32 o = 15 [packed = false]; E p = 16; optional E q = 17; repeated E r = 18;
  enum E { ZERO = 0; ONE = 1; MINUS = -1; }
}
"""


def test_every_type_of_number_and_enums() -> None:
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
    assert encoded(described(EVERY_NUMBER, batch), batch) == by_protobuf(compiled(EVERY_NUMBER), "M", batch)


def test_enums_without_presence_leave_their_zero_out() -> None:
    for values in (pa.array(["ZERO", "ONE"]), pa.array([0, 1], pa.int32())):
        batch = pa.record_batch({"p": values})
        assert encoded(described(EVERY_NUMBER, batch), batch) == by_protobuf(compiled(EVERY_NUMBER), "M", batch)


def test_a_timestamp_is_the_well_known_message() -> None:
    times = [dt.datetime(2024, 2, 29, 1, 2, 3, 456789), dt.datetime(1901, 1, 1, 0, 0, 0, 5), None]
    batch = pa.record_batch({"a": pa.array(times, pa.timestamp("us", "UTC")), "b": pa.array(times, pa.timestamp("us"))})
    derived = derive_message(list(batch.schema), None)
    expected = []
    for time in times:
        message = message_class(compiled(derived.text), derived.name)()
        if time is not None:
            message.a.FromDatetime(time)
            message.b = time.isoformat(timespec="milliseconds")
        expected.append(message.SerializeToString())
    assert encoded(ProtobufFormat(derived.fields), batch) == expected
    assert timestamp_pb2.DESCRIPTOR.name in derived.text


def test_what_protobuf_has_no_type_for_is_text() -> None:
    batch = pa.record_batch({"d": pa.array([dt.date(2024, 1, 2)], pa.date32())})
    derived = derive_message(list(batch.schema), None)
    assert encoded(ProtobufFormat(derived.fields), batch) == [b"\n\n2024-01-02"]


def test_the_text_of_a_derived_message() -> None:
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


ONEOF = """
syntax = "proto2";
message First { optional int32 x = 1; }
message Order {
  required int64 id = 3; optional string name = 1;
  oneof paid { string card = 7; int64 cash = 6; }
  message Line { optional int32 amount = 1; message Part { optional int32 n = 1; } }
}
"""


def test_a_message_of_proto2_is_written_in_the_order_of_its_numbers() -> None:
    batch = pa.record_batch({"id": [1, 2], "name": ["a", None], "card": ["x", None], "cash": [None, 5]})
    expected = by_protobuf(compiled(ONEOF), "Order", batch)
    assert encoded(described(ONEOF, batch, "Order"), batch) == expected


@pytest.mark.parametrize(
    ("name", "indexes"), [(None, b"\0"), ("First", b"\0"), ("Order", b"\2\2"), ("Order.Line.Part", b"\6\2\0\0")]
)
def test_indexes_say_which_message_of_the_file_it_is(name: str | None, indexes: bytes) -> None:
    schema = base64.b64encode(compiled(ONEOF)).decode()
    columns = [pa.field("id", pa.int64())] if name == "Order" else []
    assert parse_descriptor(schema, name, columns).message_indexes == indexes
    assert encode_message_indexes([3]) == b"\2\6"


def test_two_members_of_a_oneof_in_one_row_are_refused() -> None:
    batch = pa.record_batch({"id": [1], "card": ["x"], "cash": [5]})
    with pytest.raises(InvalidRecordError, match="more than one column of the oneof paid is set"):
        encoded(described(ONEOF, batch, "Order"), batch)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (pa.array([[1, None]]), "column a has null elements"),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.int32())), "column a has null elements"),
    ],
)
def test_null_elements_are_refused(array: pa.Array, words: str) -> None:
    batch = pa.record_batch({"a": array})
    with pytest.raises(InvalidRecordError, match=words):
        encoded(ProtobufFormat(derive_message(list(batch.schema), None).fields), batch)


def test_values_that_the_schema_does_not_allow_are_refused() -> None:
    for column, words in (
        ({"c": pa.array([-1], pa.int32())}, "is out of range for the schema's unsigned type"),
        ({"q": ["TWO"]}, "'TWO' is not a value of the enum"),
    ):
        batch = pa.record_batch(column)
        with pytest.raises(InvalidRecordError, match=words):
            encoded(described(EVERY_NUMBER, batch), batch)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (pa.field("a", pa.string()), "column a of type string does not fit the Protobuf type int32"),
        (pa.field("n", pa.int64()), "column n of type int64 does not fit a repeated Protobuf field"),
        (pa.field("zz", pa.int64()), "the message M has no field for the column zz"),
    ],
)
def test_columns_that_do_not_fit_the_message_are_refused(field: pa.Field, words: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_descriptor(base64.b64encode(compiled(EVERY_NUMBER)).decode(), None, [field])
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("bm9wZQ==", None, "the Protobuf schema"),
        (base64.b64encode(compiled(ONEOF)).decode(), "Nope", "has no message Nope"),
        (base64.b64encode(compiled(ONEOF)).decode(), "Order", "no column for the required field id"),
    ],
)
def test_a_schema_that_describes_no_such_message_is_refused(text: str, name: str | None, words: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_descriptor(text, name, [])
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (pa.field("a b", pa.int32()), "column a b is not a valid Protobuf name"),
        (pa.field("a", pa.list_(pa.list_(pa.int32()))), "wrap the inner list or map in a struct"),
        (pa.field("a", pa.map_(pa.float64(), pa.int32())), "a Protobuf map cannot have keys"),
    ],
)
def test_a_column_that_has_no_type_in_protobuf_is_refused(field: pa.Field, words: str) -> None:
    with pytest.raises(SchemaError) as refused:
        derive_message([field], None)
    assert words in str(refused.value)


def test_the_command_of_the_page_about_formats_makes_a_schema_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = (line for line in command_lines("docs/registry.md") if line.startswith("protoc"))
    (tmp_path / "order.proto").write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    monkeypatch.chdir(tmp_path)
    assert protoc.main(line.split()) == 0
    text = base64.b64encode((tmp_path / "order.desc").read_bytes()).decode()
    assert parse_descriptor(text, None, [pa.field("id", pa.int64())]).name == "Order"
