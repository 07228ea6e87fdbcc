"""Messages with a value in every field of a version, different from the default and from that of adjacent fields."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from spark_kafka_sink.protocol.schema import FieldSpec, Struct, VersionRange, get_field_specs

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}

StructT = TypeVar("StructT", bound=Struct)


def build_populated(struct_type: type[StructT], version: int, *, nulls: bool = False, elements: int = 2) -> StructT:
    """Build a struct that has a value in every field.

    `nulls`: use null wherever the version allows it. `elements`: length of the outer arrays; arrays of their elements
    have at most two.
    """
    return _build_struct(struct_type, version, count(1), nulls, elements)


def _build_struct(struct_type: type[StructT], version: int, numbers: Any, nulls: bool, elements: int) -> StructT:
    values = {
        name: _build_value(spec, version, numbers, nulls, elements)
        for name, spec in get_field_specs(struct_type).items()
        if version in spec.versions
    }
    return struct_type(**values)


def _build_value(spec: FieldSpec, version: int, numbers: Any, nulls: bool, elements: int) -> Any:
    if nulls and version in (spec.nullable_versions or VersionRange(1, 0)):
        return None
    if spec.type_name == "array":
        return [_build_element(spec.inner_type, version, numbers, nulls, min(elements, 2)) for _ in range(elements)]
    return _build_element(
        spec.inner_type if spec.type_name == "struct" else spec.type_name, version, numbers, nulls, elements
    )


def _build_element(kind: Any, version: int, numbers: Any, nulls: bool, elements: int) -> Any:
    number = next(numbers)
    if isinstance(kind, type):
        return _build_struct(kind, version, numbers, nulls, elements)
    if kind == "bool":
        return number % 2 == 0
    if kind == "uuid":
        return UUID(int=number << 64 | number)
    if kind == "string":
        return f"näme-{number}"
    if kind in ("bytes", "records"):
        return f"bytes-{number}".encode() * 20
    if kind == "uint16":
        return 0xFFFF - number % 100
    # Alternate between small numbers and the lowest numbers of the type.
    return number % 100 if number % 2 else -(1 << _BITS[kind]) + number % 100
