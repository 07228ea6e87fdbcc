"""Messages that protoc compiles and the protobuf package encodes, and rows that this package encodes."""

from __future__ import annotations

import base64
import datetime as dt
import pickle
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.protobuf import ProtobufFormat
from spark_kafka_sink.formats.protobuf_descriptor import parse_descriptor

WELL_KNOWN = Path(protoc.__file__).parent / "_proto"


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
        elif isinstance(value, list):
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


EVERY_TYPE_PROTO = """
syntax = "proto3";
message M {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; fixed32 g = 7; fixed64 h = 8;
  sfixed32 i = 9; sfixed64 j = 10; bool k = 11; float l = 12; double m = 13; repeated sint64 n = 2000;
  repeated int32 o = 15 [packed = false]; E p = 16; optional E q = 17; repeated E r = 18;
  enum E { ZERO = 0; ONE = 1; MINUS = -1; }
}
"""
REQUIRED_PROTO = """
syntax = "proto2";
message Order {
  required int64 id = 1; optional Line line = 2; repeated Line lines = 3;
  message Line { required int64 amount = 1; optional string note = 2; }
}
"""
ONEOF_PROTO = """
syntax = "proto2";
message First { optional int32 x = 1; }
message Order {
  required int64 id = 3; optional string name = 1;
  oneof paid { string card = 7; int64 cash = 6; }
  message Line { optional int32 amount = 1; message Part { optional int32 n = 1; } }
}
"""
