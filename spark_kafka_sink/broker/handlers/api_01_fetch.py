"""Fetch: batches as they are stored, and the aborted transactions among them for who reads committed ones only.

A partition is read once, however often the request names it, and an answer has at most ANSWER_BYTES_MAX of batches.
Without enough bytes the answer waits, up to max_wait_ms, for something to change. Sessions are not kept: session id 0
in the answer makes the client name all its partitions in each request.
"""

from __future__ import annotations

from uuid import UUID

from spark_kafka_sink.broker.context import DelayedResponse, HandlerResult, RequestContext
from spark_kafka_sink.broker.topics import Partition, Topic
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)

ANSWER_BYTES_MAX = 55 * 1024 * 1024
"""Brokers' own default of fetch.max.bytes."""

WAIT_MS_MAX = 600_000
"""The longest wait, whatever was asked for: a request that waits is held even when its client has gone."""

TOPIC_ID_VERSION = 13
READ_COMMITTED = 1


def handle(context: RequestContext, request: FetchRequest) -> HandlerResult:
    reading = _Reading(context, request)
    response = FetchResponse(responses=[reading.topic(topic) for topic in request.topics])
    deadline_ms = context.received_ms + min(request.max_wait_ms, WAIT_MS_MAX)
    if reading.size_bytes >= request.min_bytes or reading.failed or context.now >= deadline_ms:
        return response
    return DelayedResponse(deadline_ms)


class _Reading:
    """One pass over the partitions of a request, within its bound of bytes."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self.size_bytes = 0
        self.failed = False
        self._context = context
        self._bytes_left = min(request.max_bytes, ANSWER_BYTES_MAX)
        self._seen: set[tuple[str, UUID, int]] = set()
        self._committed = request.isolation_level == READ_COMMITTED

    def topic(self, asked: FetchTopic) -> FetchableTopicResponse:
        cluster = self._context.cluster
        by_id = self._context.version >= TOPIC_ID_VERSION
        topic = cluster.find_topic_by_id(asked.topic_id) if by_id else cluster.find_topic(asked.topic)
        partitions = [self._partition(topic, each) for each in asked.partitions if self._is_new(asked, each)]
        return FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id, partitions=partitions)

    def _is_new(self, topic: FetchTopic, asked: FetchPartition) -> bool:
        where = topic.topic, topic.topic_id, asked.partition
        if where in self._seen:
            return False
        self._seen.add(where)
        return True

    def _partition(self, topic: Topic | None, asked: FetchPartition) -> FetchResponsePartitionData:
        partition, error = self._context.find_partition(topic, asked.partition)
        if topic is None and self._context.version >= TOPIC_ID_VERSION:
            error = error_codes.UNKNOWN_TOPIC_ID
        if partition is not None:
            error = _epoch_error(partition, asked.current_leader_epoch)
        if partition is None or error:
            self.failed = True
            return FetchResponsePartitionData(
                partition_index=asked.partition, error_code=error, high_watermark=-1, records=b""
            )
        return self._read(partition, asked)

    def _read(self, partition: Partition, asked: FetchPartition) -> FetchResponsePartitionData:
        log = partition.log
        result = FetchResponsePartitionData(
            partition_index=asked.partition,
            high_watermark=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._committed else None,
            records=b"",
        )
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            self.failed = True
            result.error_code = error_codes.OFFSET_OUT_OF_RANGE
            return result
        bytes_max = min(asked.partition_max_bytes, self._bytes_left)
        # The first batch goes out even if it is larger than all bounds: else no consumer could ever read it.
        found = log.read(asked.fetch_offset, bytes_max, committed=self._committed, at_least_one=not self.size_bytes)
        self.size_bytes += found.size_bytes
        self._bytes_left = max(0, self._bytes_left - found.size_bytes)
        result.records = list(found.batches)
        if self._committed:
            result.aborted_transactions = [
                AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a in found.aborted
            ]
        return result


def _epoch_error(partition: Partition, known_epoch: int) -> int:
    if known_epoch == -1 or known_epoch == partition.leader_epoch:
        return 0
    older = known_epoch < partition.leader_epoch
    return error_codes.FENCED_LEADER_EPOCH if older else error_codes.UNKNOWN_LEADER_EPOCH
