"""AddPartitionsToTxn: one transaction up to v3, several (asked for by brokers) from v4 on. All partitions or none."""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.handlers.api_22_init_producer_id import client_error
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)

SEVERAL_VERSION = 4
FENCED_ERROR_VERSION = 2


def handle(context: RequestContext, request: AddPartitionsToTxnRequest) -> HandlerResult:
    if context.version >= SEVERAL_VERSION:
        results = []
        for each in request.transactions:
            identity = ProducerIdentity(each.producer_id, each.producer_epoch)
            topics = _add(context, each.transactional_id, identity, each.topics, verify_only=each.verify_only)
            results.append(AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=topics))
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    name, asked = request.v3_and_below_transactional_id, request.v3_and_below_topics
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_add(context, name, identity, asked))


def _add(
    context: RequestContext,
    name: str,
    identity: ProducerIdentity,
    topics: Sequence[AddPartitionsToTxnTopic],
    *,
    verify_only: bool = False,
) -> list[AddPartitionsToTxnTopicResult]:
    cluster = context.cluster
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    with cluster.lock:
        errors = {each: _unknown(context, *each) for each in partitions}
        common = context.coordinator_error(name)
        if not common and not any(errors.values()):
            if verify_only:
                errors = {each: cluster.coordinator.verify_partition(name, identity, each) for each in partitions}
            else:
                common = cluster.coordinator.add_partitions(name, identity, partitions, context.now, cluster.wall_ms())
                cluster.save_transactions()
        elif not common:
            errors = {each: error or error_codes.OPERATION_NOT_ATTEMPTED for each, error in errors.items()}
    common = client_error(common, context.version, FENCED_ERROR_VERSION)
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=common or errors[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _unknown(context: RequestContext, topic: str, index: int) -> int:
    found = context.cluster.topics.get(topic)
    known = found is not None and 0 <= index < len(found.partitions)
    return 0 if known else error_codes.UNKNOWN_TOPIC_OR_PARTITION
