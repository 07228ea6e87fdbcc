"""ListTransactions: those that this node coordinates, filtered as asked; v2 takes a pattern (KIP-1152)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.transaction_coordinator import Transaction, TransactionState
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)


def handle(context: RequestContext, request: ListTransactionsRequest) -> HandlerResult:
    injected = context.injected()
    if injected:
        return ListTransactionsResponse(error_code=injected)
    known = {state.value for state in TransactionState}
    states, ids = set(request.state_filters) or known, set(request.producer_id_filters)
    with context.cluster.lock:
        found = [
            each
            for each in context.cluster.coordinator.transactions.values()
            if each.state.value in states
            and (not ids or each.producer_id in ids)
            and _has_lasted(each, request.duration_filter, context.now)
            and not context.coordinator_error(each.transactional_id)
        ]
    try:
        found = _matching(found, request.transactional_id_pattern)
    except pa.ArrowInvalid:
        return ListTransactionsResponse(error_code=error_codes.INVALID_REGULAR_EXPRESSION)
    listed = [
        ListTransactionsResponseTransactionState(
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


def _has_lasted(transaction: Transaction, ms: int, now: float) -> bool:
    """A limit that is not positive is none."""
    return ms <= 0 or (transaction.state is TransactionState.ONGOING and now - transaction.start_ms > ms)
