"""The fields of a message that the user or a registry describes, by a descriptor that protoc makes.

    protoc --include_imports --descriptor_set_out=order.desc order.proto

This is read on the driver and needs the package protobuf there. Descriptors come in base64, since options are text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import MissingDependencyError, SchemaError
from spark_kafka_sink.formats.protobuf_fields import TIMESTAMP, MessageField, check_fit
from spark_kafka_sink.records.fields import encode_varint

_WELL_KNOWN = "google/protobuf/"


class ParsedMessage(NamedTuple):
    """`text` is its file's descriptor, as registries take it; `indexes` say which message of the file it is."""

    fields: tuple[MessageField, ...]
    text: str
    name: str
    indexes: bytes


def parse_descriptor(text: str, name: str | None, columns: Sequence[pa.Field]) -> ParsedMessage:
    """SchemaError if the text describes nothing, or not a message that the columns fit."""
    files = _files(_decoded(text))
    message = _found(files, name)
    pool_file = message.file
    foreign = [file.name for file in pool_file.dependencies if not file.name.startswith(_WELL_KNOWN)]
    if foreign:
        raise SchemaError(f"the file of {message.full_name} imports {foreign[0]}; only {_WELL_KNOWN}* can be imported")
    fields = _fields(message, list(columns), "")
    return ParsedMessage(
        fields,
        base64.b64encode(pool_file.serialized_pb).decode(),
        message.full_name,
        encode_message_indexes(_path(message)),
    )


def encode_message_indexes(path: Sequence[int]) -> bytes:
    """As Confluent writes them: their count and each of them, as varints; a 0 alone for a file's first message."""
    if list(path) == [0]:
        return b"\0"
    return b"".join(encode_varint(number) for number in (len(path), *path))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        # Apicurio gives the bytes as they are, in the text of its answer.
        return text.encode()


def _files(data: bytes) -> list[Any]:
    """The descriptors of files: of a set, as protoc writes it, or of one, as a registry gives it."""
    try:
        from google.protobuf import descriptor_pb2
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            'A Protobuf schema needs the package protobuf on the driver: pip install "spark-kafka-sink[protobuf]".'
        ) from error
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        if file.message_type:
            return [file]
        files = list(descriptor_pb2.FileDescriptorSet.FromString(data).file)
    except (DecodeError, UnicodeDecodeError) as error:
        raise SchemaError(f"the Protobuf schema is no descriptor: {error}") from error
    if not any(file.message_type for file in files):
        raise SchemaError("the Protobuf schema describes no message; make it with protoc --descriptor_set_out")
    return files


def _found(files: Sequence[Any], name: str | None) -> Any:
    """The message with this full name; without one the first message of the last file."""
    from google.protobuf import descriptor_pool, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    if not any(file.name == timestamp_pb2.DESCRIPTOR.name for file in files):
        pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        last = pool.FindFileByName(files[-1].name)
        return pool.FindMessageTypeByName(name) if name else next(iter(last.message_types_by_name.values()))
    except (KeyError, StopIteration) as error:
        raise SchemaError(f"the Protobuf schema has no message {name or ''}".rstrip()) from error
    except TypeError as error:
        raise SchemaError(
            f"the Protobuf schema is not whole ({error}); make it with protoc --include_imports --descriptor_set_out"
        ) from error


def _path(message: Any) -> list[int]:
    if message.containing_type is None:
        return [list(message.file.message_types_by_name).index(message.name)]
    return [*_path(message.containing_type), [t.name for t in message.containing_type.nested_types].index(message.name)]


def _fields(message: Any, columns: Sequence[pa.Field], where: str) -> tuple[MessageField, ...]:
    """The fields that columns are written into, in the order of their numbers."""
    by_name = {column.name: column for column in columns}
    unknown = [name for name in by_name if name not in message.fields_by_name]
    if unknown:
        raise SchemaError(f"the message {message.full_name} has no field for the column {where}{unknown[0]}")
    missing = [field.name for field in message.fields if field.is_required and field.name not in by_name]
    if missing:
        raise SchemaError(f"there is no column for the required field {where}{missing[0]} of {message.full_name}")
    fields = sorted(message.fields, key=lambda field: int(field.number))
    return tuple(
        _message_field(field, by_name[field.name].type, f"{where}{field.name}")
        for field in fields
        if field.name in by_name
    )


def _message_field(field: Any, column: pa.DataType, where: str) -> MessageField:
    if pa.types.is_null(column):
        return MessageField(field.name, field.number, "null")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not pa.types.is_map(column):
            raise SchemaError(f"column {where} of type {column} does not fit a map of Protobuf")
        parts = field.message_type.fields_by_name
        if "key" not in parts or "value" not in parts:
            raise SchemaError(f"the Protobuf schema has a map {field.name} without key or value")
        key, value = parts["key"], parts["value"]
        entry = (_single(key, column.key_type, f"{where}.key"), _single(value, column.item_type, f"{where}.value"))
        return MessageField(field.name, field.number, "map", message=entry)
    if field.is_repeated:
        if not pa.types.is_list(column):
            raise SchemaError(f"column {where} of type {column} does not fit a repeated field of Protobuf")
        element = _single(field, column.value_type, f"{where}.element")
        return MessageField(
            field.name, field.number, element.kind, True, field.is_packed, True, None, element.message, element.symbols
        )
    return _single(field, column, where)


def _single(field: Any, column: pa.DataType, where: str) -> MessageField:
    """A value of the field's type."""
    kind = _KINDS[field.type]
    message: tuple[MessageField, ...] = ()
    values = field.enum_type.values if kind == "enum" else ()
    symbols = tuple((value.name, value.number) for value in values)
    if kind == "message" and field.message_type.full_name == TIMESTAMP and not pa.types.is_struct(column):
        kind = "timestamp"
    if kind == "message":
        if not pa.types.is_struct(column):
            raise SchemaError(
                f"column {where} of type {column} does not fit the message {field.message_type.full_name}"
            )
        inner = [column.field(index) for index in range(column.num_fields)]
        message = _fields(field.message_type, inner, f"{where}.")
    else:
        check_fit(kind, column, where)
    oneof = field.containing_oneof
    # An optional field of proto3 stands in a oneof of its own, which protoc makes.
    shared = oneof.name if oneof is not None and len(oneof.fields) > 1 else None
    return MessageField(
        field.name, field.number, kind, has_presence=field.has_presence, oneof=shared, message=message, symbols=symbols
    )


_KINDS = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    10: "group",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""By their numbers in descriptor.proto."""
