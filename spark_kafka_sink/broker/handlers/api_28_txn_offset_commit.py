"""TxnOffsetCommit: store offsets of a consumer group, to be committed together with a transaction."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.offsets import CommittedOffset, TopicPartition
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

MIN_VERSION_WITH_TRANSACTIONS_V2 = 5


def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> HandlerResult:
    """Store the group's offsets until the transaction ends.

    An error of the coordinator or the transaction rejects all offsets of existing partitions.
    """
    cluster = context.cluster
    with cluster.lock:
        offsets = {
            (topic.name, partition.partition_index): CommittedOffset(
                partition.committed_offset, partition.committed_leader_epoch, partition.committed_metadata
            )
            for topic in request.topics
            for partition in topic.partitions
            if cluster.has_partition(topic.name, partition.partition_index)
        }
        # As in KafkaApis.handleTxnOffsetCommitRequest, a request without existing partitions does not add the group.
        error_codes_by_partition = _store_offsets(context, request, offsets) if offsets else {}
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=error_codes_by_partition.get(
                        (topic.name, partition.partition_index), error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    ),
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


def _store_offsets(
    context: RequestContext, request: TxnOffsetCommitRequest, offsets: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, int]:
    """Add the valid offsets to the transaction. Return the error code of each offset; 0 if it was added."""
    error_code = context.find_coordinator_error_code(request.group_id) or _ensure_group_in_transaction(context, request)
    if error_code:
        return dict.fromkeys(offsets, error_code)
    store = context.cluster.offsets
    error_codes_by_partition = {
        topic_partition: store.find_commit_error_code(request.group_id, topic_partition, offset.metadata)
        for topic_partition, offset in offsets.items()
    }
    valid_offsets = {
        topic_partition: offset
        for topic_partition, offset in offsets.items()
        if not error_codes_by_partition[topic_partition]
    }
    store.commit_in_transaction(request.producer_id, request.group_id, valid_offsets)
    return error_codes_by_partition


def _ensure_group_in_transaction(context: RequestContext, request: TxnOffsetCommitRequest) -> int:
    """Return 0 if the transaction contains the group, else the error code.

    If the request and the cluster use version 2 of transactions (KIP-890), add the group first, and save the change.
    """
    coordinator = context.cluster.coordinator
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    if context.version >= MIN_VERSION_WITH_TRANSACTIONS_V2 and coordinator.version >= 2:
        error_code = coordinator.add_group(
            request.transactional_id,
            identity,
            request.group_id,
            context.now_ms,
            context.cluster.wall_ms(),
            transaction_version=2,
        )
        context.cluster.save_transactions()
    else:
        error_code = coordinator.verify_group(request.transactional_id, identity, request.group_id)
    # As in a Produce response, a fenced producer gets the older code, which the clients of this API expect.
    return error_codes.INVALID_PRODUCER_EPOCH if error_code == error_codes.PRODUCER_FENCED else error_code
