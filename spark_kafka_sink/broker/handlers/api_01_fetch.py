"""Fetch: return stored batches and, for read_committed consumers, the aborted transactions among them.

A partition is read only once, even if it appears more than once in the request. A response carries at most
MAX_RESPONSE_BYTES of batches, except that its first batch is always included. If fewer than min_bytes are available,
the request is handled again whenever the cluster changes, until max_wait_ms have passed. Fetch sessions are not
supported: every response has session id 0, so the client lists all its partitions in every request.
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

MAX_RESPONSE_BYTES = 55 * 1024 * 1024
"""Kafka's default for fetch.max.bytes."""

MAX_WAIT_MS = 600_000
"""Upper limit on max_wait_ms, because a delayed request occupies memory even after its client has disconnected."""

MIN_VERSION_WITH_TOPIC_IDS = 13
READ_COMMITTED = 1


def handle(context: RequestContext, request: FetchRequest) -> HandlerResult:
    """Return the available batches, or a DelayedResponse while there are fewer bytes than the client requires."""
    reader = _FetchReader(context, request)
    response = FetchResponse(responses=[reader.read_topic(topic) for topic in request.topics])
    deadline_ms = context.received_ms + min(request.max_wait_ms, MAX_WAIT_MS)
    has_enough_bytes = reader.size_bytes >= request.min_bytes
    # Errors are returned at once, so that the client can react to them.
    if has_enough_bytes or reader.has_errors or context.now_ms >= deadline_ms:
        return response
    return DelayedResponse(deadline_ms)


class _FetchReader:
    """Reads the partitions of one request, up to the request's byte limit. Call `read_topic` for each of its topics."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self.size_bytes = 0
        """Size of all batches read so far."""
        self.has_errors = False
        """Whether any partition so far has an error code."""
        self._context = context
        self._remaining_bytes = min(request.max_bytes, MAX_RESPONSE_BYTES)
        self._partitions_read: set[tuple[str, UUID, int]] = set()
        self._is_read_committed = request.isolation_level == READ_COMMITTED

    def read_topic(self, requested_topic: FetchTopic) -> FetchableTopicResponse:
        """Read the requested partitions of a topic, except those that this request has already read."""
        cluster = self._context.cluster
        if self._context.version >= MIN_VERSION_WITH_TOPIC_IDS:
            topic = cluster.find_topic_by_id(requested_topic.topic_id)
        else:
            topic = cluster.find_topic(requested_topic.topic)
        results = []
        for requested_partition in requested_topic.partitions:
            key = requested_topic.topic, requested_topic.topic_id, requested_partition.partition
            if key not in self._partitions_read:
                self._partitions_read.add(key)
                results.append(self._read_partition(topic, requested_partition))
        return FetchableTopicResponse(
            topic=requested_topic.topic, topic_id=requested_topic.topic_id, partitions=results
        )

    def _read_partition(self, topic: Topic | None, requested_partition: FetchPartition) -> FetchResponsePartitionData:
        """Read a partition. Return only an error code unless this node leads the partition in the requested epoch."""
        partition, error_code = self._context.get_partition_or_error_code(topic, requested_partition.partition)
        if topic is None and self._context.version >= MIN_VERSION_WITH_TOPIC_IDS:
            # From this version on, requests identify a topic only by its id, so the error is about the id.
            error_code = error_codes.UNKNOWN_TOPIC_ID
        if partition is not None:
            error_code = _find_epoch_error_code(partition, requested_partition.current_leader_epoch)
        if partition is None or error_code:
            self.has_errors = True
            return FetchResponsePartitionData(
                partition_index=requested_partition.partition, error_code=error_code, high_watermark=-1, records=b""
            )
        return self._read_log(partition, requested_partition)

    def _read_log(self, partition: Partition, requested_partition: FetchPartition) -> FetchResponsePartitionData:
        """Read batches from the requested offset on, and count their size toward the request's limit."""
        log = partition.log
        result = FetchResponsePartitionData(
            partition_index=requested_partition.partition,
            high_watermark=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._is_read_committed else None,
            records=b"",
        )
        if not log.log_start_offset <= requested_partition.fetch_offset <= log.log_end_offset:
            self.has_errors = True
            result.error_code = error_codes.OFFSET_OUT_OF_RANGE
            return result
        max_bytes = min(requested_partition.partition_max_bytes, self._remaining_bytes)
        # Return the first batch even if it exceeds all limits, because otherwise no consumer could ever read it.
        log_data = log.read(
            requested_partition.fetch_offset,
            max_bytes,
            committed=self._is_read_committed,
            min_one_batch=not self.size_bytes,
        )
        self.size_bytes += log_data.size_bytes
        self._remaining_bytes = max(0, self._remaining_bytes - log_data.size_bytes)
        result.records = list(log_data.batches)
        if self._is_read_committed:
            result.aborted_transactions = [
                AbortedTransaction(producer_id=aborted_range.producer_id, first_offset=aborted_range.first_offset)
                for aborted_range in log_data.aborted_ranges
            ]
        return result


def _find_epoch_error_code(partition: Partition, requested_epoch: int) -> int:
    """Return 0 if the requested leader epoch is the current one or -1 (any epoch), else the error code."""
    if requested_epoch == -1 or requested_epoch == partition.leader_epoch:
        return 0
    is_older = requested_epoch < partition.leader_epoch
    return error_codes.FENCED_LEADER_EPOCH if is_older else error_codes.UNKNOWN_LEADER_EPOCH
