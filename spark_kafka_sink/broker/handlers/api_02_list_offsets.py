"""ListOffsets: return a log's start or end offset, or the first offset at or after a timestamp.

If the request contains a partition more than once, that partition is rejected.
"""

from __future__ import annotations

from collections import Counter

from spark_kafka_sink.broker.batch_validation import NO_RECORD, TimestampAndOffset
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.log import PartitionLog
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4  # special values of a requested timestamp
READ_COMMITTED = 1
UNKNOWN_TIMESTAMP = -1
MIN_VERSION_WITH_LEADER_EPOCH = 4


def handle(context: RequestContext, request: ListOffsetsRequest) -> HandlerResult:
    """Return the requested offset of each partition. A partition that the request contains twice is rejected."""
    is_read_committed = request.isolation_level == READ_COMMITTED
    partition_counts = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    topics = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            if partition_counts[topic.name, index] > 1:
                result = ListOffsetsPartitionResponse(partition_index=index, error_code=error_codes.INVALID_REQUEST)
            else:
                result = _list_partition(context, topic.name, partition, is_read_committed)
            results.append(result)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


def _list_partition(
    context: RequestContext, topic: str, requested_partition: ListOffsetsPartition, is_read_committed: bool
) -> ListOffsetsPartitionResponse:
    """Return the requested offset of a partition, or the error code."""
    partition, error_code = context.get_partition_or_error_code(
        context.cluster.find_topic(topic), requested_partition.partition_index
    )
    result = ListOffsetsPartitionResponse(partition_index=requested_partition.partition_index, error_code=error_code)
    if partition is not None:
        result.timestamp, result.offset = _find_offset(partition.log, requested_partition.timestamp, is_read_committed)
        if result.offset >= 0 and context.version >= MIN_VERSION_WITH_LEADER_EPOCH:
            result.leader_epoch = partition.leader_epoch
    return result


def _find_offset(log: PartitionLog, timestamp: int, is_read_committed: bool) -> TimestampAndOffset:
    """Return the timestamp and offset for a requested timestamp or special value."""
    if timestamp == LATEST:
        end_offset = log.last_stable_offset if is_read_committed else log.log_end_offset
        return TimestampAndOffset(UNKNOWN_TIMESTAMP, end_offset)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimestampAndOffset(UNKNOWN_TIMESTAMP, log.log_start_offset)
    if timestamp == MAX_TIMESTAMP:
        return log.find_max_timestamp()
    if timestamp < 0:  # a special value that this broker does not support
        return NO_RECORD
    return log.find_offset_by_timestamp(timestamp)
