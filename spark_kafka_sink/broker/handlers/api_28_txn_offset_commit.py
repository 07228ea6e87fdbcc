"""TxnOffsetCommit: offsets that hold once their transaction commits."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

TRANSACTIONS_V2_VERSION = 5


def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> HandlerResult:
    cluster = context.cluster
    with cluster.lock:
        error = context.coordinator_error(request.group_id) or _let_in(context, request) or _fault(context, request)
        if not error:
            cluster.offsets.commit_in_transaction(
                request.producer_id,
                request.group_id,
                {
                    (topic.name, each.partition_index): CommittedOffset(
                        each.committed_offset, each.committed_leader_epoch, each.committed_metadata
                    )
                    for topic in request.topics
                    for each in topic.partitions
                },
            )
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


def _fault(context: RequestContext, request: TxnOffsetCommitRequest) -> int:
    """The first fault among the offsets: all of them are taken, or none."""
    offsets = context.cluster.offsets
    faults = (
        offsets.fault(request.group_id, (topic.name, each.partition_index), each.committed_metadata)
        for topic in request.topics
        for each in topic.partitions
    )
    return next((fault for fault in faults if fault), 0)


def _let_in(context: RequestContext, request: TxnOffsetCommitRequest) -> int:
    coordinator = context.cluster.coordinator
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    if context.version >= TRANSACTIONS_V2_VERSION and coordinator.version >= 2:
        error = coordinator.add_group(
            request.transactional_id, identity, request.group_id, context.now, context.cluster.wall_ms(), version=2
        )
        context.cluster.save_transactions()
    else:
        error = coordinator.verify_group(request.transactional_id, identity, request.group_id)
    return error_codes.INVALID_PRODUCER_EPOCH if error == error_codes.PRODUCER_FENCED else error
