"""kafka-python as the reference: its copies of Kafka's JSON definitions, and conversion of messages to its classes."""

from __future__ import annotations

import importlib.resources
import json
import re
from typing import Any

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage

from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import list_supported_api_keys, load_request_type, load_response_type
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, get_field_specs

MESSAGE_TYPES: list[type[Message]] = [
    *map(load_request_type, list_supported_api_keys()),
    *map(load_response_type, list_supported_api_keys()),
]
MESSAGE_VERSIONS = [
    (message_type, version)
    for message_type in MESSAGE_TYPES
    for version in range(message_type.VERSIONS.min, message_type.VERSIONS.max + 1)
]


def format_parameter(value: object) -> str:
    """Format a message type or a version as the id of a parametrized test."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


# Kafka gives these names to structs of several messages. Ours begin with the name of their message.
AMBIGUOUS_STRUCT_NAMES = (
    "LeaderIdAndEpoch",
    "Node",
    "NodeEndpoint",
    "PartitionData",
    "ReplicaState",
    "TopicData",
    "TransactionState",
)


def kafka_struct_name(struct_type: type[Struct]) -> str:
    """Return the name that a struct has in Kafka's JSON."""
    name = struct_type.__name__
    message_names = {message_type.__name__ for message_type in MESSAGE_TYPES}
    for ambiguous in AMBIGUOUS_STRUCT_NAMES:
        if name.removesuffix(ambiguous) in message_names:
            return ambiguous
    return name


NEWER_DEFINITIONS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "ApiVersionsRequest": (
        "0-5",
        [
            {
                "name": "ClusterId",
                "type": "string",
                "versions": "5+",
                "nullableVersions": "5+",
                "default": "null",
                "ignorable": True,
            },
            {"name": "NodeId", "type": "int32", "versions": "5+", "default": -1, "ignorable": True},
        ],
    ),
    "ApiVersionsResponse": ("0-5", []),
}
"""The versions of messages that Kafka 4.4 has and kafka-python lacks, and the fields that they add.

integration/test_kafka_versions.py sends them to a broker of Kafka 4.4.
"""


def is_known_to_kafka_python(message_type: type[Message], version: int) -> bool:
    return bool(version <= kafka_python_class(message_type.__name__).max_version)


def load_schema(name: str) -> dict[str, Any]:
    """Load Kafka's JSON definition of a message, with its common structs inserted where they are used."""
    text = importlib.resources.files("kafka.protocol.schemas.resources").joinpath(f"{name}.json").read_text()
    content: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    common = {struct["name"]: struct["fields"] for struct in content.get("commonStructs", [])}
    _insert_common_structs(content["fields"], common)
    if name in NEWER_DEFINITIONS:
        content["validVersions"], added_fields = NEWER_DEFINITIONS[name]
        content["fields"] += added_fields
    return content


def _insert_common_structs(fields: list[dict[str, Any]], common: dict[str, Any]) -> None:
    for field in fields:
        name = field["type"].removeprefix("[]")
        if name in common:
            field["fields"] = common[name]
        _insert_common_structs(field.get("fields", []), common)


def to_snake_case(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


_classes: dict[str, type[Any]] = {}


def kafka_python_class(name: str) -> type[Any]:
    """Return a class of kafka-python for a message. Its metaclass finds the definition by the name.

    The class that kafka-python itself uses may rename fields. A new class registers itself for the responses of its
    API. The registry is restored afterwards, so that clients in the same process keep using their classes.
    """
    if name not in _classes:
        registered = dict(ResponseClassRegistry._response_class_registry)
        _classes[name] = type(ApiMessage)(name, (ApiMessage,), {})
        ResponseClassRegistry._response_class_registry.clear()
        ResponseClassRegistry._response_class_registry.update(registered)
    return _classes[name]


def to_kafka_python(message: Message, version: int) -> Any:
    """Convert a message to an object of kafka-python."""
    reference_type = kafka_python_class(type(message).__name__)
    return reference_type(version=version, **_convert_fields(message, reference_type, version))


def _convert_fields(struct: Struct, reference_type: Any, version: int) -> dict[str, Any]:
    values = {}
    for name, spec in get_field_specs(type(struct)).items():
        value = getattr(struct, name)
        if version in spec.versions and not _is_omitted(struct, name, spec):
            values[name] = _convert_value(value, spec, reference_type, version)
    return values


def _is_omitted(struct: Struct, name: str, spec: FieldSpec) -> bool:
    """Return whether the field is tagged and has its default, which kafka-python would encode."""
    return spec.tag is not None and getattr(struct, name) == getattr(type(struct)(), name)


def _convert_value(value: Any, spec: FieldSpec, reference_type: Any, version: int) -> Any:
    if isinstance(spec.inner_type, type) and value is not None:
        nested = getattr(reference_type, kafka_struct_name(spec.inner_type))
        if spec.type_name == "struct":
            return nested(version=version, **_convert_fields(value, nested, version))
        return [nested(version=version, **_convert_fields(element, nested, version)) for element in value]
    if spec.type_name == "records" and isinstance(value, list):
        return b"".join(value)
    return value
