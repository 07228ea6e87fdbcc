"""AddPartitionsToTxn: add partitions to one transaction (up to v3) or several (from v4 on, sent only by brokers).

For each transaction, either all partitions are added or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.handlers.api_22_init_producer_id import translate_error_code_for_version
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

MIN_VERSION_WITH_SEVERAL_TRANSACTIONS = 4
MIN_VERSION_WITH_PRODUCER_FENCED = 2


def handle(context: RequestContext, request: AddPartitionsToTxnRequest) -> HandlerResult:
    """Add the partitions to their transactions. Each partition gets its own error code."""
    if context.version >= MIN_VERSION_WITH_SEVERAL_TRANSACTIONS:
        results = []
        for transaction in request.transactions:
            transactional_id = transaction.transactional_id
            identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
            topic_results = _add_partitions(
                context, transactional_id, identity, transaction.topics, verify_only=transaction.verify_only
            )
            results.append(AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topic_results))
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
    topic_results = _add_partitions(context, transactional_id, identity, topics)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results)


def _add_partitions(
    context: RequestContext,
    transactional_id: str,
    identity: ProducerIdentity,
    topics: Sequence[AddPartitionsToTxnTopic],
    *,
    verify_only: bool = False,
) -> list[AddPartitionsToTxnTopicResult]:
    """Add the partitions to a transaction. `verify_only`: only check that the transaction contains them."""
    cluster = context.cluster
    topic_partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    with cluster.lock:
        common_error_code = context.find_coordinator_error_code(transactional_id)
        if not common_error_code:
            partition_error_codes = {
                topic_partition: _find_partition_error_code(context, *topic_partition)
                for topic_partition in topic_partitions
            }
            if any(partition_error_codes.values()):
                # One unknown partition prevents all others from being added.
                partition_error_codes = {
                    topic_partition: error_code or error_codes.OPERATION_NOT_ATTEMPTED
                    for topic_partition, error_code in partition_error_codes.items()
                }
                return _build_topic_results(topics, partition_error_codes)
            if verify_only:
                partition_error_codes = {
                    topic_partition: cluster.coordinator.verify_partition(transactional_id, identity, topic_partition)
                    for topic_partition in topic_partitions
                }
                return _build_topic_results(topics, partition_error_codes)
            common_error_code = cluster.coordinator.add_partitions(
                transactional_id, identity, topic_partitions, context.now_ms, cluster.wall_ms()
            )
            cluster.save_transactions()
    common_error_code = translate_error_code_for_version(
        common_error_code, context.version, min_version=MIN_VERSION_WITH_PRODUCER_FENCED
    )
    return _build_topic_results(topics, dict.fromkeys(topic_partitions, common_error_code))


def _build_topic_results(
    topics: Sequence[AddPartitionsToTxnTopic], error_codes_by_partition: Mapping[tuple[str, int], int]
) -> list[AddPartitionsToTxnTopicResult]:
    """Arrange the error codes in the order of the requested topics and partitions."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=error_codes_by_partition[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _find_partition_error_code(context: RequestContext, topic_name: str, index: int) -> int:
    topic = context.cluster.topics.get(topic_name)
    exists = topic is not None and 0 <= index < len(topic.partitions)
    return 0 if exists else error_codes.UNKNOWN_TOPIC_OR_PARTITION
