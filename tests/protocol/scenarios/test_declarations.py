"""Every declaration says what Kafka's JSON says, field by field and version by version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_kafka_sink.protocol import messages
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import supported_api_keys
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, VersionRange, field_specs
from tests.protocol.kafka_python import MESSAGE_TYPES, MESSAGE_VERSIONS, kafka_struct_name, name_of, schema, snake_case

NEVER = VersionRange(1, 0)
ZEROS = {"string": "", "bool": False, "bytes": b"", "uuid": UUID(int=0), "records": None}


def range_of(text: str | None) -> VersionRange:
    return NEVER if text in (None, "none") else VersionRange.parse(str(text))


def default_of(field: dict[str, Any]) -> Any:
    kind, text = field["type"], field.get("default")
    if kind.startswith("[]"):
        return None if text == "null" else []
    if kind[0].isupper():
        return "struct"
    if text is None:
        return ZEROS.get(kind, 0)
    if kind == "string":
        return None if text == "null" else text
    return str(text).lower() == "true" if kind == "bool" else int(str(text), 0)


def declared_by_kafka(field: dict[str, Any], version: int) -> tuple[Any, ...]:
    is_tagged = version in range_of(field.get("taggedVersions"))
    return (
        snake_case(field["name"]),
        field["type"],
        version in range_of(field.get("nullableVersions")),
        field["tag"] if is_tagged else None,
        default_of(field),
    )


def declared_by_us(struct_type: type[Struct], name: str, spec: FieldSpec, version: int) -> tuple[Any, ...]:
    element = kafka_struct_name(spec.inner_type) if isinstance(spec.inner_type, type) else spec.inner_type
    kind = {"array": f"[]{element}", "struct": element}.get(spec.type_name, spec.type_name)
    default = "struct" if spec.type_name == "struct" else getattr(struct_type(), name)
    return name, kind, version in (spec.nullable or NEVER), spec.tag, default


def compare(struct_type: type[Struct], fields: list[dict[str, Any]], version: int) -> int:
    """Returns how many fields were compared."""
    ours = {name: spec for name, spec in field_specs(struct_type).items() if version in spec.versions}
    theirs = [field for field in fields if version in range_of(field["versions"])]
    assert [declared_by_us(struct_type, name, spec, version) for name, spec in ours.items()] == [
        declared_by_kafka(field, version) for field in theirs
    ]
    compared = len(theirs)
    for spec, field in zip(ours.values(), theirs, strict=True):
        if "fields" in field:
            assert isinstance(spec.inner_type, type)
            compared += compare(spec.inner_type, field["fields"], version)
    return compared


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=name_of)
def test_a_message_has_kafkas_number_versions_and_first_flexible_version(message_type: type[Message]) -> None:
    theirs = schema(message_type.__name__)
    flexible = range_of(theirs["flexibleVersions"])
    assert theirs["apiKey"] == message_type.API_KEY
    assert VersionRange.parse(theirs["validVersions"]) == message_type.VERSIONS
    assert (None if flexible == NEVER else flexible.min) == message_type.FIRST_FLEXIBLE_VERSION


@pytest.mark.parametrize(("message_type", "version"), MESSAGE_VERSIONS, ids=name_of)
def test_each_field_of_each_version_is_kafkas(message_type: type[Message], version: int) -> None:
    theirs = schema(message_type.__name__)["fields"]
    # ApiVersionsRequest had no fields before version 3, and there are more requests like it.
    assert compare(message_type, theirs, version) >= any(version in range_of(field["versions"]) for field in theirs)


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=name_of)
def test_version_ranges_and_ignorable_are_kafkas(message_type: type[Message]) -> None:
    def check(struct_type: type[Struct], fields: list[dict[str, Any]]) -> None:
        specs = field_specs(struct_type)
        assert list(specs) == [snake_case(field["name"]) for field in fields]
        for spec, field in zip(specs.values(), fields, strict=True):
            assert spec.versions == range_of(field["versions"]), field["name"]
            assert spec.ignorable == field.get("ignorable", False), field["name"]
            if "fields" in field:
                assert isinstance(spec.inner_type, type)
                check(spec.inner_type, field["fields"])

    check(message_type, schema(message_type.__name__)["fields"])


def test_every_api_is_declared_in_both_directions() -> None:
    assert {message_type.API_KEY for message_type in MESSAGE_TYPES[: len(supported_api_keys())]} == set(
        supported_api_keys()
    )
    assert len(MESSAGE_TYPES) == 2 * len(supported_api_keys())


def test_struct_names_are_unique_in_the_package() -> None:
    files = Path(messages.__file__).parent.glob("*.py")
    names = [name for file in files for name in re.findall(r"(?m)^class (\w+)\(Struct\)", file.read_text())]
    assert len(names) == len(set(names)) > 50
