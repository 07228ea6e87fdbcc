"""Declarations of structs and their fields, from which struct_codec.py generates a codec for each version.

A struct is a keyword-only dataclass. Its fields have the same order as in Kafka's JSON definition, and each field
declares the versions in which it exists. So a declaration can be compared with the definition line by line:

    { "name": "ErrorMessage", "type": "string", "versions": "8+", "nullableVersions": "8+", "default": "null",
      "ignorable": true }
    error_message: str | None = nullable_string("8+", default=None, ignorable=True)

    `nullable_versions`  versions that allow null, if not all versions of the field do
    `tag`                number of a tagged field (KIP-482), which is encoded only if its value differs from the default
    `ignorable`          True: versions without the field omit its value; False: they reject any value but the default
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from spark_kafka_sink.protocol.codecs import ZERO_UUID
from spark_kafka_sink.protocol.primitives import Buffer

NO_MAX_VERSION = 32767  # versions are encoded as int16


@dataclass(frozen=True)
class VersionRange:
    """The versions from `min` to `max`, inclusive."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max

    def __str__(self) -> str:
        if self.max == NO_MAX_VERSION:
            return f"{self.min}+"
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parse Kafka's notation: "3", "3-12" or "3+"."""
        if text.endswith("+"):
            return cls(int(text.removesuffix("+")), NO_MAX_VERSION)
        min_text, dash, max_text = text.partition("-")
        return cls(int(min_text), int(max_text if dash else min_text))


Records = Buffer | Sequence[Buffer] | None
"""Value of a `records` field. Decoding returns a view; encoding also accepts a list or tuple of segments."""

_SPEC_KEY = "kafka"
"""Key of the FieldSpec in a dataclass field's metadata."""


@dataclass(frozen=True)
class FieldSpec:
    """A field's declaration."""

    type_name: str
    versions: VersionRange
    nullable_versions: VersionRange | None
    """Versions that allow null, or None if no version allows it."""
    tag: int | None
    ignorable: bool
    inner_type: type[Struct] | str | None = None
    """Type of a struct field, or element type of an array field. None for other fields."""


@dataclass(kw_only=True, slots=True)
class Struct:
    """Base class of all structs."""

    unknown_tags: dict[int, bytes] | None = dataclasses.field(default=None, repr=False)
    """Encoded values, by tag, of tagged fields that were decoded but are not declared. They are encoded unchanged."""


def get_field_specs(struct_type: type[Struct]) -> dict[str, FieldSpec]:
    """Return a struct's field declarations by field name."""
    return {
        field.name: field.metadata[_SPEC_KEY]
        for field in dataclasses.fields(struct_type)
        if _SPEC_KEY in field.metadata
    }


def _define_field(  # noqa: PLR0913 - the properties of a field in Kafka's JSON definitions
    type_name: str,
    versions: str,
    default: object,
    *,
    nullable_versions: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    inner_type: type[Struct] | str | None = None,
) -> Any:
    """Return a dataclass field whose metadata contains its FieldSpec.

    `versions` and `nullable_versions` are in Kafka's notation (see VersionRange.parse). A `default` of `list` stands
    for a new, empty list.
    """
    nullable_range = None if nullable_versions is None else VersionRange.parse(nullable_versions)
    spec = FieldSpec(type_name, VersionRange.parse(versions), nullable_range, tag, ignorable, inner_type)
    if isinstance(default, type):  # `list`, so that each struct gets its own array
        return dataclasses.field(default_factory=default, metadata={_SPEC_KEY: spec})
    return dataclasses.field(default=default, metadata={_SPEC_KEY: spec})


# --- field declarations


# Each function returns a dataclass field, but is annotated with the type of the field's value. This makes type checkers
# accept declarations such as `name: int = int16("0+")`.
def boolean(versions: str, *, default: bool = False, tag: int | None = None, ignorable: bool = False) -> bool:
    declared_field: bool = _define_field("bool", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def int8(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    declared_field: int = _define_field("int8", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def int16(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    declared_field: int = _define_field("int16", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def uint16(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    declared_field: int = _define_field("uint16", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def int32(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    declared_field: int = _define_field("int32", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def int64(versions: str, *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> int:
    declared_field: int = _define_field("int64", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def uuid(versions: str, *, tag: int | None = None, ignorable: bool = False) -> UUID:
    declared_field: UUID = _define_field("uuid", versions, ZERO_UUID, tag=tag, ignorable=ignorable)
    return declared_field


def string(versions: str, *, default: str = "", tag: int | None = None, ignorable: bool = False) -> str:
    declared_field: str = _define_field("string", versions, default, tag=tag, ignorable=ignorable)
    return declared_field


def nullable_string(
    versions: str,
    *,
    default: str | None = "",
    nullable_versions: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> str | None:
    """Declare a string that may be null. The module's docstring explains `tag` and `ignorable`.

    `nullable_versions`: the versions in which the string may be null. None means every version in `versions`.
    """
    declared_field: str | None = _define_field(
        "string", versions, default, nullable_versions=nullable_versions or versions, tag=tag, ignorable=ignorable
    )
    return declared_field


def byte_string(versions: str) -> bytes:
    declared_field: bytes = _define_field("bytes", versions, default=b"")
    return declared_field


def record_batches(versions: str) -> Records:
    declared_field: Records = _define_field("records", versions, default=None, nullable_versions=versions)
    return declared_field


def tagged_struct(struct_type: type[Struct], versions: str, *, tag: int) -> Any:
    """Declare a tagged field that contains a struct.

    The default is None rather than an empty struct, to save one object per partition in large messages.
    """
    return _define_field("struct", versions, default=None, tag=tag, inner_type=struct_type)


def array(element: type[Struct] | str, versions: str, *, tag: int | None = None, ignorable: bool = False) -> list[Any]:
    declared_field: list[Any] = _define_field("array", versions, list, tag=tag, ignorable=ignorable, inner_type=element)
    return declared_field


def nullable_array(
    element: type[Struct] | str, versions: str, *, nullable_versions: str | None = None, ignorable: bool = False
) -> list[Any] | None:
    """Declare an array that may be null. The module's docstring explains `ignorable`.

    `nullable_versions`: the versions in which the array may be null. None means every version in `versions`.
    """
    declared_field: list[Any] | None = _define_field(
        "array",
        versions,
        list,
        nullable_versions=nullable_versions or versions,
        ignorable=ignorable,
        inner_type=element,
    )
    return declared_field
