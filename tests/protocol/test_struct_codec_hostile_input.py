"""Decoders return a value or raise DecodeError for any bytes, in bounded time and memory."""

from __future__ import annotations

import struct
import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest, TopicProduceData
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.primitives import MAX_ARRAY_ELEMENTS
from tests.fuzz import run
from tests.fuzz_targets import all_targets
from tests.protocol.kafka_python import MESSAGE_TYPES, MESSAGE_VERSIONS, format_parameter
from tests.protocol.populated_messages import build_populated

INT32_MAX = b"\x7f\xff\xff\xff"
VARINT_MAX = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=format_parameter)
def test_truncated_message_is_rejected(message_type: type[Message]) -> None:
    for version in range(message_type.VERSIONS.min, message_type.VERSIONS.max + 1):
        check_rejects_truncated_message(message_type, version)


def check_rejects_truncated_message(message_type: type[Message], version: int) -> None:
    data = b"".join(build_populated(message_type, version).encode(version))
    step = max(1, len(data) // 60)  # at every byte of short messages
    for size in range(0, len(data), step):
        with pytest.raises(DecodeError):
            message_type.decode(data[:size], version)
    assert message_type.decode(data + b"trailing", version) == message_type.decode(data, version)


def test_decoders_raise_only_expected_errors_in_fuzzing_sample() -> None:
    outcomes = run(all_targets(), 6_000, seed=1)
    assert outcomes["DecodeError"] > 1_000
    assert outcomes["value"] > 500


@settings(max_examples=200)
@given(data=st.binary(max_size=200), case=st.sampled_from(MESSAGE_VERSIONS))
def test_any_bytes_decode_to_message_or_raise_decode_error(data: bytes, case: tuple[type[Message], int]) -> None:
    message_type, version = case
    try:
        message = message_type.decode(data, version)
    except DecodeError:
        return
    # A decoded message can be encoded again and keeps its meaning.
    assert message_type.decode(b"".join(message.encode(version)), version) == message


@pytest.mark.parametrize(
    ("message_type", "version", "data"),
    [
        (MetadataRequest, 1, INT32_MAX),
        (MetadataRequest, 9, VARINT_MAX),
        (FindCoordinatorRequest, 4, b"\0" + VARINT_MAX),
        (ListTransactionsRequest, 0, b"\x01" + VARINT_MAX),
        (ApiVersionsResponse, 0, b"\0\0" + INT32_MAX),
        (SaslAuthenticateRequest, 0, INT32_MAX),
        (SaslAuthenticateRequest, 2, VARINT_MAX),
        (MetadataRequest, 9, b"\0\0\0\0" + VARINT_MAX),  # number of tagged fields
        (MetadataRequest, 9, b"\0\0\0\0\x01\x63" + VARINT_MAX),  # size of one tagged field
    ],
)
def test_length_beyond_remaining_bytes_allocates_nothing(
    message_type: type[Message], version: int, data: bytes
) -> None:
    message_type.decode(b"".join(message_type().encode(version)), version)  # build and cache the codec
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            message_type.decode(data + bytes(50), version)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_number_of_array_elements_is_limited() -> None:
    count = MAX_ARRAY_ELEMENTS + 1
    data = b"\0" + _encode_varint(count + 1) + b"\x01" * count  # an array of `count` empty strings
    with pytest.raises(DecodeError, match="array elements"):
        FindCoordinatorRequest.decode(data, 4)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_rejects_negative_counts_of_non_nullable_array(data: bytes) -> None:
    with pytest.raises(DecodeError):
        MetadataRequest.decode(data, 0)


def test_rejects_negative_count_other_than_null() -> None:
    assert MetadataRequest.decode(b"\xff\xff\xff\xff", 1).topics is None
    with pytest.raises(DecodeError):
        MetadataRequest.decode(b"\xff\xff\xff\xfe", 1)


def test_rejects_string_that_is_not_utf8() -> None:
    with pytest.raises(DecodeError, match="UTF-8"):
        FindCoordinatorRequest.decode(b"\0\x02\xff\xfe", 0)


def test_rejects_tagged_field_of_wrong_size() -> None:
    valid = b"".join(ApiVersionsResponse(finalized_features_epoch=5).encode(3))
    epoch = b"\x01\x08" + struct.pack(">q", 5)
    assert epoch in valid
    for size in (b"\x07", b"\x09"):
        with pytest.raises(DecodeError):
            ApiVersionsResponse.decode(valid.replace(epoch, b"\x01" + size + epoch[2:]) + b"\0", 3)


def test_unknown_tagged_fields_are_preserved() -> None:
    message = MetadataRequest(unknown_tags={7: b"seven", 900: b""})
    data = b"".join(message.encode(9))
    assert MetadataRequest.decode(data, 9) == message
    assert b"".join(MetadataRequest.decode(data, 9).encode(9)) == data


def test_ignores_bytes_after_the_message() -> None:
    assert MetadataRequest.decode(b"\0\0\0\0" + b"later versions of Kafka", 0) == MetadataRequest(topics=[])


def test_unsupported_version_error_lists_supported_versions() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"ProduceRequest v2 .* 3-13"):
        ProduceRequest().encode(2)
    with pytest.raises(UnsupportedVersionError):
        ProduceRequest.decode(b"", 14)


def test_decoded_records_are_a_view_of_the_frame() -> None:
    response = build_populated(FetchResponse, 17)
    frame = b"".join(response.encode(17))
    records = FetchResponse.decode(frame, 17).responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame


def test_decodes_memoryview_of_signed_bytes() -> None:
    data = b"".join(MetadataRequest(topics=None).encode(9))
    assert MetadataRequest.decode(memoryview(data).cast("b"), 9) == MetadataRequest(topics=None)


def test_uuid_round_trip() -> None:
    topic_id = UUID(int=1 << 127 | 5)
    data = b"".join(ProduceRequest(topic_data=[TopicProduceData(topic_id=topic_id)]).encode(13))
    assert ProduceRequest.decode(data, 13).topic_data[0].topic_id == topic_id


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
