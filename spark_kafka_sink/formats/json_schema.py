"""A JSON Schema made from the types of columns, for rows that `JsonFormat` writes; and what of the user's is checked.

A field that may be null is not required, since null fields are left out. Objects are closed (`additionalProperties` is
false): only then a registry takes a new field for a compatible change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro_schema import DEFAULT_NAME
from spark_kafka_sink.formats.schema_json import parsed_json

_DRAFT = "http://json-schema.org/draft-07/schema#"


def derive_json_schema(fields: Sequence[pa.Field], name: str | None) -> str:
    schema = {"$schema": _DRAFT, "title": name or DEFAULT_NAME, **_object(fields)}
    return json.dumps(schema, separators=(",", ":"))


def check_json_schema(text: str, names: Sequence[str]) -> str:
    """The schema's title. SchemaError if columns of these names cannot follow it; values are not looked at."""
    schema = parsed_json(text, "the JSON Schema")
    if not isinstance(schema, Mapping):
        raise SchemaError("the JSON Schema must be an object")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if isinstance(properties, Mapping) and schema.get("additionalProperties") is False:
        unknown = [name for name in names if name not in properties]
        if unknown:
            raise SchemaError(f"the JSON Schema has no property for the column {unknown[0]}")
    missing = [name for name in required if name not in names] if isinstance(required, list) else []
    if missing:
        raise SchemaError(f"there is no column for the required property {missing[0]} of the JSON Schema")
    title = schema.get("title", schema.get("$id", DEFAULT_NAME))
    return title if isinstance(title, str) else DEFAULT_NAME


def _object(fields: Sequence[pa.Field]) -> dict[str, Any]:
    properties = {field.name: _type(field.type) for field in fields if not pa.types.is_null(field.type)}
    required = [field.name for field in fields if not field.nullable]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _type(kind: pa.DataType) -> dict[str, Any]:
    types = pa.types
    if types.is_struct(kind):
        return _object([kind.field(index) for index in range(kind.num_fields)])
    if types.is_list(kind):
        return {"type": "array", "items": _element(kind.value_field)}
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _element(kind.item_field)}
    if types.is_timestamp(kind) and kind.tz is not None:
        return {"type": "string", "format": "date-time"}
    return dict(next((schema for is_type, schema in _TYPES if is_type(kind)), {"type": "string"}))


def _element(field: pa.Field) -> dict[str, Any]:
    """Of an array or map, where null is written as null."""
    schema = _type(field.type) if not pa.types.is_null(field.type) else {}
    return {"oneOf": [{"type": "null"}, schema]} if field.nullable and schema else schema or {"type": "null"}


_TYPES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_integer, {"type": "integer"}),
    (pa.types.is_floating, {"type": "number"}),
    (pa.types.is_decimal128, {"type": "number"}),
    (pa.types.is_date32, {"type": "string", "format": "date"}),
    (pa.types.is_binary, {"type": "string", "contentEncoding": "base64"}),
)
