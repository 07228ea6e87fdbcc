"""Avro schemas, derived from column types or parsed from JSON.

For `avro`, the derived schema is the same as that of Spark's `to_avro`: a record named `topLevelRecord`, in which
nullable columns have the type `[type, "null"]`. For `avro-confluent`, nullable columns have the type `["null", type]`
and default to null, because the registry's usual compatibility rules allow columns to be added or removed only if they
have a default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.schema_json import parse_schema_json

DEFAULT_NAME = "topLevelRecord"
"""Name of a derived record if the user sets none; the same as in Spark's `to_avro`."""
PRIMITIVE_TYPES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
"""Avro types without a name or attributes."""

_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_UNION_BRANCHES = 64
"""Maximum number of branches. A branch index must fit into a zigzag varint of one byte, so the highest index is 63."""
_MIN_BYTES_FOR_DIGITS = [1] + [(int("9" * digits).bit_length() + 8) // 8 for digits in range(1, 39)]
"""Number of bytes that a signed number needs, by its number of decimal digits. One bit is for the sign."""


def derive_avro_schema(fields: Sequence[pa.Field], name: str | None, *, null_first: bool) -> str:
    """Return the columns' Avro schema as JSON. Raise SchemaError if Avro does not support a column's name or type.

    `name`: the full name of the record; DEFAULT_NAME if it is None.
    `null_first`: whether nullable columns have the type `["null", type]` and default to null, as in `avro-confluent`.
    """
    namespace, _, record_name = (name or DEFAULT_NAME).rpartition(".")
    schema = _SchemaBuilder(null_first).build_record_schema(fields, record_name, namespace, path_prefix="")
    return json.dumps(schema, separators=(",", ":"))


class _SchemaBuilder:
    """Builds Avro schemas as JSON-serializable objects.

    All methods raise SchemaError if Avro does not support a name or type.

    The methods have these parameters:

    `namespace`: the namespace of the types that are defined within the field.
    `path`: the column's full name in error messages, including its parents.
    `field_name`: the name of the enclosing record field. The records and decimals within the field are named after it.
    """

    def __init__(self, null_first: bool) -> None:
        self._null_first = null_first

    def build_record_schema(
        self, fields: Sequence[pa.Field], name: str, namespace: str, path_prefix: str
    ) -> dict[str, Any]:
        """Return the schema of a record.

        `path_prefix`: text before each field's name in its path, such as `address.`; empty for the outermost record.
        """
        inner_namespace = f"{namespace}.{name}" if namespace else name
        field_schemas = [
            self._build_field_schema(field, inner_namespace, f"{path_prefix}{field.name}") for field in fields
        ]
        schema: dict[str, Any] = {"type": "record", "name": name, "fields": field_schemas}
        return {**schema, "namespace": namespace} if namespace else schema

    def _build_field_schema(self, field: pa.Field, namespace: str, path: str) -> dict[str, Any]:
        if not _NAME_PATTERN.fullmatch(field.name):
            raise SchemaError(
                f"column {path} is not a valid Avro name; rename it so that it contains only letters, digits and '_'"
            )
        field_schema = {"name": field.name, "type": self._build_nullable_schema(field, field.name, namespace, path)}
        return {**field_schema, "default": None} if field.nullable and self._null_first else field_schema

    def _build_nullable_schema(self, field: pa.Field, field_name: str, namespace: str, path: str) -> Any:
        """Return the schema of a field's or an element's type, in a union with null if it is nullable."""
        schema = self._build_type_schema(field.type, field_name, namespace, path)
        if not field.nullable or schema == "null":  # a union must not contain null twice
            return schema
        return ["null", schema] if self._null_first else [schema, "null"]

    def _build_type_schema(self, data_type: pa.DataType, field_name: str, namespace: str, path: str) -> Any:
        """Return the schema of a type. Raise SchemaError if Avro has no corresponding type.

        `field_name`: the name of the enclosing record field. A record or a decimal is named after it.
        """
        scalar_schema = next((schema for is_type, schema in _SCALAR_SCHEMAS if is_type(data_type)), None)
        if scalar_schema is not None:
            return scalar_schema
        if pa.types.is_decimal128(data_type):
            # All types of this kind have the name `fixed`, as in Spark's `to_avro`. Their namespaces distinguish them.
            return {
                "type": "fixed",
                "name": "fixed",
                "namespace": f"{namespace}.{field_name}",
                "size": _MIN_BYTES_FOR_DIGITS[data_type.precision],
                "logicalType": "decimal",
                "precision": data_type.precision,
                "scale": data_type.scale,
            }
        if pa.types.is_list(data_type):
            return {
                "type": "array",
                "items": self._build_nullable_schema(data_type.value_field, field_name, namespace, f"{path}.element"),
            }
        if pa.types.is_map(data_type) and pa.types.is_string(data_type.key_type):
            return {
                "type": "map",
                "values": self._build_nullable_schema(data_type.item_field, field_name, namespace, f"{path}.value"),
            }
        if pa.types.is_struct(data_type):
            return self.build_record_schema(
                [data_type.field(index) for index in range(data_type.num_fields)], field_name, namespace, f"{path}."
            )
        raise SchemaError(f"column {path} of type {data_type} has no corresponding Avro type; cast it to a string")


def get_avro_type(schema: Any) -> Any:
    """Return the type of a schema, which is an object with the attribute `type` or the type itself."""
    return schema["type"] if isinstance(schema, Mapping) else schema


_LOGICAL_TYPE_BASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("date", "time-millis"), ("int",)),
    **dict.fromkeys(("time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"), ("long",)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"), ("long",)),
    "decimal": ("bytes", "fixed"),
}
"""The Avro types that each logical type may annotate. Logical types that are not listed are not checked."""


def find_logical_type(schema: Any) -> str | None:
    """Return the logical type of a schema, or None if it has none or has one that is invalid.

    Readers ignore invalid logical types, as Avro's specification requires.
    """
    logical_type: Any = schema.get("logicalType") if isinstance(schema, Mapping) else None
    if not _is_name(logical_type):
        return None
    avro_type = get_avro_type(schema)
    is_valid = avro_type in _LOGICAL_TYPE_BASES.get(logical_type, (avro_type,))
    if logical_type == "decimal":
        precision: Any = schema.get("precision")
        scale: Any = schema.get("scale", 0)
        is_valid &= _is_non_negative_int(precision) and _is_non_negative_int(scale) and scale <= precision > 0
        if is_valid and avro_type == "fixed":
            is_valid = precision <= compute_max_digits(schema["size"])
    return logical_type if is_valid else None


def compute_max_digits(size: int) -> int:
    """Return the highest precision of decimals in a fixed type of `size` bytes."""
    # One bit is for the sign: a byte holds at most 127, so every number of two digits fits.
    return max(int((8 * size - 1) * math.log10(2)), 0)


def _is_timestamp(data_type: pa.DataType, *, has_zone: bool) -> bool:
    return bool(pa.types.is_timestamp(data_type)) and (data_type.tz is not None) == has_zone


_SCALAR_SCHEMAS: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (lambda data_type: _is_timestamp(data_type, has_zone=True), {"type": "long", "logicalType": "timestamp-micros"}),
    (
        lambda data_type: _is_timestamp(data_type, has_zone=False),
        {"type": "long", "logicalType": "local-timestamp-micros"},
    ),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)
"""Avro schema by Arrow type. The first entry that matches applies."""


# --- checks of schemas parsed from JSON, in which any attribute may be missing or have the wrong type


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _is_non_negative_int(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_schema(value: Any) -> bool:
    return isinstance(value, str | Mapping) or _is_union(value)


def _is_union(value: Any) -> bool:
    """Return whether this is a union of at most _MAX_UNION_BRANCHES branches."""
    return (
        isinstance(value, list)
        and len(value) <= _MAX_UNION_BRANCHES
        and all(isinstance(branch, str | Mapping) for branch in value)
    )


def _is_field_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, Mapping) and _is_name(item.get("name")) and _is_schema(item.get("type")) for item in value
    )


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_name(item) for item in value)


_EXPECTED_VALUES: dict[Callable[[Any], bool], str] = {
    _is_name: "a name",
    _is_non_negative_int: "an integer",
    _is_schema: "a type",
    _is_field_list: "a list of objects with name and type",
    _is_name_list: "a list of names",
}
"""Description of the values that a check accepts, for error messages."""
_NAMED_TYPES = ("record", "error", "enum", "fixed")
"""Types that have a name, by which other types in the same schema can refer to them."""
_RECORD_TYPES = ("record", "error")
"""Types with fields."""
_ELEMENT_ATTRIBUTES = {"array": "items", "map": "values"}
"""Attribute that contains the schema of the elements, by type."""
_Attributes = dict[str, Callable[[Any], bool]]
"""Attributes of a type by name, each with the check of its value."""
_REQUIRED_ATTRIBUTES: dict[str, _Attributes] = {
    "record": {"name": _is_name, "fields": _is_field_list},
    "error": {"name": _is_name, "fields": _is_field_list},
    "enum": {"name": _is_name, "symbols": _is_name_list},
    "fixed": {"name": _is_name, "size": _is_non_negative_int},
    "array": {"items": _is_schema},
    "map": {"values": _is_schema},
}
"""Attributes that a type must have. All other types, such as `string`, need none."""
_TYPES_OF_OBJECTS = (*PRIMITIVE_TYPES, *_REQUIRED_ATTRIBUTES)
"""Types that an object can have. Any other type of an object is the name of a type that is defined elsewhere."""


def _check_attributes(schema: Mapping[str, Any]) -> None:
    """Raise SchemaError if an attribute of this type is missing or invalid. Types nested in it are not checked."""
    avro_type = schema.get("type")
    if not isinstance(avro_type, str):
        raise SchemaError("the Avro schema has an object whose type is missing or invalid")
    for name, is_valid in _REQUIRED_ATTRIBUTES.get(avro_type, {}).items():
        if not is_valid(schema.get(name)):
            raise SchemaError(
                f"the Avro schema has a type {avro_type} whose {name} must be {_EXPECTED_VALUES[is_valid]}"
            )


class NamedTypes:
    """The named types of a schema, by full name. The constructor raises SchemaError if any type is invalid."""

    def __init__(self, schema: Any) -> None:
        self._definitions: dict[str, tuple[Any, str]] = {}
        """The schema of each type, and the namespace in which names inside this schema are looked up."""
        self._check_and_index(schema, namespace="")

    def resolve(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """Return a schema, and the namespace in which the names inside it are looked up.

        If `schema` is the name of a type, return the definition of that type. A name without dots is looked up in
        `namespace` first. Raise SchemaError if the name is undefined.
        """
        if not isinstance(schema, str) or schema in PRIMITIVE_TYPES:
            return schema, _find_inner_namespace(schema, namespace)
        full_names = [f"{namespace}.{schema}", schema] if namespace and "." not in schema else [schema]
        for full_name in full_names:
            if full_name in self._definitions:
                return self._definitions[full_name]
        raise SchemaError(f"the Avro schema uses the undefined name '{schema}'")

    def _check_and_index(self, schema: Any, namespace: str) -> None:
        """Check a schema, and add its named types to the index, including nested ones."""
        if isinstance(schema, list):
            for branch in schema:
                self._check_and_index(branch, namespace)
        if not isinstance(schema, Mapping):
            return
        _check_attributes(schema)
        inner_namespace = _find_inner_namespace(schema, namespace)
        if schema["type"] in _NAMED_TYPES:
            name = schema["name"]
            full_name = name if "." in name or not inner_namespace else f"{inner_namespace}.{name}"
            self._definitions[full_name] = (schema, inner_namespace)
        for inner_schema in _find_inner_schemas(schema):
            self._check_and_index(inner_schema, inner_namespace)


def _find_inner_schemas(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas nested directly in this schema."""
    if schema["type"] in _RECORD_TYPES:
        return [field["type"] for field in schema["fields"]]
    attribute = _ELEMENT_ATTRIBUTES.get(schema["type"])
    return [] if attribute is None else [schema[attribute]]


def _find_inner_namespace(schema: Any, namespace: str) -> str:
    """Return the namespace in which names inside the schema are looked up.

    `namespace`: the enclosing namespace. It applies unless the schema is a named type with a namespace of its own.
    """
    if not isinstance(schema, Mapping) or schema.get("type") not in _NAMED_TYPES:
        return namespace
    name = schema.get("name")
    if isinstance(name, str) and "." in name:
        return name.rpartition(".")[0]
    declared_namespace = schema.get("namespace", namespace)
    return declared_namespace if isinstance(declared_namespace, str) else namespace


def parse_full_record_name(schema_json: str) -> str:
    """Return the record's full name, which the subject name strategies `record` and `topicRecord` need.

    Raise SchemaError if the schema is not a record with a name.
    """
    schema = parse_record_schema(schema_json)
    namespace, name = _find_inner_namespace(schema, namespace=""), str(schema["name"])
    return name if "." in name or not namespace else f"{namespace}.{name}"


def parse_record_schema(schema_json: str) -> Any:
    """Parse an Avro schema from JSON. Raise SchemaError if it is not a record with a name."""
    schema = parse_schema_json(schema_json, description="the Avro schema")
    if not isinstance(schema, Mapping) or schema.get("type") != "record" or not isinstance(schema.get("name"), str):
        raise SchemaError("the Avro schema must be a record with a name, because the columns become its fields")
    return _unwrap_types(schema)


def _unwrap_types(schema: Any) -> Any:
    """Return an equivalent schema in which the type of each object is not an object, a union, a reference or null.

    For example, {"type": "null"} becomes "null", and {"type": ["null", "int"]} becomes ["null", "int"].

    `schema`: the schema as parsed from JSON, in which any attribute may be missing or have the wrong type.
    """
    if isinstance(schema, list):
        return [_unwrap_types(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    avro_type = schema.get("type")
    if isinstance(avro_type, (Mapping, list)):
        return _unwrap_types(avro_type)
    if not isinstance(avro_type, str):
        return schema
    if avro_type == "null" or avro_type not in _TYPES_OF_OBJECTS:
        return avro_type
    # Other types may have attributes with the same names, which Avro ignores.
    attribute = _ELEMENT_ATTRIBUTES.get(avro_type)
    if attribute in schema:
        return {**schema, attribute: _unwrap_types(schema[attribute])}
    fields = schema.get("fields")
    if avro_type not in _RECORD_TYPES or not isinstance(fields, list):
        return schema
    unwrapped_fields = [
        {**field, "type": _unwrap_types(field["type"])} if isinstance(field, Mapping) and "type" in field else field
        for field in fields
    ]
    return {**schema, "fields": unwrapped_fields}
