"""A Protobuf message made from the types of columns: its fields, and its text for a registry.

Fields are numbered in the order of the columns, so columns are to be added at the end. A column that may be null is
`optional`; a null list or map reads like an empty one. Dates, decimals, local times and times of day have no
type in Protobuf and become their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.protobuf_fields import TIMESTAMP, MessageField

DEFAULT_NAME = "TopLevelRecord"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_KEYS = ("string", "int32", "int64", "bool")


class DerivedMessage(NamedTuple):
    fields: tuple[MessageField, ...]
    text: str
    name: str


class _Declared(NamedTuple):
    """A type as it stands in a declaration, its field without name and number, and the messages that it needs."""

    type_name: str
    field: MessageField
    inner: tuple[str, ...] = ()


def derive_message(fields: Sequence[pa.Field], name: str | None) -> DerivedMessage:
    """SchemaError names a column that Protobuf has no type or no name for."""
    full = name or DEFAULT_NAME
    if not _FULL_NAME.fullmatch(full):
        raise SchemaError(f"{full!r} is no name for a message; it takes letters, digits and '_', and dots between them")
    package, _, message = full.rpartition(".")
    message_fields, lines = _message(fields, message, "")
    head = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    if any(TIMESTAMP in line for line in lines):
        head.append('import "google/protobuf/timestamp.proto";')
    return DerivedMessage(message_fields, "\n".join([*head, "", *lines, ""]), full)


def _message(fields: Iterable[pa.Field], name: str, where: str) -> tuple[tuple[MessageField, ...], list[str]]:
    fields = list(fields)
    taken = {field.name for field in fields}
    message_fields, declarations, inner = [], [], []
    for number, field in enumerate(fields, 1):
        if not _NAME.fullmatch(field.name):
            raise SchemaError(
                f"column {where}{field.name}: Protobuf has no such names; rename it to letters, digits and '_'"
            )
        declared = _declared(field, _message_name(field.name, taken), f"{where}{field.name}")
        is_optional = declared.field.has_presence and declared.field.kind not in ("message", "timestamp")
        label = "optional " if is_optional and not declared.field.is_repeated and declared.field.kind != "map" else ""
        declarations.append(f"  {label}{declared.type_name} {field.name} = {number};")
        message_fields.append(_replaced(declared.field, field.name, number))
        inner += [f"  {line}" for line in declared.inner]
    return tuple(message_fields), [f"message {name} {{", *declarations, *inner, "}"]


def _message_name(field: str, taken: set[str]) -> str:
    """The name of the message for a struct: the field `shippingAddress` has the message ShippingAddressRecord."""
    name = "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Record"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _replaced(field: MessageField, name: str, number: int) -> MessageField:
    return MessageField(
        name, number, field.kind, field.is_repeated, field.is_packed, field.has_presence, field.oneof, field.message
    )


def _declared(field: pa.Field, message_name: str, where: str) -> _Declared:
    kind, types = field.type, pa.types
    if types.is_list(kind):
        element = _single(kind.value_type, message_name, f"{where}.element")
        is_packed = element.field.kind not in ("string", "bytes", "message", "timestamp")
        repeated = MessageField("", 0, element.field.kind, True, is_packed, message=element.field.message)
        return _Declared(f"repeated {element.type_name}", repeated, element.inner)
    if types.is_map(kind):
        key = _single(kind.key_type, message_name, f"{where}.key")
        value = _single(kind.item_type, message_name, f"{where}.value")
        if key.type_name not in _KEYS:
            raise SchemaError(f"column {where}: keys of type {kind.key_type} cannot be those of a map in Protobuf")
        entry = (_replaced(key.field, "key", 1), _replaced(value.field, "value", 2))
        return _Declared(
            f"map<{key.type_name}, {value.type_name}>", MessageField("", 0, "map", message=entry), value.inner
        )
    single = _single(kind, message_name, where)
    has_presence = field.nullable or single.field.kind in ("message", "timestamp")
    message_field = MessageField("", 0, single.field.kind, has_presence=has_presence, message=single.field.message)
    return single._replace(field=message_field)


def _single(kind: pa.DataType, message_name: str, where: str) -> _Declared:
    """A type that is neither a list nor a map."""
    if pa.types.is_struct(kind):
        fields, lines = _message((kind.field(index) for index in range(kind.num_fields)), message_name, f"{where}.")
        return _Declared(message_name, MessageField("", 0, "message", message=fields), tuple(lines))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _Declared(TIMESTAMP, MessageField("", 0, "timestamp"))
    name = next((name for is_type, name in _TYPES if is_type(kind)), None)
    if name is None:
        raise SchemaError(
            f"column {where} of type {kind} has no type in Protobuf"
            + ("; wrap the inner list or map in a struct" if pa.types.is_list(kind) or pa.types.is_map(kind) else "")
        )
    return _Declared(name, MessageField("", 0, name))


_TYPES = (
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
"""The first row that a type is of counts."""
