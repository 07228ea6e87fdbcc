"""ListTransactions: those that this node coordinates, filtered as asked; v2 takes a pattern (KIP-1152)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.broker.context import Handled, RequestContext
from spark_kafka_sink.broker.transactions import Transaction, TransactionState
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.list_transactions import TransactionState as ListedTransaction


def handle(context: RequestContext, request: ListTransactionsRequest) -> Handled:
    injected = context.injected()
    if injected:
        return ListTransactionsResponse(error_code=injected)
    known = {state.value for state in TransactionState}
    with context.cluster.lock:
        transactions = context.cluster.coordinator.transactions.values()
        found = [transaction for transaction in transactions if _wanted(context, request, transaction)]
    try:
        found = _matching(found, request.transactional_id_pattern)
    except pa.ArrowInvalid:
        return ListTransactionsResponse(error_code=error_codes.INVALID_REGULAR_EXPRESSION)
    listed = [
        ListedTransaction(
            transactional_id=each.transactional_id,
            producer_id=each.producer_id,
            transaction_state=each.state.value,
        )
        for each in found
    ]
    unknown = [name for name in request.state_filters if name not in known]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)


def _matching(transactions: list[Transaction], pattern: str | None) -> list[Transaction]:
    """By RE2, as brokers do it: Python's own `re` takes exponential time for some patterns, and holds its lock."""
    if not pattern:
        return transactions
    names = pa.array([each.transactional_id for each in transactions], pa.string())
    matches = pc.match_substring_regex(names, rf"\A(?:{pattern})\z")
    return [each for each, fits in zip(transactions, matches.to_pylist(), strict=True) if fits]


def _wanted(context: RequestContext, request: ListTransactionsRequest, transaction: Transaction) -> bool:
    if context.coordinator_error(transaction.transactional_id):
        return False
    if request.state_filters and transaction.state.value not in request.state_filters:
        return False
    if request.producer_id_filters and transaction.producer_id not in request.producer_id_filters:
        return False
    if request.duration_filter > 0:
        lasted_ms = context.now - transaction.start_ms
        return transaction.state is TransactionState.ONGOING and lasted_ms > request.duration_filter
    return True
