"""Responses of all broker versions to transactional requests."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from spark_kafka_sink.requests.consumer_groups import GroupMetadata
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import CommitOffsets
from spark_kafka_sink.requests.verdicts import Verdict


def test_reads_coordinator_from_both_response_layouts() -> None:
    lookup = FindCoordinator(["x"])
    single = FindCoordinatorResponse(node_id=1, host="b1", port=9092)
    batched = FindCoordinatorResponse(coordinators=[Coordinator(key="x", node_id=1, host="b1", port=9092)])
    for response in (single, batched):
        assert lookup.classify(response).verdict is Verdict.DONE
        assert lookup.parse_coordinators(response) == {"x": Node(1, "b1", 9092)}
    rejected = FindCoordinatorResponse(error_code=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert (lookup.classify(rejected).verdict, lookup.parse_coordinators(rejected)) == (Verdict.UNAUTHORIZED, {})


@pytest.mark.parametrize(
    ("group", "lowest"),
    [(GroupMetadata("g"), 0), (GroupMetadata("g", member_id="m"), 3), (GroupMetadata("g", generation_id=1), 3)],
)
def test_offset_commit_version_depends_on_group_member(group: GroupMetadata, lowest: int) -> None:
    identity = TransactionIdentity("x", *ProducerIdAndEpoch(70, 3), 1)
    assert CommitOffsets(identity, group, {}).versions.min == lowest
