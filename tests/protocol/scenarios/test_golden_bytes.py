"""What we write is byte for byte what kafka-python writes, and what it writes we read back to equal values."""

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
from spark_kafka_sink.protocol.messages import load_request_type, load_response_type
from tests.protocol.kafka_python import MESSAGE_VERSIONS, as_witness, name_of
from tests.protocol.populated import populated

REQUESTS = [pair for pair in MESSAGE_VERSIONS if pair[0] is load_request_type(pair[0].API_KEY)]
RESPONSES = [pair for pair in MESSAGE_VERSIONS if pair[0] is load_response_type(pair[0].API_KEY)]

VARIANTS: dict[str, Any] = {
    "populated": {},
    "nulls": {"nulls": True},
    "empty arrays": {"elements": 0},
    "long arrays": {"elements": 130},  # counts of more than one varint byte
}


def variants(message_type: type[Message], version: int) -> list[Message]:
    return [message_type(), *(populated(message_type, version, **options) for options in VARIANTS.values())]


@pytest.mark.parametrize(("message_type", "version"), MESSAGE_VERSIONS, ids=name_of)
def test_bytes_are_those_of_kafka_python_and_come_back_equal(message_type: type[Message], version: int) -> None:
    for message in variants(message_type, version):
        theirs: bytes = as_witness(message, version).encode(version=version)
        assert b"".join(message.encode(version)).hex() == theirs.hex()
        assert message_type.decode(theirs, version) == message


@pytest.mark.parametrize("client_id", [None, "", "a client"])
@pytest.mark.parametrize(("message_type", "version"), REQUESTS, ids=name_of)
def test_requests_with_their_headers_are_those_of_kafka_python(
    message_type: type[Message], version: int, client_id: str | None
) -> None:
    message = populated(message_type, version)
    witness = as_witness(message, version)
    witness.with_header(correlation_id=77, client_id=client_id)
    theirs: bytes = witness.encode(version=version, header=True)
    assert b"".join(encode_request(message, version, 77, client_id)).hex() == theirs.hex()
    header, decoded = decode_request(theirs)
    assert header == RequestHeader(message_type.API_KEY, version, 77, client_id)
    assert decoded == message


@pytest.mark.parametrize(("message_type", "version"), RESPONSES, ids=name_of)
def test_responses_with_their_headers_are_those_of_kafka_python(message_type: type[Message], version: int) -> None:
    message = populated(message_type, version)
    witness = as_witness(message, version)
    is_flexible = witness.flexible_version_q(version) and message_type.API_KEY != ApiKey.API_VERSIONS
    header = ResponseHeader(correlation_id=77).encode(flexible=is_flexible)
    theirs: bytes = header + witness.encode(version=version)
    assert b"".join(encode_response(message, version, 77)).hex() == theirs.hex()
    assert decode_response(theirs, message_type, version) == (77, message)
    assert peek_correlation_id(theirs) == 77
