"""ListOffsets responses with several partitions."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import AuthorizationError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_sink.reader import list_offsets
from spark_kafka_sink.reader.list_offsets import LATEST_TIMESTAMP, ListOffsets

REQUEST = ListOffsets("t", range(4), LATEST_TIMESTAMP, 0)


def response(**error_codes: int) -> ListOffsetsResponse:
    rows = [
        ListOffsetsPartitionResponse(
            partition_index=index, offset=10 * index, error_code=error_codes.get(f"p{index}", codes.NONE)
        )
        for index in range(4)
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=rows)])


def test_reads_response_with_many_partitions_once() -> None:
    """If each of a broker's thousands of partitions read the whole response, a lookup would take minutes."""
    shared = response()
    with patch.object(list_offsets, "_iterate_partitions", wraps=list_offsets._iterate_partitions) as read:
        assert REQUEST.parse_offsets(dict.fromkeys(REQUEST.keys, shared)) == {0: 0, 1: 10, 2: 20, 3: 30}
    assert read.call_count == 1


def test_names_partition_that_may_not_be_read() -> None:
    shared = response(p2=codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match="topic t, partition 2: the attempt to list offsets"):
        REQUEST.parse_offsets(dict.fromkeys(REQUEST.keys, shared))


def test_sends_each_broker_its_own_partitions() -> None:
    part = REQUEST.select_keys(["1", "3"])
    assert part.keys == ["1", "3"]
    assert [row.partition_index for row in part.build_message(1).topics[0].partitions] == [1, 3]
