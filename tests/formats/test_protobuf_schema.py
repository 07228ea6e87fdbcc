"""Protobuf messages derived from columns."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_schema import derive_message
from tests.formats.protobuf_reference import compile_proto, encode


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


@pytest.mark.parametrize("name", ["com.google.shop.Order", "com.acme.google", "google.google.Order", "google.Order"])
def test_timestamps_compile_in_package_with_component_google(name: str) -> None:
    time = pa.timestamp("us", "UTC")
    fields = [
        pa.field("a", time),
        pa.field("b", pa.list_(time)),
        pa.field("c", pa.map_(pa.string(), time)),
        pa.field("d", pa.struct([("google", time)])),
    ]
    assert compile_proto(derive_message(fields, name).text)


@pytest.mark.parametrize("name", ["google", "google.protobuf", "google.protobuf.Timestamp"])
def test_rejects_message_whose_name_conflicts_with_imported_timestamp(name: str) -> None:
    with pytest.raises(SchemaError, match=f"^{name!r} cannot be the name of a message with timestamps"):
        derive_message([pa.field("at", pa.timestamp("us", "UTC"))], name)
    assert compile_proto(derive_message([pa.field("at", pa.int64())], name).text)


def test_other_packages_refer_to_timestamp_without_leading_dot() -> None:
    """The text is registered, so a change would give existing subjects new schema ids."""
    fields = [pa.field("at", pa.timestamp("us", "UTC"))]
    for name in ("com.acme.Order", "google.Order"):
        assert "\n  google.protobuf.Timestamp at = 1;\n" in derive_message(fields, name).text


@pytest.mark.parametrize(
    ("names", "json_name"), [(("a_b", "aB"), "aB"), (("_x", "X"), "X"), (("a_1", "a1"), "a1"), (("b__c", "b_c"), "bC")]
)
def test_rejects_columns_with_same_json_name(names: tuple[str, str], json_name: str) -> None:
    fields = [pa.field(name, pa.int32()) for name in names]
    message = f"columns {names[0]} and {names[1]} have the same JSON name in Protobuf, {json_name}; rename one of them"
    with pytest.raises(SchemaError, match=message):
        derive_message(fields, None)
    with pytest.raises(SchemaError, match=rf"columns s\.{names[0]} and s\.{names[1]} have"):
        derive_message([pa.field("s", pa.struct(fields))], None)


@pytest.mark.parametrize("names", [("m", "MEntry"), ("MEntry", "m"), ("a_b", "A_b")])
def test_rejects_columns_that_conflict_with_entries_of_map(names: tuple[str, str]) -> None:
    fields = [pa.field(name, pa.string() if name == "MEntry" else pa.map_(pa.string(), pa.string())) for name in names]
    with pytest.raises(SchemaError, match=r"conflict, because Protobuf represents the entries of a map"):
        derive_message(fields, None)


def test_similar_names_compile() -> None:
    entries = pa.map_(pa.string(), pa.string())
    fields = [pa.field(name, pa.int32()) for name in ("ab", "a_b", "AB", "MEntry", "NRecord")]
    fields += [pa.field("n", entries), pa.field("o", pa.struct([("OEntry", entries)]))]
    assert compile_proto(derive_message(fields, None).text)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("a b", pa.int32()), "the name of column a b is not valid in Protobuf"),
        (pa.field("a", pa.list_(pa.list_(pa.int32()))), "wrap the inner list or map in a struct"),
        (pa.field("a", pa.map_(pa.float64(), pa.int32())), "a Protobuf map cannot have keys"),
    ],
)
def test_rejects_column_without_protobuf_type(field: pa.Field, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        derive_message([field], None)
    assert message in str(caught.value)
