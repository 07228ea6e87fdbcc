"""Encoded messages equal those of kafka-python byte for byte, and its messages decode to equal values."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.api_header import ResponseHeader

from spark_kafka_sink.protocol.headers import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    peek_correlation_id,
)
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import list_supported_api_keys, load_request_type, load_response_type
from tests.protocol.kafka_python import MESSAGE_TYPES, format_parameter, is_known_to_kafka_python, to_kafka_python
from tests.protocol.populated_messages import build_populated

REQUESTS = [load_request_type(api) for api in list_supported_api_keys()]
RESPONSES = [load_response_type(api) for api in list_supported_api_keys()]

VARIANTS: dict[str, Any] = {
    "populated": {},
    "nulls": {"nulls": True},
    "empty arrays": {"elements": 0},
    "long arrays": {"elements": 130},  # lengths of two varint bytes
}


def list_reference_versions(message_type: type[Message]) -> list[int]:
    """Return the versions of a message that kafka-python knows."""
    versions = range(message_type.VERSIONS.min, message_type.VERSIONS.max + 1)
    return [version for version in versions if is_known_to_kafka_python(message_type, version)]


def build_variants(message_type: type[Message], version: int) -> list[Message]:
    return [message_type(), *(build_populated(message_type, version, **options) for options in VARIANTS.values())]


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=format_parameter)
def test_message_bytes_equal_those_of_kafka_python(message_type: type[Message]) -> None:
    for version in list_reference_versions(message_type):
        for message in build_variants(message_type, version):
            expected: bytes = to_kafka_python(message, version).encode(version=version)
            assert b"".join(message.encode(version)).hex() == expected.hex(), f"version {version}"
            assert message_type.decode(expected, version) == message, f"version {version}"


@pytest.mark.parametrize("message_type", REQUESTS, ids=format_parameter)
def test_request_bytes_with_header_equal_those_of_kafka_python(message_type: type[Message]) -> None:
    for version in list_reference_versions(message_type):
        for client_id in (None, "", "a client"):
            check_request_bytes(message_type, version, client_id)


def check_request_bytes(message_type: type[Message], version: int, client_id: str | None) -> None:
    message = build_populated(message_type, version)
    reference = to_kafka_python(message, version)
    reference.with_header(correlation_id=77, client_id=client_id)
    expected: bytes = reference.encode(version=version, header=True)
    assert b"".join(encode_request(message, version, 77, client_id)).hex() == expected.hex()
    header, decoded = decode_request(expected)
    assert header == RequestHeader(message_type.API_KEY, version, 77, client_id)
    assert decoded == message


@pytest.mark.parametrize("message_type", RESPONSES, ids=format_parameter)
def test_response_bytes_with_header_equal_those_of_kafka_python(message_type: type[Message]) -> None:
    for version in list_reference_versions(message_type):
        check_response_bytes(message_type, version)


def check_response_bytes(message_type: type[Message], version: int) -> None:
    message = build_populated(message_type, version)
    reference = to_kafka_python(message, version)
    is_flexible = reference.flexible_version_q(version) and message_type.API_KEY != ApiKey.API_VERSIONS
    header = ResponseHeader(correlation_id=77).encode(flexible=is_flexible)
    expected: bytes = header + reference.encode(version=version)
    assert b"".join(encode_response(message, version, 77)).hex() == expected.hex()
    assert decode_response(expected, message_type, version) == (77, message)
    assert peek_correlation_id(expected) == 77
