"""Properties of the encoder beyond correct bytes: payloads are not copied, and no value is omitted silently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.protocol.schema import FieldSpec, get_field_specs
from tests.protocol.kafka_python import MESSAGE_VERSIONS

VALUE_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def build_produce_request(*records: Any) -> ProduceRequest:
    partitions = [PartitionProduceData(index=index, records=value) for index, value in enumerate(records)]
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=partitions)]
    )


@pytest.mark.parametrize("version", [3, 9, 13])
def test_record_payloads_are_not_copied(version: int) -> None:
    first, second, third = bytearray(b"one" * 100), memoryview(b"two" * 100), b"three" * 100
    segments = build_produce_request([first, second], third).encode(version)
    for payload in (first, second, third):
        assert any(segment is payload for segment in segments)


def test_short_batch_header_is_joined_with_preceding_bytes() -> None:
    header, body = b"h" * 61, memoryview(b"b" * 1000)
    before, records, after = build_produce_request([header, body]).encode(9)
    assert bytes(before).endswith(header)
    assert records is body
    assert len(after) < 10


@pytest.mark.parametrize("version", [3, 9])
def test_segments_of_records_are_encoded_as_one_field(version: int) -> None:
    joined = b"".join(build_produce_request([b"ab", b"", b"cd"], None, b"").encode(version))
    assert joined == b"".join(build_produce_request(b"abcd", None, []).encode(version))
    partitions = ProduceRequest.decode(joined, version).topic_data[0].partition_data
    assert [partition.records for partition in partitions] == [b"abcd", None, b""]


def test_empty_payloads_give_no_empty_segments() -> None:
    assert all(len(segment) for segment in build_produce_request([b"", b"x"], [b""], b"").encode(3))


def test_ignorable_field_is_omitted_in_versions_without_it() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], include_topic_authorized_operations=False)
    assert MetadataRequest.decode(b"".join(request.encode(1)), 1) == request


@pytest.mark.parametrize(
    ("message", "version", "name"),
    [
        (MetadataRequest(allow_auto_topic_creation=False), 3, "allow_auto_topic_creation"),
        (CreateTopicsRequest(validate_only=True), 0, "v0 is not supported. Supported versions: 2-7"),
        (InitProducerIdRequest(producer_id=7), 2, "producer_id"),
        (FindCoordinatorRequest(coordinator_keys=["a"]), 3, "coordinator_keys"),
        (FindCoordinatorRequest(key="a"), 4, "key"),
    ],
)
def test_rejects_value_that_the_version_cannot_represent(message: Message, version: int, name: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=name):
        message.encode(version)


def test_rejects_null_in_versions_without_null() -> None:
    assert MetadataRequest(topics=None).encode(1)
    with pytest.raises(UnsupportedVersionError, match="topics must not be null in version 0"):
        MetadataRequest(topics=None).encode(0)


@pytest.mark.parametrize("message", [ProduceRequest(acks=40_000), ProduceRequest(timeout_ms=1 << 31)])
def test_number_out_of_range_raises_value_error_with_message_name(message: Message) -> None:
    with pytest.raises(ValueError, match="ProduceRequest v9"):
        message.encode(9)


def test_string_longer_than_its_prefix_allows_raises_value_error() -> None:
    with pytest.raises(ValueError, match="SaslHandshakeRequest"):
        SaslHandshakeRequest(mechanism="x" * 40_000).encode(1)


@st.composite
def messages_with_versions(draw: st.DrawFn) -> tuple[Message, int]:
    message_type, version = draw(st.sampled_from(MESSAGE_VERSIONS))
    return _draw_struct(draw, message_type, version), version


def _draw_struct(draw: st.DrawFn, struct_type: Any, version: int) -> Any:
    values = {
        name: _draw_value(draw, spec, version)
        for name, spec in get_field_specs(struct_type).items()
        if version in spec.versions
    }
    return struct_type(**values)


def _draw_value(draw: st.DrawFn, spec: FieldSpec, version: int) -> Any:
    if spec.nullable_versions is not None and version in spec.nullable_versions and draw(st.booleans()):
        return None
    if spec.type_name == "array":
        return [_draw_scalar(draw, spec.inner_type, version) for _ in range(draw(st.integers(0, 2)))]
    return _draw_scalar(draw, spec.inner_type if spec.type_name == "struct" else spec.type_name, version)


def _draw_scalar(draw: st.DrawFn, kind: Any, version: int) -> Any:
    if isinstance(kind, type):
        return _draw_struct(draw, kind, version)
    if kind == "uint16":
        return draw(st.integers(0, 0xFFFF))
    if kind in VALUE_BITS:
        return draw(st.integers(-(1 << VALUE_BITS[kind]), (1 << VALUE_BITS[kind]) - 1))
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "uint16": st.integers(0, 2**16 - 1),
        "bool": st.booleans(),
        "string": st.text(max_size=20),
        "uuid": st.uuids(),
    }
    return draw(strategies.get(kind, st.binary(max_size=200)))


@settings(max_examples=150, deadline=None)
@given(case=messages_with_versions())
def test_message_round_trip(case: tuple[Message, int]) -> None:
    message, version = case
    data = b"".join(message.encode(version))
    assert type(message).decode(data, version) == message
