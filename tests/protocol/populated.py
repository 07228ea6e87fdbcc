"""Messages with a value in every field that a version has: each different from its default and from its neighbours'."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from spark_kafka_sink.protocol.schema import FieldSpec, Struct, VersionRange, field_specs

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}

StructT = TypeVar("StructT", bound=Struct)


def populated(struct_type: type[StructT], version: int, *, nulls: bool = False, elements: int = 2) -> StructT:
    """`nulls`: null wherever the version allows it. `elements`: of the outer arrays; those within have two at most."""
    return _struct(struct_type, version, count(1), nulls, elements)


def _struct(struct_type: type[StructT], version: int, numbers: Any, nulls: bool, elements: int) -> StructT:
    values = {
        name: _value(spec, version, numbers, nulls, elements)
        for name, spec in field_specs(struct_type).items()
        if version in spec.versions
    }
    return struct_type(**values)


def _value(spec: FieldSpec, version: int, numbers: Any, nulls: bool, elements: int) -> Any:
    if nulls and version in (spec.nullable or VersionRange(1, 0)):
        return None
    if spec.type_name == "array":
        return [_element(spec.inner_type, version, numbers, nulls, min(elements, 2)) for _ in range(elements)]
    return _element(
        spec.inner_type if spec.type_name == "struct" else spec.type_name, version, numbers, nulls, elements
    )


def _element(kind: Any, version: int, numbers: Any, nulls: bool, elements: int) -> Any:
    number = next(numbers)
    if isinstance(kind, type):
        return _struct(kind, version, numbers, nulls, elements)
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
    # From both ends of the type's range.
    return number % 100 if number % 2 else -(1 << _BITS[kind]) + number % 100
