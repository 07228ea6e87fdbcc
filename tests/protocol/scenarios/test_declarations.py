"""Every declaration equals Kafka's JSON definition, field by field and version by version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_kafka_sink.protocol import messages
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import list_supported_api_keys
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, VersionRange, get_field_specs
from tests.protocol.kafka_python import (
    MESSAGE_TYPES,
    format_parameter,
    kafka_struct_name,
    load_schema,
    to_snake_case,
)

NEVER = VersionRange(1, 0)
IMPLICIT_DEFAULTS = {"string": "", "bool": False, "bytes": b"", "uuid": UUID(int=0), "records": None}


def parse_range(text: str | None) -> VersionRange:
    return NEVER if text in (None, "none") else VersionRange.parse(str(text))


def parse_default(field: dict[str, Any]) -> Any:
    kind, text = field["type"], field.get("default")
    if kind.startswith("[]"):
        return None if text == "null" else []
    if kind[0].isupper():
        return "struct"
    if text is None:
        return IMPLICIT_DEFAULTS.get(kind, 0)
    if kind == "string":
        return None if text == "null" else text
    return str(text).lower() == "true" if kind == "bool" else int(str(text), 0)


def describe_kafka_field(field: dict[str, Any], version: int) -> tuple[Any, ...]:
    is_tagged = version in parse_range(field.get("taggedVersions"))
    return (
        to_snake_case(field["name"]),
        field["type"],
        version in parse_range(field.get("nullableVersions")),
        field["tag"] if is_tagged else None,
        parse_default(field),
    )


def describe_our_field(struct_type: type[Struct], name: str, spec: FieldSpec, version: int) -> tuple[Any, ...]:
    element = kafka_struct_name(spec.inner_type) if isinstance(spec.inner_type, type) else spec.inner_type
    kind = {"array": f"[]{element}", "struct": element}.get(spec.type_name, spec.type_name)
    default = "struct" if spec.type_name == "struct" else getattr(struct_type(), name)
    return name, kind, version in (spec.nullable_versions or NEVER), spec.tag, default


def compare_fields(struct_type: type[Struct], fields: list[dict[str, Any]], version: int) -> int:
    """Compare the fields of a struct and of its nested structs. Return the number of compared fields."""
    declared_fields = {name: spec for name, spec in get_field_specs(struct_type).items() if version in spec.versions}
    kafka_fields = [field for field in fields if version in parse_range(field["versions"])]
    assert [describe_our_field(struct_type, name, spec, version) for name, spec in declared_fields.items()] == [
        describe_kafka_field(field, version) for field in kafka_fields
    ]
    compared = len(kafka_fields)
    for spec, field in zip(declared_fields.values(), kafka_fields, strict=True):
        if "fields" in field:
            assert isinstance(spec.inner_type, type)
            compared += compare_fields(spec.inner_type, field["fields"], version)
    return compared


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=format_parameter)
def test_message_has_api_key_and_versions_of_kafka(message_type: type[Message]) -> None:
    kafka_schema = load_schema(message_type.__name__)
    flexible = parse_range(kafka_schema["flexibleVersions"])
    assert kafka_schema["apiKey"] == message_type.API_KEY
    assert VersionRange.parse(kafka_schema["validVersions"]) == message_type.VERSIONS
    assert (None if flexible == NEVER else flexible.min) == message_type.FIRST_FLEXIBLE_VERSION


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=format_parameter)
def test_fields_of_each_version_equal_those_of_kafka(message_type: type[Message]) -> None:
    kafka_fields = load_schema(message_type.__name__)["fields"]
    for version in range(message_type.VERSIONS.min, message_type.VERSIONS.max + 1):
        # Some messages have no fields in some versions, for example ApiVersionsRequest before version 3.
        assert compare_fields(message_type, kafka_fields, version) >= any(
            version in parse_range(field["versions"]) for field in kafka_fields
        )


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=format_parameter)
def test_version_ranges_and_ignorable_flags_equal_those_of_kafka(message_type: type[Message]) -> None:
    def check(struct_type: type[Struct], fields: list[dict[str, Any]]) -> None:
        specs = get_field_specs(struct_type)
        assert list(specs) == [to_snake_case(field["name"]) for field in fields]
        for spec, field in zip(specs.values(), fields, strict=True):
            assert spec.versions == parse_range(field["versions"]), field["name"]
            assert spec.ignorable == field.get("ignorable", False), field["name"]
            if "fields" in field:
                assert isinstance(spec.inner_type, type)
                check(spec.inner_type, field["fields"])

    check(message_type, load_schema(message_type.__name__)["fields"])


def test_every_api_has_request_and_response() -> None:
    assert {message_type.API_KEY for message_type in MESSAGE_TYPES[: len(list_supported_api_keys())]} == set(
        list_supported_api_keys()
    )
    assert len(MESSAGE_TYPES) == 2 * len(list_supported_api_keys())


def test_struct_names_are_unique_in_the_package() -> None:
    files = Path(messages.__file__).parent.glob("*.py")
    names = [name for file in files for name in re.findall(r"(?m)^class (\w+)\(Struct\)", file.read_text())]
    assert len(names) == len(set(names)) > 50
