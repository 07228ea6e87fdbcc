"""Fetch: messages, versions and verdicts of responses with several partitions."""

from __future__ import annotations

from unittest.mock import patch
from uuid import UUID

import pytest

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, FetchResponsePartitionData
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader import fetch as fetch_module
from spark_kafka_sink.reader.fetch import Fetch
from spark_kafka_sink.requests.request import LeaderRoute
from spark_kafka_sink.requests.verdicts import Verdict

REQUEST = Fetch("t", UUID(int=1), {0: 5, 1: 6, 2: 7}, 1)


def response(*error_codes: int) -> FetchResponse:
    partitions = [
        FetchResponsePartitionData(partition_index=index, error_code=code) for index, code in enumerate(error_codes)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def test_sends_each_leader_its_own_partitions_and_offsets() -> None:
    assert [REQUEST.route(key) for key in REQUEST.keys] == [
        LeaderRoute("t", 0),
        LeaderRoute("t", 1),
        LeaderRoute("t", 2),
    ]
    (topic,) = REQUEST.select_keys(["2", "0"]).build_message(13).topics
    assert [(requested.partition, requested.fetch_offset) for requested in topic.partitions] == [(2, 7), (0, 5)]


@pytest.mark.parametrize(("topic_id", "versions"), [(NO_TOPIC_ID, VersionRange(0, 12)), (UUID(int=1), None)])
def test_fetches_topic_without_id_in_versions_with_names(topic_id: UUID, versions: VersionRange | None) -> None:
    request_versions = Fetch("t", topic_id, {0: 0}, 0).versions
    assert (request_versions and request_versions.max) == (versions and versions.max)


def test_each_partition_has_its_own_verdict() -> None:
    classified = REQUEST.classify_keys(
        response(codes.NONE, codes.NOT_LEADER_OR_FOLLOWER, codes.OFFSET_OUT_OF_RANGE)
    ).values()
    assert [classification.verdict for classification in classified] == [Verdict.DONE, Verdict.RETRY, Verdict.FATAL]


def test_error_of_whole_response_is_the_error_of_each_partition() -> None:
    classifications = REQUEST.classify_keys(FetchResponse(error_code=codes.FETCH_SESSION_ID_NOT_FOUND))
    assert {key: classification.code for key, classification in classifications.items()} == dict.fromkeys(
        REQUEST.keys, codes.FETCH_SESSION_ID_NOT_FOUND
    )


def test_names_rejected_partition_and_returns_other_data() -> None:
    responses = dict.fromkeys(REQUEST.keys, response(codes.NONE, codes.NONE, codes.OFFSET_OUT_OF_RANGE))
    assert [data.partition_index for data in REQUEST.parse_partition_data(responses)] == [0, 1]
    error = REQUEST.find_rejection_error(responses)
    assert isinstance(error, BrokerError)
    assert str(error).startswith("topic t, partition 2: ")
    assert error.code == codes.OFFSET_OUT_OF_RANGE


def test_ignores_unrequested_partitions() -> None:
    responses = dict.fromkeys(["0"], response(codes.NONE, codes.NONE))
    assert [data.partition_index for data in REQUEST.parse_partition_data(responses)] == [0]


def test_reads_response_with_many_partitions_once() -> None:
    responses = dict.fromkeys(REQUEST.keys, response(codes.NONE, codes.NONE, codes.NONE))
    with patch.object(fetch_module, "_iterate_partitions", wraps=fetch_module._iterate_partitions) as read:
        assert REQUEST.find_rejection_error(responses) is None
    assert read.call_count == 1
