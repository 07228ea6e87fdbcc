"""DescribeTransactions."""

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
        states = [_describe(context, name) for name in dict.fromkeys(request.transactional_ids)]
    return DescribeTransactionsResponse(transaction_states=states)


def _describe(context: RequestContext, name: str) -> DescribeTransactionsResponseTransactionState:
    error = context.coordinator_error(name)
    transaction = context.cluster.coordinator.transactions.get(name)
    if error or transaction is None:
        return DescribeTransactionsResponseTransactionState(
            transactional_id=name, error_code=error or error_codes.TRANSACTIONAL_ID_NOT_FOUND
        )
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    return DescribeTransactionsResponseTransactionState(
        transactional_id=name,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_wall_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            DescribeTransactionsResponseTopicData(topic=topic, partitions=indexes)
            for topic, indexes in by_topic.items()
        ],
    )
