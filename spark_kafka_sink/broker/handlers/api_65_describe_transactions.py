"""DescribeTransactions: return the state, producer and partitions of transactions that this node coordinates."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
)


def handle(context: RequestContext, request: DescribeTransactionsRequest) -> HandlerResult:
    with context.cluster.lock:
        states = [_describe_transaction(context, name) for name in dict.fromkeys(request.transactional_ids)]
    return DescribeTransactionsResponse(transaction_states=states)


def _describe_transaction(
    context: RequestContext, transactional_id: str
) -> DescribeTransactionsResponseTransactionState:
    """Return the state of a transaction, or an error code if it does not exist or another node coordinates it."""
    error_code = context.find_coordinator_error_code(transactional_id)
    transaction = context.cluster.coordinator.transactions.get(transactional_id)
    if error_code or transaction is None:
        return DescribeTransactionsResponseTransactionState(
            transactional_id=transactional_id, error_code=error_code or error_codes.TRANSACTIONAL_ID_NOT_FOUND
        )
    partitions_by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        partitions_by_topic.setdefault(topic, []).append(index)
    return DescribeTransactionsResponseTransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_at_wall_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            DescribeTransactionsResponseTopicData(topic=topic, partitions=partitions)
            for topic, partitions in partitions_by_topic.items()
        ],
    )
