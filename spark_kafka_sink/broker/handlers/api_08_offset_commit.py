"""OffsetCommit: store the offsets of a consumer group."""

from __future__ import annotations

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def handle(context: RequestContext, request: OffsetCommitRequest) -> HandlerResult:
    """Store the group's offsets. Each partition gets its own error code."""
    cluster, group = context.cluster, request.group_id
    coordinator_error_code = context.find_coordinator_error_code(group)
    topics = []
    with cluster.lock:
        for topic in request.topics:
            results = []
            for partition in topic.partitions:
                error_code = coordinator_error_code or _commit_offset(cluster, group, topic.name, partition)
                results.append(
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error_code)
                )
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=results))
        cluster.save()
    return OffsetCommitResponse(topics=topics)


def _commit_offset(
    cluster: EmbeddedCluster, group: str, topic_name: str, requested_partition: OffsetCommitRequestPartition
) -> int:
    """Store the offset of one partition. Return 0, or the error code if the offset is rejected."""
    index, metadata = requested_partition.partition_index, requested_partition.committed_metadata
    if not cluster.has_partition(topic_name, index):
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    error_code = cluster.offsets.find_commit_error_code(group, (topic_name, index), metadata)
    if not error_code:
        offset = CommittedOffset(
            requested_partition.committed_offset, requested_partition.committed_leader_epoch, metadata
        )
        cluster.offsets.commit(group, {(topic_name, index): offset})
    return error_code
