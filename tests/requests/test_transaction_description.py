"""Requests that describe transactions and controllers, and the meaning of their responses."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.describe_quorum import DescribeQuorumResponse
from spark_kafka_sink.requests.quorum import DescribeQuorum
from spark_kafka_sink.requests.request import Role
from spark_kafka_sink.requests.transaction_description import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    TransactionDescription,
)


@pytest.mark.parametrize(
    ("state", "is_open", "is_ending"),
    [
        (EMPTY, False, False),
        (ONGOING, True, False),
        ("PrepareCommit", False, True),
        ("PrepareAbort", False, True),
        (COMPLETE_COMMIT, False, False),
        (COMPLETE_ABORT, False, False),
    ],
)
def test_transaction_is_open_or_ending_in_its_states(state: str, is_open: bool, is_ending: bool) -> None:
    description = TransactionDescription("x", state, ProducerIdAndEpoch(70, 3))
    assert (description.is_open, description.is_ending) == (is_open, is_ending)


def test_lists_partitions_of_all_topics() -> None:
    description = TransactionDescription("x", ONGOING, ProducerIdAndEpoch(70, 3), topics=(("t", [0, 2]), ("u", [1])))
    assert description.partitions == (("t", 0), ("t", 2), ("u", 1))


def test_any_broker_forwards_the_request_about_controllers() -> None:
    request = DescribeQuorum()
    assert request.route(request.keys[0]) is Role.ANY_BROKER
    (topic,) = request.build_message(0).topics
    assert (topic.topic_name, [partition.partition_index for partition in topic.partitions]) == (
        "__cluster_metadata",
        [0],
    )
    rejection = request.classify(DescribeQuorumResponse(error_code=codes.CLUSTER_AUTHORIZATION_FAILED))
    error = request.build_rejection_error(request.keys[0], rejection)
    assert str(error).startswith("controllers: the attempt to describe the controllers was rejected")
