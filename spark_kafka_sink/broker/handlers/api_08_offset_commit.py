"""OffsetCommit: store the offsets of a consumer group."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def handle(context: RequestContext, request: OffsetCommitRequest) -> HandlerResult:
    cluster, group = context.cluster, request.group_id
    coordinator_error = context.find_coordinator_error(group)
    topics = []
    with cluster.lock:
        for topic in request.topics:
            known_topic = cluster.topics.get(topic.name)
            results = []
            for partition in topic.partitions:
                index, metadata = partition.partition_index, partition.committed_metadata
                code = coordinator_error
                if not code and (known_topic is None or not 0 <= index < len(known_topic.partitions)):
                    code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                topic_partition = topic.name, index
                code = code or cluster.offsets.find_commit_error(group, topic_partition, metadata)
                if not code:
                    offset = CommittedOffset(partition.committed_offset, partition.committed_leader_epoch, metadata)
                    cluster.offsets.commit(group, {topic_partition: offset})
                results.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=results))
        cluster.save()
    return OffsetCommitResponse(topics=topics)
