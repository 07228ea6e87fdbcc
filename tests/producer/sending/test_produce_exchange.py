"""Produce requests built from batches, and the partition responses to these batches."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from spark_kafka_sink.client.client_request import ClientRequest, ClientResponse
from spark_kafka_sink.client.cluster import ClusterSnapshot, TopicInfo
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import (
    UnsupportedVersionError,
)
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.sending.produce_exchange import (
    PartitionResponse,
    SentBatches,
    build_produce_request,
    parse_partition_response,
    parse_partition_responses,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


def create_sent_batches(*partitions: int) -> SentBatches:
    batches = {partition: ProducerBatch(TopicPartition("t", partition), 0, 1) for partition in partitions}
    return SentBatches({"t": batches}, ClusterSnapshot())


def create_response(message: ProduceResponse | None, **ending: Any) -> ClientResponse:
    request = ClientRequest(1, ProduceRequest(), 0, 0, 1000)
    return ClientResponse(request, 5, 5, 9, message, **ending)


def parse_responses(ending: ClientResponse, sent: SentBatches, acks: int = -1) -> dict[int, PartitionResponse]:
    return {
        batch.topic_partition.partition: response for batch, response in parse_partition_responses(ending, sent, acks)
    }


def test_each_batch_gets_response_of_its_partition_and_others_are_ignored() -> None:
    rows = [
        PartitionProduceResponse(index=1, base_offset=17, log_append_time_ms=5),
        PartitionProduceResponse(index=0, error_code=codes.POLICY_VIOLATION, base_offset=-1, error_message="too late"),
        PartitionProduceResponse(index=1, error_code=codes.POLICY_VIOLATION),
        PartitionProduceResponse(index=9, base_offset=1),
    ]
    topics = [
        TopicProduceResponse(name="t", partition_responses=rows),
        TopicProduceResponse(name="other", partition_responses=[PartitionProduceResponse(index=0)]),
    ]
    got = parse_responses(create_response(ProduceResponse(responses=topics)), create_sent_batches(0, 1))
    assert got == {
        1: PartitionResponse(codes.NONE, 17, 5),
        0: PartitionResponse(codes.POLICY_VIOLATION, error_message="too late"),
    }


def test_response_names_rejected_records() -> None:
    record_errors = [BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="has no key")]
    row = PartitionProduceResponse(index=0, error_code=codes.INVALID_RECORD, record_errors=record_errors)
    message = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[row])])
    assert parse_responses(create_response(message), create_sent_batches(0))[0].record_error_messages == {
        2: "has no key"
    }


def test_partition_missing_in_response_is_not_stored() -> None:
    """This does not depend on acks: with acks=0 there is no response that could lack a partition."""
    rows = [PartitionProduceResponse(index=0, base_offset=3)]
    message = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=rows)])
    got = parse_responses(create_response(message), create_sent_batches(0, 1))
    assert got[0].base_offset == 3
    assert got[1].code == codes.NETWORK_EXCEPTION
    assert "does not include this partition" in str(got[1].cause)


def test_missing_response_carries_the_reason() -> None:
    sent = create_sent_batches(0)
    too_old = UnsupportedVersionError("too old")
    assert parse_responses(create_response(None), sent, acks=0)[0] == PartitionResponse(codes.NONE)
    lost = parse_responses(create_response(None, disconnected=True, reason="b0:9092: reset"), sent, acks=0)[0]
    assert (lost.code, str(lost.cause)) == (codes.NETWORK_EXCEPTION, "b0:9092: reset")
    assert parse_responses(create_response(None, version_error=too_old), sent)[0] == PartitionResponse(
        codes.UNSUPPORTED_VERSION, cause=too_old
    )


def test_request_uses_topic_names_unless_all_topic_ids_are_known() -> None:
    topics = {"a": TopicInfo("a", UUID(int=1)), "b": TopicInfo("b")}
    batches = [
        Mock(topic_partition=TopicPartition(topic, 0), build_wire_segments=Mock(return_value=[])) for topic in topics
    ]
    config = ProducerConfig.parse({"bootstrap.servers": "broker:9092"})
    last_versions = [
        build_produce_request(sent_batches, ClusterSnapshot(topics=topics), config).versions.max
        for sent_batches in (batches[:1], batches, batches[::-1])
    ]
    assert last_versions == [ProduceRequest.VERSIONS.max, 12, 12]


@pytest.mark.parametrize("offset", [2**62, 2**63 - 1])
def test_ignores_impossible_base_offset(offset: int) -> None:
    """The records' offsets are counted up from the base offset, and would not fit into 64 bits."""
    assert (
        parse_partition_response(PartitionProduceResponse(index=0, error_code=0, base_offset=offset)).base_offset == -1
    )
    assert (
        parse_partition_response(PartitionProduceResponse(index=0, error_code=0, base_offset=2**62 - 1)).base_offset
        == 2**62 - 1
    )
