"""kafka-python as witness: its copies of Kafka's schemas, and messages of ours as messages of its."""

from __future__ import annotations

import importlib.resources
import json
import re
from typing import Any

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage

from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import load_request_type, load_response_type, supported_api_keys
from spark_kafka_sink.protocol.schema import FieldSpec, Struct, field_specs

MESSAGE_TYPES: list[type[Message]] = [
    *map(load_request_type, supported_api_keys()),
    *map(load_response_type, supported_api_keys()),
]
MESSAGE_VERSIONS = [
    (message_type, version)
    for message_type in MESSAGE_TYPES
    for version in range(message_type.VERSIONS.min, message_type.VERSIONS.max + 1)
]


def name_of(value: object) -> str:
    """Readable ids of parametrised tests."""
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


def schema(name: str) -> dict[str, Any]:
    """Kafka's JSON of a message, with its common structs put where they are used."""
    text = importlib.resources.files("kafka.protocol.schemas.resources").joinpath(f"{name}.json").read_text()
    content: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    common = {struct["name"]: struct["fields"] for struct in content.get("commonStructs", [])}
    _resolve(content["fields"], common)
    return content


def _resolve(fields: list[dict[str, Any]], common: dict[str, Any]) -> None:
    for field in fields:
        name = field["type"].removeprefix("[]")
        if name in common:
            field["fields"] = common[name]
        _resolve(field.get("fields", []), common)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


_classes: dict[str, type[Any]] = {}


def witness_class(name: str) -> type[Any]:
    """A class of kafka-python's making; it finds the schema by the name.

    Not the class that kafka-python uses itself, which may rename fields. Making one enters it as the class for the
    answers of its API, so the registry is put back: a client in the same process goes on with its own classes.
    """
    if name not in _classes:
        own = dict(ResponseClassRegistry._response_class_registry)
        _classes[name] = type(ApiMessage)(name, (ApiMessage,), {})
        ResponseClassRegistry._response_class_registry.clear()
        ResponseClassRegistry._response_class_registry.update(own)
    return _classes[name]


def as_witness(message: Message, version: int) -> Any:
    """The message as an object of kafka-python."""
    witness_type = witness_class(type(message).__name__)
    return witness_type(version=version, **_values(message, witness_type, version))


def _values(struct: Struct, witness_type: Any, version: int) -> dict[str, Any]:
    values = {}
    for name, spec in field_specs(type(struct)).items():
        value = getattr(struct, name)
        if version in spec.versions and not _is_left_out(struct, name, spec):
            values[name] = _value(value, spec, witness_type, version)
    return values


def _is_left_out(struct: Struct, name: str, spec: FieldSpec) -> bool:
    """A tagged field with its default: kafka-python would write it if it were given."""
    return spec.tag is not None and getattr(struct, name) == getattr(type(struct)(), name)


def _value(value: Any, spec: FieldSpec, witness_type: Any, version: int) -> Any:
    if isinstance(spec.inner_type, type) and value is not None:
        nested = getattr(witness_type, kafka_struct_name(spec.inner_type))
        if spec.type_name == "struct":
            return nested(version=version, **_values(value, nested, version))
        return [nested(version=version, **_values(element, nested, version)) for element in value]
    if spec.type_name == "records" and isinstance(value, list):
        return b"".join(value)
    return value
