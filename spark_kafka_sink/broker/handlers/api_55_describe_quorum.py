"""DescribeQuorum: return the first running node as the controller. Clients use the response to read its clock."""

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
    """Describe a quorum with a single voter: the controller, which is the running node with the lowest id."""
    injected_code = context.find_injected_error_code()
    if injected_code:
        return DescribeQuorumResponse(error_code=injected_code)
    running_nodes = context.cluster.list_running_nodes()
    controller_id = running_nodes[0].id if running_nodes else -1
    timestamp = context.cluster.wall_ms()  # the controller's clock
    voter = DescribeQuorumResponseReplicaState(
        replica_id=controller_id, last_fetch_timestamp=timestamp, last_caught_up_timestamp=timestamp
    )
    partition = DescribeQuorumResponsePartitionData(leader_id=controller_id, current_voters=[voter])
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
