"""OffsetCommit: where a group has read to."""

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
    cluster = context.cluster
    error = context.coordinator_error(request.group_id)
    topics = []
    with cluster.lock:
        for topic in request.topics:
            known = cluster.topics.get(topic.name)
            results = []
            for each in topic.partitions:
                code = error
                if not code and (known is None or not 0 <= each.partition_index < len(known.partitions)):
                    code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                where = topic.name, each.partition_index
                code = code or cluster.offsets.fault(request.group_id, where, each.committed_metadata)
                if not code:
                    committed = CommittedOffset(
                        each.committed_offset, each.committed_leader_epoch, each.committed_metadata
                    )
                    cluster.offsets.commit(request.group_id, {where: committed})
                results.append(OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code))
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=results))
        cluster.save()
    return OffsetCommitResponse(topics=topics)
