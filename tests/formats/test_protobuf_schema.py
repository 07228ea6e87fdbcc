"""Protobuf messages derived from columns."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_schema import derive_message
from tests.formats.protobuf_reference import (
    encode,
)


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
