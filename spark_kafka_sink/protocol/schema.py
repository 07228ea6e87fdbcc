"""The notation in which messages are declared.

A struct is a keyword-only dataclass whose fields stand in the order of Kafka's JSON, each with the version range in
which it exists, so that one can be read beside the other:

    { "name": "ErrorMessage", "type": "string", "versions": "8+", "nullableVersions": "8+", "default": "null",
      "ignorable": true }
    error_message: str | None = nullable_string("8+", default=None, ignorable=True)

    `nullable`   the versions in which null is allowed, where that is not all of them
    `tag`        the field is optional on the wire and numbered (KIP-482); it is not written while it has its default
    `ignorable`  a version that lacks the field leaves it out silently; else a value other than the default is refused

How a struct is laid out in one version is worked out once, by struct_codec.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from spark_kafka_sink.protocol.codecs import ZERO_UUID
from spark_kafka_sink.protocol.primitives import Buffer

VERSION_LIMIT = 32767  # versions travel as int16


@dataclass(frozen=True)
class VersionRange:
    """Versions min to max, both included."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max

    def __str__(self) -> str:
        if self.max == VERSION_LIMIT:
            return f"{self.min}+"
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Reads Kafka's notation: "3", "3-12" or "3+"."""
        low, dash, high = text.partition("-")
        if dash:
            return cls(int(low), int(high))
        return cls(int(low[:-1]), VERSION_LIMIT) if low.endswith("+") else cls(int(low), int(low))


Records = Buffer | Sequence[Buffer] | None

_SPEC = "kafka"


@dataclass(frozen=True)
class FieldSpec:
    """One field of a declaration. `element` is the struct of a struct field, or what an array holds."""

    kind: str
    versions: VersionRange
    nullable: VersionRange | None
    tag: int | None
    ignorable: bool
    element: type[Struct] | str | None = None


@dataclass(kw_only=True, slots=True)
class Struct:
    """A struct of the protocol. Tags that we do not know are kept, and written again."""

    unknown_tags: dict[int, bytes] | None = dataclasses.field(default=None, repr=False)


def field_specs(struct_type: type[Struct]) -> dict[str, FieldSpec]:
    """The declaration of a struct, by field name."""
    return {field.name: field.metadata[_SPEC] for field in dataclasses.fields(struct_type) if _SPEC in field.metadata}


def _field(  # noqa: PLR0913 - what Kafka's schemas say of a field, each by its name
    type_name: str,
    versions: str,
    default: object,
    *,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    element: type[Struct] | str | None = None,
) -> Any:
    null_range = None if nullable is None else VersionRange.parse(nullable)
    spec = FieldSpec(type_name, VersionRange.parse(versions), null_range, tag, ignorable, element)
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata={_SPEC: spec})
    return dataclasses.field(default=default, metadata={_SPEC: spec})


# --- each returns what `dataclass` takes for a field, typed as the field's value, which a type checker must see


def boolean(versions: str, *, default: bool = False, tag: int | None = None, ignorable: bool = False) -> bool:
    value: bool = _field("bool", versions, default, tag=tag, ignorable=ignorable)
    return value


def int8(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    value: int = _field("int8", versions, default, tag=tag, ignorable=ignorable)
    return value


def int16(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    value: int = _field("int16", versions, default, tag=tag, ignorable=ignorable)
    return value


def uint16(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    value: int = _field("uint16", versions, default, tag=tag, ignorable=ignorable)
    return value


def int32(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    value: int = _field("int32", versions, default, tag=tag, ignorable=ignorable)
    return value


def int64(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    value: int = _field("int64", versions, default, tag=tag, ignorable=ignorable)
    return value


def uuid(versions: str, *, tag: int | None = None, ignorable: bool = False) -> UUID:
    value: UUID = _field("uuid", versions, ZERO_UUID, tag=tag, ignorable=ignorable)
    return value


def string(versions: str, *, default: str = "", tag: int | None = None, ignorable: bool = False) -> str:
    value: str = _field("string", versions, default, tag=tag, ignorable=ignorable)
    return value


def nullable_string(
    versions: str,
    *,
    default: str | None = "",
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> str | None:
    value: str | None = _field("string", versions, default, nullable=nullable or versions, tag=tag, ignorable=ignorable)
    return value


def byte_string(versions: str) -> bytes:
    value: bytes = _field("bytes", versions, b"")
    return value


def record_batches(versions: str) -> Records:
    value: Records = _field("records", versions, None, nullable=versions)
    return value


def tagged_struct(element: type[Struct], versions: str, *, tag: int) -> Any:
    """A tagged field that holds a struct. It is None where it is absent: most are, in each of many rows."""
    return _field("struct", versions, None, tag=tag, element=element)


def array(element: type[Struct] | str, versions: str, *, tag: int | None = None, ignorable: bool = False) -> list[Any]:
    value: list[Any] = _field("array", versions, list, tag=tag, ignorable=ignorable, element=element)
    return value


def nullable_array(
    element: type[Struct] | str, versions: str, *, nullable: str | None = None, ignorable: bool = False
) -> list[Any] | None:
    value: list[Any] | None = _field(
        "array", versions, list, nullable=nullable or versions, ignorable=ignorable, element=element
    )
    return value
