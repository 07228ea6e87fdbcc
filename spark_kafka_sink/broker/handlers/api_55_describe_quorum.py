"""DescribeQuorum: the first running node plays the controller. What counts is its clock."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol.messages.describe_quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseReplicaState,
    DescribeQuorumResponseTopicData,
)


def handle(context: RequestContext, request: DescribeQuorumRequest) -> HandlerResult:
    injected = context.injected()
    if injected:
        return DescribeQuorumResponse(error_code=injected)
    running = context.cluster.running_nodes()
    controller = running[0].id if running else -1
    now = context.cluster.wall_ms()
    voter = DescribeQuorumResponseReplicaState(
        replica_id=controller, last_fetch_timestamp=now, last_caught_up_timestamp=now
    )
    partition = DescribeQuorumResponsePartitionData(leader_id=controller, current_voters=[voter])
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
