"""Protobuf messages derived from column types: the fields, and the .proto text for a schema registry.

Fields are numbered in column order, so users must add new columns at the end. Nullable columns become `optional`
fields. Readers cannot distinguish a null list or map from an empty one. Protobuf has no types for dates, times of day,
decimals, or timestamps without a time zone, so columns of these types become strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.protobuf_fields import TIMESTAMP, MessageField

DEFAULT_NAME = "TopLevelRecord"
"""Name of a derived message if the user sets none."""
_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_MAP_KEY_TYPES = ("string", "int32", "int64", "bool")
"""Those types of derived fields that Protobuf allows as map keys."""
_UNPACKABLE_TYPES = ("string", "bytes", "message", "timestamp")
"""Types whose repeated fields cannot be packed, because their elements have a length prefix."""
_MESSAGE_TYPES = ("message", "timestamp")
"""Types whose fields always have presence, and need no `optional` label."""


class DerivedMessage(NamedTuple):
    """A message that was derived from columns."""

    fields: tuple[MessageField, ...]
    text: str
    """The message's file in .proto syntax."""
    name: str
    """The message's full name, including its package."""


class _MessageDeclaration(NamedTuple):
    """A message: its fields, for encoding, and its declaration as text."""

    fields: tuple[MessageField, ...]
    lines: list[str]
    """The lines that declare the message, in .proto syntax."""


class _FieldDeclaration(NamedTuple):
    """The declaration of a field that has no name or number yet."""

    type_name: str
    """The type in .proto syntax."""
    proto_field: MessageField
    """The field. Its name is "" and its number 0 until the field is added to a message or a map entry."""
    nested_message_lines: tuple[str, ...] = ()
    """The lines that declare the messages to which the type refers."""


def derive_message(columns: Sequence[pa.Field], name: str | None) -> DerivedMessage:
    """Derive a message from columns. Raise SchemaError if Protobuf does not support a name or type.

    `name`: the message's full name; DEFAULT_NAME if it is None.
    """
    full_name = name or DEFAULT_NAME
    if not _FULL_NAME_PATTERN.fullmatch(full_name):
        raise SchemaError(
            f"{full_name!r} is not a valid message name; use letters, digits and '_', and dots as separators"
        )
    package, _, name_in_package = full_name.rpartition(".")
    declaration = _declare_message(columns, name_in_package, path_prefix="")
    message_text = "\n".join(declaration.lines)
    file_header = ['syntax = "proto3";']
    if package:
        file_header.append(f"package {package};")
    if TIMESTAMP in message_text:
        if f"{TIMESTAMP}.".startswith(f"{full_name}."):
            raise SchemaError(
                f"{full_name!r} cannot be the name of a message with timestamps, because it conflicts with the "
                f"imported message {TIMESTAMP}; choose another name"
            )
        file_header.append('import "google/protobuf/timestamp.proto";')
    if "google" in full_name.split(".")[1:]:
        # protoc would look up the name in a package such as com.google. The dot makes the name absolute. In all other
        # packages, the dot is left out, because it would change the texts that are already registered.
        message_text = message_text.replace(TIMESTAMP, f".{TIMESTAMP}")
    return DerivedMessage(declaration.fields, "\n".join([*file_header, "", message_text, ""]), full_name)


def _declare_message(columns: Iterable[pa.Field], name: str, path_prefix: str) -> _MessageDeclaration:
    """Declare a message with one field per column. Raise SchemaError if Protobuf does not support a name or type.

    `path_prefix`: text before each column's name in its path, such as `address.`; empty for the outermost message.
    """
    columns = list(columns)
    _check_name_conflicts(columns, path_prefix)
    used_names = {column.name for column in columns}
    message_fields, declaration_lines, nested_message_lines = [], [], []
    for number, column in enumerate(columns, 1):
        if not _NAME_PATTERN.fullmatch(column.name):
            raise SchemaError(
                f"the name of column {path_prefix}{column.name} is not valid in Protobuf; use only letters, digits and "
                "'_', and no digit at the beginning"
            )
        # Also reserve a name for a column that needs no message. Otherwise the message names of later columns would
        # change if this column became a struct.
        nested_message_name = _reserve_nested_message_name(column.name, used_names)
        declaration = _declare_field(column, nested_message_name, f"{path_prefix}{column.name}")
        message_field = replace(declaration.proto_field, name=column.name, number=number)
        is_scalar = not message_field.is_repeated and message_field.type_name not in ("map", *_MESSAGE_TYPES)
        label = "optional " if is_scalar and message_field.has_presence else ""
        declaration_lines.append(f"  {label}{declaration.type_name} {column.name} = {number};")
        message_fields.append(message_field)
        nested_message_lines += [f"  {line}" for line in declaration.nested_message_lines]
    lines = [f"message {name} {{", *declaration_lines, *nested_message_lines, "}"]
    return _MessageDeclaration(tuple(message_fields), lines)


def _check_name_conflicts(columns: Sequence[pa.Field], path_prefix: str) -> None:
    """Raise SchemaError if protoc would derive the same name from two columns of a message."""
    columns_by_json_name: dict[str, str] = {}
    columns_by_declared_name = {column.name: column.name for column in columns}
    for column in columns:
        first_part, *other_parts = column.name.split("_")
        json_name = first_part + _to_camel_case(other_parts)
        other_column = columns_by_json_name.setdefault(json_name, column.name)
        if other_column != column.name:
            raise SchemaError(
                f"columns {path_prefix}{other_column} and {path_prefix}{column.name} have the same JSON name in "
                f"Protobuf, {json_name}; rename one of them"
            )
        if not pa.types.is_map(column.type):
            continue
        entry_name = _to_camel_case(column.name.split("_")) + "Entry"
        other_column = columns_by_declared_name.setdefault(entry_name, column.name)
        if other_column != column.name:
            raise SchemaError(
                f"columns {path_prefix}{other_column} and {path_prefix}{column.name} conflict, because Protobuf "
                f"represents the entries of a map as a message with the name {entry_name}; rename one of them"
            )


def _to_camel_case(parts: Iterable[str]) -> str:
    """Join the parts of a name, each with an upper-case first letter."""
    return "".join(part[:1].upper() + part[1:] for part in parts)


def _reserve_nested_message_name(column_name: str, used_names: set[str]) -> str:
    """Return an unused name for the message of a struct, and add the name to `used_names`.

    For example, the name for the column `shippingAddress` is ShippingAddressRecord.
    """
    name = _to_camel_case(column_name.split("_")) + "Record"
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name


def _declare_field(column: pa.Field, message_name: str, path: str) -> _FieldDeclaration:
    """Declare a field for a column of any type. Raise SchemaError if Protobuf has no type for it.

    `message_name`: the name of the message to declare if the column, or its elements or map values, are structs.
    """
    if pa.types.is_list(column.type):
        return _declare_repeated_field(column.type, message_name, path)
    if pa.types.is_map(column.type):
        return _declare_map_field(column.type, message_name, path)
    declaration = _declare_element(column.type, message_name, path)
    has_presence = column.nullable or declaration.proto_field.type_name in _MESSAGE_TYPES
    return declaration._replace(proto_field=replace(declaration.proto_field, has_presence=has_presence))


def _declare_repeated_field(list_type: pa.DataType, message_name: str, path: str) -> _FieldDeclaration:
    element = _declare_element(list_type.value_type, message_name, f"{path}.element")
    is_packed = element.proto_field.type_name not in _UNPACKABLE_TYPES
    repeated_field = replace(element.proto_field, is_repeated=True, is_packed=is_packed)
    return _FieldDeclaration(f"repeated {element.type_name}", repeated_field, element.nested_message_lines)


def _declare_map_field(map_type: pa.DataType, message_name: str, path: str) -> _FieldDeclaration:
    key = _declare_element(map_type.key_type, message_name, f"{path}.key")
    value = _declare_element(map_type.item_type, message_name, f"{path}.value")
    if key.type_name not in _MAP_KEY_TYPES:
        raise SchemaError(f"column {path}: a Protobuf map cannot have keys of type {map_type.key_type}")
    entry_fields = (
        replace(key.proto_field, name="key", number=1),
        replace(value.proto_field, name="value", number=2),
    )
    return _FieldDeclaration(
        f"map<{key.type_name}, {value.type_name}>",
        MessageField(name="", number=0, type_name="map", inner_fields=entry_fields),
        value.nested_message_lines,
    )


def _declare_element(data_type: pa.DataType, message_name: str, path: str) -> _FieldDeclaration:
    """Declare a field that is neither a list nor a map: a singular field, or an element of a list or map.

    Raise SchemaError if Protobuf has no type for it.
    """
    if pa.types.is_struct(data_type):
        struct_columns = (data_type.field(index) for index in range(data_type.num_fields))
        message = _declare_message(struct_columns, message_name, path_prefix=f"{path}.")
        struct_field = MessageField(name="", number=0, type_name="message", inner_fields=message.fields)
        return _FieldDeclaration(message_name, struct_field, nested_message_lines=tuple(message.lines))
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return _FieldDeclaration(TIMESTAMP, MessageField(name="", number=0, type_name="timestamp"))
    type_name = next((type_name for is_type, type_name in _SCALAR_TYPES if is_type(data_type)), None)
    if type_name is None:
        is_nested = pa.types.is_list(data_type) or pa.types.is_map(data_type)
        remedy = "; wrap the inner list or map in a struct" if is_nested else ""
        raise SchemaError(f"column {path} of type {data_type} has no corresponding Protobuf type{remedy}")
    return _FieldDeclaration(type_name, MessageField(name="", number=0, type_name=type_name))


_SCALAR_TYPES = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_int64, "int64"),
    (pa.types.is_integer, "int32"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_decimal128, "string"),
    (pa.types.is_date32, "string"),
    (pa.types.is_timestamp, "string"),
    (pa.types.is_time64, "string"),
)
"""Protobuf type by Arrow type. The first entry that matches applies."""
