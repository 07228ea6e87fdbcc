"""Descriptors that users give: the message that they select, and columns that do not fit it."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import google.protobuf
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from spark_kafka_sink.errors import MissingDependencyError, SchemaError
from spark_kafka_sink.formats import protobuf_descriptor
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_descriptor import encode_message_indexes, parse_descriptor
from tests.documents import command_lines
from tests.formats.protobuf_reference import (
    EVERY_TYPE_PROTO,
    ONEOF_PROTO,
    compile_proto,
    encode,
    encode_with_protobuf,
)


@pytest.mark.parametrize(
    ("name", "indexes"), [(None, b"\0"), ("First", b"\0"), ("Order", b"\2\2"), ("Order.Line.Part", b"\6\2\0\0")]
)
def test_message_indexes_identify_message_in_file(name: str | None, indexes: bytes) -> None:
    schema = base64.b64encode(compile_proto(ONEOF_PROTO)).decode()
    columns = [pa.field("id", pa.int64())] if name == "Order" else []
    assert parse_descriptor(schema, name, columns).message_indexes == indexes
    assert encode_message_indexes([3]) == b"\2\6"


class _FieldDescriptor5:
    """The FieldDescriptor of protobuf 5.29 to 6.30, which has `label` instead of `is_required` and `is_repeated`."""

    def __init__(self, field: Any) -> None:
        proto = descriptor_pb2.DescriptorProto()
        field.containing_type.CopyToProto(proto)
        self.label = proto.field[field.index].label
        self._field = field

    def __getattr__(self, name: str) -> Any:
        if name in ("is_required", "is_repeated"):
            raise AttributeError(name)
        return getattr(self._field, name)


class _Descriptor5:
    def __init__(self, message: Any) -> None:
        self.fields = [_FieldDescriptor5(field) for field in message.fields]
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def test_parses_descriptor_the_same_with_protobuf_5(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = """syntax = "proto2";
        message M { required int32 a = 1; optional int32 b = 2; repeated int32 c = 3; map<string, int32> d = 4; }"""
    schema = base64.b64encode(compile_proto(proto)).decode()
    columns = [
        pa.field("a", pa.int32()),
        pa.field("b", pa.int32()),
        pa.field("c", pa.list_(pa.int32())),
        pa.field("d", pa.map_(pa.string(), pa.int32())),
    ]
    message = parse_descriptor(schema, None, columns)
    find_message = protobuf_descriptor._find_message
    monkeypatch.setattr(protobuf_descriptor, "_find_message", lambda *arguments: _Descriptor5(find_message(*arguments)))
    assert parse_descriptor(schema, None, columns) == message
    with pytest.raises(SchemaError, match="there is no column for the required field a of M"):
        parse_descriptor(schema, None, columns[1:])


def test_parses_descriptor_set_with_pure_python_protobuf() -> None:
    """Unlike the other implementations, it raises an error if the bytes are parsed as a single file."""
    schema = base64.b64encode(compile_proto(EVERY_TYPE_PROTO)).decode()
    code = f"from {parse_descriptor.__module__} import *; print(parse_descriptor({schema!r}, None, []).name)"
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("M\n", "")


@pytest.mark.parametrize("version", ["4.25.8", "5.28.3"])
def test_rejects_old_protobuf_package(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.protobuf, "__version__", version)
    with pytest.raises(MissingDependencyError, match=rf"in version 5.29 or later: .* Version {version} is installed\."):
        parse_descriptor("", None, [])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (pa.field("a", pa.string()), "column a has type string, which cannot be written as Protobuf type int32"),
        (pa.field("n", pa.int64()), "column n has type int64, which cannot be written to a repeated Protobuf field"),
        (pa.field("zz", pa.int64()), "the message M has no field for the column zz"),
    ],
)
def test_rejects_columns_that_do_not_fit_message(field: pa.Field, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_descriptor(base64.b64encode(compile_proto(EVERY_TYPE_PROTO)).decode(), None, [field])
    assert message in str(caught.value)


def test_rejects_column_of_type_null_for_required_field() -> None:
    schema = base64.b64encode(compile_proto(ONEOF_PROTO)).decode()
    with pytest.raises(SchemaError, match="column id has the type null, but the Protobuf schema does not allow null"):
        parse_descriptor(schema, "Order", [pa.field("id", pa.null())])
    assert parse_descriptor(schema, "Order", [pa.field("id", pa.int64()), pa.field("name", pa.null())])


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
    "name", ["any", "api", "compiler/plugin", "descriptor", "duration", "empty", "field_mask", "struct", "wrappers"]
)
def test_accepts_registry_schema_that_imports_well_known_types(name: str) -> None:
    """A schema from a registry is a single file without the files that it imports."""
    assert parse_descriptor(_build_importing_schema(f"google/protobuf/{name}.proto"), None, []).name == "M"


def test_encodes_column_of_well_known_type() -> None:
    proto = (
        'syntax = "proto3"; import "google/protobuf/wrappers.proto"; message M { google.protobuf.StringValue s = 1; }'
    )
    own_file = descriptor_pb2.FileDescriptorSet.FromString(compile_proto(proto)).file[-1].SerializeToString()
    batch = pa.record_batch({"s": pa.array([{"value": "a"}, None], pa.struct([("value", pa.string())]))})
    message = parse_descriptor(base64.b64encode(own_file).decode(), None, list(batch.schema))
    assert encode(ProtobufFormat(message.fields), batch) == encode_with_protobuf(compile_proto(proto), "M", batch)


@pytest.mark.parametrize(
    ("imported_file", "message"),
    [
        ("confluent/meta.proto", "imports confluent/meta.proto, but only google/protobuf/* can be imported"),
        ("google/type/date.proto", "imports google/type/date.proto, but only google/protobuf/* can be imported"),
        ("google/protobuf/unknown.proto", "the Protobuf schema is incomplete"),
        ("google/protobuf/../any.proto", "the Protobuf schema is incomplete"),
    ],
)
def test_rejects_registry_schema_with_import_that_is_not_provided(imported_file: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_descriptor(_build_importing_schema(imported_file), None, [])
    assert message in str(caught.value)


def test_rejects_imported_file_that_descriptor_contains() -> None:
    files = [
        descriptor_pb2.FileDescriptorProto(name="base.proto", message_type=[{"name": "Base"}]),
        descriptor_pb2.FileDescriptorProto(name="m.proto", dependency=["base.proto"], message_type=[{"name": "M"}]),
    ]
    schema = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()
    with pytest.raises(SchemaError, match=r"the Protobuf schema imports base.proto, but only google/protobuf/\*"):
        parse_descriptor(schema, "M", [])
    assert parse_descriptor(schema, "Base", []).name == "Base"


def test_suggests_include_imports_if_descriptor_lacks_imported_file() -> None:
    """The file of the message imports nothing, so the schema is complete once protoc includes the imports."""
    files = [
        descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["common.proto"], message_type=[{"name": "A"}]),
        descriptor_pb2.FileDescriptorProto(name="order.proto", message_type=[{"name": "Order"}]),
    ]
    schema = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()).decode()
    with pytest.raises(SchemaError, match=r"is incomplete .*; generate it with protoc --include_imports"):
        parse_descriptor(schema, "Order", [])


def _build_importing_schema(imported_file: str) -> str:
    file = descriptor_pb2.FileDescriptorProto(
        name="default", syntax="proto3", dependency=[imported_file], message_type=[{"name": "M"}]
    )
    return base64.b64encode(file.SerializeToString()).decode()


def test_accepts_schema_from_documented_protoc_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = (line for line in command_lines("docs/registry.md") if line.startswith("protoc"))
    (tmp_path / "order.proto").write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    monkeypatch.chdir(tmp_path)
    assert protoc.main(line.split()) == 0
    text = base64.b64encode((tmp_path / "order.desc").read_bytes()).decode()
    assert parse_descriptor(text, None, [pa.field("id", pa.int64())]).name == "Order"
