"""Parser of Protobuf descriptors from the user or from a schema registry.

Use protoc to generate a descriptor:

    protoc --include_imports --descriptor_set_out=order.desc order.proto

Descriptors are parsed on the driver, which needs the protobuf package. They are base64 text, because options are text.

The functions take the protobuf package's own objects, which have no type stubs: `message` is a Descriptor, and `field`
is a FieldDescriptor.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import MissingDependencyError, SchemaError
from spark_kafka_sink.formats.protobuf_fields import TIMESTAMP, MessageField, check_column_type
from spark_kafka_sink.records.fields import encode_varint

_MIN_PROTOBUF_VERSION = (5, 29)
"""The first version of the protobuf package in which a FieldDescriptor has `is_packed`."""
_MISSING_PACKAGE_MESSAGE = (
    "A Protobuf schema requires the protobuf package on the driver, in version 5.29 or later: "
    'pip install "spark-kafka-sink[protobuf]".'
)
_WELL_KNOWN_PREFIX = "google/protobuf/"
"""The directory of the files that Protobuf itself provides."""
_PROVIDED_MODULES = (
    "any_pb2",
    "api_pb2",
    "compiler.plugin_pb2",
    "descriptor_pb2",
    "duration_pb2",
    "empty_pb2",
    "field_mask_pb2",
    "source_context_pb2",
    "struct_pb2",
    "timestamp_pb2",
    "type_pb2",
    "wrappers_pb2",
)
"""The modules of google.protobuf that contain the files that Protobuf provides."""


class ParsedMessage(NamedTuple):
    """A message from a descriptor."""

    fields: tuple[MessageField, ...]
    """The fields that have a column."""
    encoded_descriptor: str
    """The descriptor of the message's file as base64, which a registry accepts."""
    name: str
    """The message's full name."""
    message_indexes: bytes
    """The message's position in the file, in Confluent's encoding."""


def parse_descriptor(encoded_descriptor: str, message_name: str | None, columns: Sequence[pa.Field]) -> ParsedMessage:
    """Parse a descriptor, and return the message that the columns are written to.

    Raise SchemaError if the descriptor is invalid or if the columns do not fit the message. Raise
    MissingDependencyError if the protobuf package is missing or too old.

    `encoded_descriptor`: a FileDescriptorSet or FileDescriptorProto as base64.
    `message_name`: the message's full name. If it is None, the first message of the last file is used.
    """
    files = _parse_files(_decode_descriptor(encoded_descriptor))
    # A single file comes from a registry, without its imports, so it may import only what Protobuf provides. Among
    # several files from protoc, any may lack an import, and `_find_message` reports that.
    if len(files) == 1:
        _check_imports(files[0].dependency)
    message = _find_message(files, message_name)
    # Readers find only the message's own file in the registry, even if the descriptor contains the imported files.
    _check_imports([dependency.name for dependency in message.file.dependencies])
    fields = _select_fields(message, list(columns), path_prefix="")
    return ParsedMessage(
        fields=fields,
        encoded_descriptor=base64.b64encode(message.file.serialized_pb).decode(),
        name=message.full_name,
        message_indexes=encode_message_indexes(_find_message_path(message)),
    )


def _check_imports(imported_names: Sequence[str]) -> None:
    """Raise SchemaError if a file imports a file that Protobuf does not provide."""
    texts = map(str, imported_names)  # a name that is not UTF-8 is a bytes object
    unsupported_imports = [name for name in texts if not name.startswith(_WELL_KNOWN_PREFIX)]
    if unsupported_imports:
        raise SchemaError(
            f"the Protobuf schema imports {unsupported_imports[0]}, but only {_WELL_KNOWN_PREFIX}* can be imported"
        )


def encode_message_indexes(message_path: Sequence[int]) -> bytes:
    """Encode the position of a message in Confluent's format: the number of indexes and the indexes, as varints.

    The first message of a file is encoded as a single 0.

    `message_path`: the index of the outermost enclosing message in the file, then an index for each level of nesting.
    """
    if list(message_path) == [0]:
        return b"\0"
    return b"".join(encode_varint(number) for number in (len(message_path), *message_path))


def _decode_descriptor(encoded_descriptor: str) -> bytes:
    try:
        return base64.b64decode(encoded_descriptor, validate=True)
    except (binascii.Error, ValueError):
        # Apicurio does not use base64. It returns the bytes themselves as text.
        return encoded_descriptor.encode()


def _parse_files(descriptor_bytes: bytes) -> list[Any]:
    """Parse a FileDescriptorSet (from protoc) or a FileDescriptorProto (from a registry).

    Return the FileDescriptorProto of each file. Raise SchemaError if the bytes are neither, or if no file has a
    message. Raise MissingDependencyError if the protobuf package is missing or too old.
    """
    try:
        from google.protobuf import __version__, descriptor_pb2
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError as error:
        raise MissingDependencyError(_MISSING_PACKAGE_MESSAGE) from error
    if tuple(map(int, __version__.split(".")[:2])) < _MIN_PROTOBUF_VERSION:
        raise MissingDependencyError(f"{_MISSING_PACKAGE_MESSAGE} Version {__version__} is installed.")
    # Parsing a FileDescriptorSet as a FileDescriptorProto gives one without messages. The implementation of protobuf in
    # pure Python raises an error instead, because it checks that names are valid UTF-8.
    with contextlib.suppress(DecodeError, UnicodeDecodeError):
        file = descriptor_pb2.FileDescriptorProto.FromString(descriptor_bytes)
        if file.message_type:
            return [file]
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(descriptor_bytes).file)
    except (DecodeError, UnicodeDecodeError) as error:
        raise SchemaError(f"the Protobuf schema is not a valid descriptor: {error}") from error
    if not any(file.message_type for file in files):
        raise SchemaError("the Protobuf schema has no messages; generate it with protoc --descriptor_set_out")
    return files


def _find_message(files: Sequence[Any], message_name: str | None) -> Any:
    """Return the descriptor of the message with this full name; by default the first message of the last file.

    Raise SchemaError if there is no such message, or if an imported file is missing.
    """
    try:
        pool = _build_pool(files)
        last_file = pool.FindFileByName(files[-1].name)
        if message_name:
            return pool.FindMessageTypeByName(message_name)
        return next(iter(last_file.message_types_by_name.values()))
    except (KeyError, StopIteration) as error:
        raise SchemaError(f"the Protobuf schema has no message {message_name or ''}".rstrip()) from error
    except TypeError as error:
        raise SchemaError(
            f"the Protobuf schema is incomplete ({error}); generate it with protoc --include_imports "
            "--descriptor_set_out"
        ) from error


def _build_pool(files: Sequence[Any]) -> Any:
    """Return a DescriptorPool of the files and of the imported files that Protobuf provides.

    Raise TypeError if an imported file is missing.
    """
    from google.protobuf import descriptor_pool  # _parse_files reports it if the package is missing

    pool = descriptor_pool.DescriptorPool()
    provided_files = _load_provided_files()
    added_names = {file.name for file in files}

    def add_provided_file(name: str) -> None:
        """Add a file that Protobuf provides, after the files that it imports."""
        if name in added_names or name not in provided_files:
            return
        added_names.add(name)
        for dependency in provided_files[name].dependencies:
            add_provided_file(dependency.name)
        pool.AddSerializedFile(provided_files[name].serialized_pb)

    for file in files:
        for name in file.dependency:
            add_provided_file(name)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _load_provided_files() -> dict[str, Any]:
    """Return the FileDescriptor of each file that the protobuf package contains, by name."""
    modules = [importlib.import_module(f"google.protobuf.{name}") for name in _PROVIDED_MODULES]
    return {module.DESCRIPTOR.name: module.DESCRIPTOR for module in modules}


def _find_message_path(message: Any) -> list[int]:
    """Return the index of the outermost enclosing message in the file, then an index for each level of nesting."""
    if message.containing_type is None:
        return [list(message.file.message_types_by_name).index(message.name)]
    return [
        *_find_message_path(message.containing_type),
        [nested_message.name for nested_message in message.containing_type.nested_types].index(message.name),
    ]


def _select_fields(message: Any, columns: Sequence[pa.Field], path_prefix: str) -> tuple[MessageField, ...]:
    """Return the message's fields that have a column, in the order of their numbers.

    Raise SchemaError if a column has no field or its type does not fit, or if a required field has no column.

    `path_prefix`: text before each column's name in errors, such as `address.`; empty for the outermost message.
    """
    columns_by_name = {column.name: column for column in columns}
    unknown_columns = [name for name in columns_by_name if name not in message.fields_by_name]
    if unknown_columns:
        raise SchemaError(
            f"the message {message.full_name} has no field for the column {path_prefix}{unknown_columns[0]}"
        )
    missing_columns = [
        field.name for field in message.fields if _find_label(field) == "required" and field.name not in columns_by_name
    ]
    if missing_columns:
        raise SchemaError(
            f"there is no column for the required field {path_prefix}{missing_columns[0]} of {message.full_name}"
        )
    fields = sorted(message.fields, key=lambda field: int(field.number))
    return tuple(
        _build_field(field, columns_by_name[field.name].type, f"{path_prefix}{field.name}")
        for field in fields
        if field.name in columns_by_name
    )


def _build_field(field: Any, data_type: pa.DataType, path: str) -> MessageField:
    """Build a map, repeated or singular field for a column. Raise SchemaError if the column's type does not fit."""
    if pa.types.is_null(data_type):
        if _find_label(field) == "required":
            raise SchemaError(f"column {path} has the type null, but the Protobuf schema does not allow null")
        return MessageField(field.name, field.number, type_name="null")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _build_map_field(field, data_type, path)
    if _find_label(field) == "repeated":
        return _build_repeated_field(field, data_type, path)
    return _build_singular_field(field, data_type, path)


def _build_map_field(field: Any, data_type: pa.DataType, path: str) -> MessageField:
    """Build a map field for a map column. Raise SchemaError if the column is not a map or does not fit."""
    # Protobuf represents a map as a repeated message, the entry, with the fields `key` and `value`.
    if not pa.types.is_map(data_type):
        raise SchemaError(f"column {path} has type {data_type}, which cannot be written to a Protobuf map")
    entry_fields = field.message_type.fields_by_name
    if "key" not in entry_fields or "value" not in entry_fields:
        raise SchemaError(f"the Protobuf schema has a map {field.name} without key or value")
    entry = (
        _build_singular_field(entry_fields["key"], data_type.key_type, f"{path}.key"),
        _build_singular_field(entry_fields["value"], data_type.item_type, f"{path}.value"),
    )
    return MessageField(field.name, field.number, type_name="map", inner_fields=entry)


def _build_repeated_field(field: Any, data_type: pa.DataType, path: str) -> MessageField:
    """Build a repeated field for a list column. Raise SchemaError if the column is not a list or does not fit."""
    if not pa.types.is_list(data_type):
        raise SchemaError(f"column {path} has type {data_type}, which cannot be written to a repeated Protobuf field")
    element = _build_singular_field(field, data_type.value_type, f"{path}.element")
    return MessageField(
        field.name,
        field.number,
        type_name=element.type_name,
        is_repeated=True,
        is_packed=field.is_packed,
        inner_fields=element.inner_fields,
        enum_values=element.enum_values,
    )


def _build_singular_field(field: Any, data_type: pa.DataType, path: str) -> MessageField:
    """Build a field with a single value: a singular field, or an element of a repeated field or map.

    Raise SchemaError if the column's type does not fit.
    """
    type_name = _TYPE_NAMES[field.type]
    inner_fields: tuple[MessageField, ...] = ()
    enum_values: tuple[tuple[str, int], ...] = ()
    if type_name == "enum":
        enum_values = tuple((value.name, value.number) for value in field.enum_type.values)
    # Timestamp is a message of two fields, so a struct column is encoded like any other message.
    if type_name == "message" and field.message_type.full_name == TIMESTAMP and not pa.types.is_struct(data_type):
        type_name = "timestamp"
    if type_name == "message":
        if not pa.types.is_struct(data_type):
            raise SchemaError(
                f"column {path} has type {data_type}, which cannot be written as Protobuf message "
                f"{field.message_type.full_name}"
            )
        inner_columns = [data_type.field(index) for index in range(data_type.num_fields)]
        inner_fields = _select_fields(field.message_type, inner_columns, f"{path}.")
    else:
        check_column_type(type_name, data_type, path)
    return MessageField(
        field.name,
        field.number,
        type_name=type_name,
        has_presence=field.has_presence,
        is_required=_find_label(field) == "required",
        oneof=_find_oneof_name(field),
        inner_fields=inner_fields,
        enum_values=enum_values,
    )


def _find_label(field: Any) -> str:
    """Return the label of a field: `optional`, `required` or `repeated`."""
    # The protobuf package has these two properties from version 6.31 on. `label` is deprecated there and absent in 7.
    if hasattr(field, "is_required"):
        return "required" if field.is_required else "repeated" if field.is_repeated else "optional"
    return _LABELS[field.label]


def _find_oneof_name(field: Any) -> str | None:
    """Return the name of the oneof that contains the field, or None if the field is not in a oneof with others."""
    oneof = field.containing_oneof
    # protoc adds a oneof for each optional proto3 field. A oneof with a single field needs no check, so ignore it.
    return str(oneof.name) if oneof is not None and len(oneof.fields) > 1 else None


_TYPE_NAMES = {
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
"""Name of each type in .proto syntax, by its number in FieldDescriptorProto.Type."""
_LABELS = {1: "optional", 2: "required", 3: "repeated"}
"""Each label in .proto syntax, by its number in FieldDescriptorProto.Label."""
