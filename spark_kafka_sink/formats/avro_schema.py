"""Avro schemas: made from the types of columns, or read from the user's JSON.

A schema made for plain `avro` is the one of Spark's `to_avro`: a record `topLevelRecord` and `[type, "null"]` where a
column may be null. One that goes to a registry has `["null", type]` with null as the default, because without a default
no later version could add or drop the column under the registry's usual rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.schema_json import parsed_json

DEFAULT_NAME = "topLevelRecord"
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BYTES_FOR_DIGITS = [1] + [(int("9" * digits).bit_length() + 8) // 8 for digits in range(1, 39)]
"""The fewest bytes that hold a signed number of this many digits."""


def derive_schema(fields: Sequence[pa.Field], name: str | None, *, null_first: bool) -> str:
    """The schema of columns as JSON. SchemaError names a column that Avro has no type or no name for."""
    space, _, record = (name or DEFAULT_NAME).rpartition(".")
    return json.dumps(_Derivation(null_first).record(fields, record, space, ""), separators=(",", ":"))


class _Derivation:
    def __init__(self, null_first: bool) -> None:
        self._null_first = null_first

    def record(self, fields: Sequence[pa.Field], name: str, space: str, where: str) -> dict[str, Any]:
        inner = f"{space}.{name}" if space else name
        children = [self._field(field, inner, f"{where}{field.name}") for field in fields]
        schema: dict[str, Any] = {"type": "record", "name": name, "fields": children}
        return {**schema, "namespace": space} if space else schema

    def _field(self, field: pa.Field, space: str, where: str) -> dict[str, Any]:
        if not _NAME.fullmatch(field.name):
            raise SchemaError(f"column {where}: Avro has no such names; rename it to letters, digits and '_'")
        child = {"name": field.name, "type": self._nullable(field, field.name, space, where)}
        return {**child, "default": None} if field.nullable and self._null_first else child

    def _nullable(self, field: pa.Field, name: str, space: str, where: str) -> Any:
        kind = self._type(field.type, name, space, where)
        if not field.nullable or kind == "null":
            return kind
        return ["null", kind] if self._null_first else [kind, "null"]

    def _type(self, kind: pa.DataType, name: str, space: str, where: str) -> Any:
        types = pa.types
        simple = next((avro for is_kind, avro in _SIMPLE if is_kind(kind)), None)
        if simple is not None:
            return simple
        if types.is_decimal128(kind):
            size = BYTES_FOR_DIGITS[kind.precision]
            fixed = {"type": "fixed", "name": "fixed", "namespace": f"{space}.{name}", "size": size}
            return {**fixed, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        if types.is_list(kind):
            return {"type": "array", "items": self._nullable(kind.value_field, name, space, f"{where}.element")}
        if types.is_map(kind) and types.is_string(kind.key_type):
            return {"type": "map", "values": self._nullable(kind.item_field, name, space, f"{where}.value")}
        if types.is_struct(kind):
            return self.record([kind.field(i) for i in range(kind.num_fields)], name, space, f"{where}.")
        raise SchemaError(f"column {where} of type {kind} has no type in Avro; cast it to a string")


def _timestamp(kind: pa.DataType, has_zone: bool) -> bool:
    return bool(pa.types.is_timestamp(kind)) and (kind.tz is not None) == has_zone


_SIMPLE: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (lambda kind: _timestamp(kind, True), {"type": "long", "logicalType": "timestamp-micros"}),
    (lambda kind: _timestamp(kind, False), {"type": "long", "logicalType": "local-timestamp-micros"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)


# --- what a schema must have, by its type: JSON may have anything in its place


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_schema(value: Any) -> bool:
    return isinstance(value, str | Mapping) or _is_union(value)


def _is_union(value: Any) -> bool:
    """A union is written by the number of the branch, in one byte."""
    return isinstance(value, list) and len(value) <= 64 and all(isinstance(one, str | Mapping) for one in value)


def _are_fields(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, Mapping) and _is_name(one.get("name")) and _is_schema(one.get("type")) for one in value
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(_is_name(one) for one in value)


_WORDS: dict[Callable[[Any], bool], str] = {
    _is_name: "a name",
    _is_number: "a whole number",
    _is_schema: "a type",
    _are_fields: "a list of objects with name and type",
    _are_names: "a list of names",
}
_NAMED = ("record", "error", "enum", "fixed")
_Shape = dict[str, Callable[[Any], bool]]
_SHAPES: dict[str, _Shape] = {
    "record": {"name": _is_name, "fields": _are_fields},
    "error": {"name": _is_name, "fields": _are_fields},
    "enum": {"name": _is_name, "symbols": _are_names},
    "fixed": {"name": _is_name, "size": _is_number},
    "array": {"items": _is_schema},
    "map": {"values": _is_schema},
}
_DECIMAL: _Shape = {"precision": _is_number}


def _check_shape(schema: Mapping[str, Any]) -> None:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not _is_schema(kind):
        raise SchemaError("the Avro schema has an object whose type is missing or none")
    shape = _SHAPES.get(kind, {}) if isinstance(kind, str) else {}
    for name, is_right in (shape | (_DECIMAL if logical == "decimal" else {})).items():
        if not is_right(schema.get(name)):
            raise SchemaError(f"the Avro schema has a type {kind} whose {name} must be {_WORDS[is_right]}")
    if logical is not None and not _is_name(logical):
        raise SchemaError("the Avro schema has a logicalType that is no name")


class AvroNames:
    """The named types of a schema, under their full names."""

    def __init__(self, schema: Any) -> None:
        self._known: dict[str, Any] = {}
        self._collect(schema, "")

    def resolved(self, schema: Any, space: str) -> tuple[Any, str]:
        """A schema that is no name, and the namespace for the names in it."""
        if isinstance(schema, str) and schema not in PRIMITIVES:
            found = self._known.get(f"{space}.{schema}" if space and "." not in schema else schema)
            found = self._known.get(schema) if found is None else found
            if found is None:
                raise SchemaError(f"the Avro schema uses the name '{schema}' and does not define it")
            found_schema: tuple[Any, str] = found
            return found_schema
        return schema, _namespace(schema, space)

    def _collect(self, schema: Any, space: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        if not isinstance(schema, Mapping):
            return
        _check_shape(schema)
        inner = _namespace(schema, space)
        if schema["type"] in _NAMED:
            name = schema["name"]
            full = name if "." in name or not inner else f"{inner}.{name}"
            self._known[full] = (schema, inner)
        for field in _members(schema):
            self._collect(field, inner)


def _members(schema: Mapping[str, Any]) -> list[Any]:
    """The schemas inside of a schema."""
    if schema["type"] in ("record", "error"):
        return [field["type"] for field in schema["fields"]]
    inner = [schema.get(name) for name in ("items", "values")]
    return [member for member in [*inner, schema.get("type")] if isinstance(member, (Mapping, list))]


def _namespace(schema: Any, space: str) -> str:
    """The namespace of the names inside of a schema."""
    if not isinstance(schema, Mapping) or schema.get("type") not in _NAMED:
        return space
    name = schema.get("name")
    if isinstance(name, str) and "." in name:
        return name.rpartition(".")[0]
    own = schema.get("namespace", space)
    return own if isinstance(own, str) else space


def record_name(text: str) -> str:
    """The full name of the record that a schema describes; what subjects by record are named after."""
    schema = parsed_schema(text)
    space, name = _namespace(schema, ""), str(schema["name"])
    return name if "." in name or not space else f"{space}.{name}"


def parsed_schema(text: str) -> Any:
    """SchemaError if the text is no schema of a record."""
    schema = parsed_json(text, "the Avro schema")
    if not isinstance(schema, Mapping) or schema.get("type") != "record" or not isinstance(schema.get("name"), str):
        raise SchemaError("the Avro schema must be a record with a name, as the columns are its fields")
    return schema
