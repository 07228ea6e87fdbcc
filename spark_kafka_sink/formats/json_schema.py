"""JSON Schemas for rows in `JsonFormat`, derived from column types, and checks of JSON Schemas from the user.

Nullable fields are not required, because null fields are omitted. Objects are closed (`additionalProperties` is false),
because only in closed objects does the registry accept a new field as a compatible change.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro_schema import DEFAULT_NAME
from spark_kafka_sink.formats.schema_json import parse_schema_json

_DRAFT_URI = "http://json-schema.org/draft-07/schema#"
"""URI of the JSON Schema version that derived schemas use."""


def derive_json_schema(fields: Sequence[pa.Field], name: str | None) -> str:
    """Return the columns' JSON Schema as JSON.

    `name`: the title of the schema; DEFAULT_NAME if it is None.
    """
    schema = {"$schema": _DRAFT_URI, "title": name or DEFAULT_NAME, **_build_object_schema(fields)}
    return json.dumps(schema, separators=(",", ":"))


def check_names_and_parse_title(schema_json: str, column_names: Sequence[str]) -> str:
    """Check a JSON Schema against the columns, and return its title. Without a title, return its `$id` or DEFAULT_NAME.

    Raise SchemaError if a required property has no column, or if the schema is closed and has no property or pattern
    for a column.
    Types and values are not checked.
    """
    schema = parse_schema_json(schema_json, description="the JSON Schema")
    if not isinstance(schema, Mapping):
        raise SchemaError("the JSON Schema must be an object")
    properties, required_names = schema.get("properties", {}), schema.get("required", [])
    patterns = schema.get("patternProperties", {})
    if isinstance(properties, Mapping) and schema.get("additionalProperties") is False:
        unknown_names = [
            name for name in column_names if name not in properties and not _matches_pattern(name, patterns)
        ]
        if unknown_names:
            raise SchemaError(f"the JSON Schema has no property for the column {unknown_names[0]}")
    missing_names: list[Any] = []
    if isinstance(required_names, list):
        missing_names = [name for name in required_names if name not in column_names]
    if missing_names:
        raise SchemaError(f"there is no column for the required property {missing_names[0]} of the JSON Schema")
    title = schema.get("title", schema.get("$id", DEFAULT_NAME))
    return title if isinstance(title, str) else DEFAULT_NAME


def _matches_pattern(name: str, patterns: Any) -> bool:
    """Return whether any of the keys of `patternProperties` matches the name.

    JSON Schema's patterns are those of JavaScript. A pattern that Python does not support counts as a match.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example, Python warns that the pattern [[a] may change its meaning
            return isinstance(patterns, Mapping) and any(re.search(pattern, name) for pattern in patterns)
    except (re.error, OverflowError, RecursionError):
        return True


def _build_object_schema(fields: Sequence[pa.Field]) -> dict[str, Any]:
    """Return the schema for objects with these fields. Fields of type null are never written, so they are left out."""
    properties = {field.name: _build_type_schema(field.type) for field in fields if not pa.types.is_null(field.type)}
    required_names = [field.name for field in fields if not field.nullable]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required_names} if required_names else schema


def _build_type_schema(data_type: pa.DataType) -> dict[str, Any]:
    """Return the schema for values of this type, as JsonFormat writes them."""
    if pa.types.is_struct(data_type):
        return _build_object_schema([data_type.field(index) for index in range(data_type.num_fields)])
    if pa.types.is_list(data_type):
        return {"type": "array", "items": _build_element_schema(data_type.value_field)}
    if pa.types.is_map(data_type):
        return {"type": "object", "additionalProperties": _build_element_schema(data_type.item_field)}
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return {"type": "string", "format": "date-time"}
    return dict(next((schema for is_type, schema in _SCALAR_SCHEMAS if is_type(data_type)), {"type": "string"}))


def _build_element_schema(field: pa.Field) -> dict[str, Any]:
    """Return the schema for the elements of an array or map. Null elements are written as `null`, not omitted."""
    if pa.types.is_null(field.type):
        return {"type": "null"}
    schema = _build_type_schema(field.type)
    return {"oneOf": [{"type": "null"}, schema]} if field.nullable else schema


_SCALAR_SCHEMAS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_integer, {"type": "integer"}),
    (pa.types.is_floating, {"type": "number"}),
    (pa.types.is_decimal128, {"type": "number"}),
    (pa.types.is_date32, {"type": "string", "format": "date"}),
    (pa.types.is_binary, {"type": "string", "contentEncoding": "base64"}),
)
"""JSON Schema by Arrow type. The first entry that matches applies. All other scalar types are plain strings."""
