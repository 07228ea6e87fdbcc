"""ListTransactions: return the transactions that this node coordinates.

Requests can filter by state, producer id and duration and, from v2 on, by a pattern of transactional ids (KIP-1152).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.transaction_coordinator import TransactionMetadata, TransactionState
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)


def handle(context: RequestContext, request: ListTransactionsRequest) -> HandlerResult:
    """Return the transactions that pass all filters of the request. An empty filter passes every transaction."""
    injected_code = context.find_injected_error_code()
    if injected_code:
        return ListTransactionsResponse(error_code=injected_code)
    known_states = {state.value for state in TransactionState}
    accepted_states = set(request.state_filters) or known_states  # an empty filter accepts everything
    accepted_producer_ids = set(request.producer_id_filters)
    with context.cluster.lock:
        transactions = [
            transaction
            for transaction in context.cluster.coordinator.transactions.values()
            if transaction.state.value in accepted_states
            and (not accepted_producer_ids or transaction.producer_id in accepted_producer_ids)
            and _matches_duration_filter(transaction, request.duration_filter, context.now_ms)
            and not context.find_coordinator_error_code(transaction.transactional_id)
        ]
    try:
        transactions = _filter_by_pattern(transactions, request.transactional_id_pattern)
    except pa.ArrowInvalid:
        return ListTransactionsResponse(error_code=error_codes.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in known_states],
        transaction_states=[
            ListTransactionsResponseTransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.value,
            )
            for transaction in transactions
        ],
    )


def _filter_by_pattern(transactions: list[TransactionMetadata], pattern: str | None) -> list[TransactionMetadata]:
    """Return the transactions whose id matches the pattern. Raise ArrowInvalid if the pattern is invalid.

    Arrow matches with RE2, as Kafka's brokers do. Python's `re` takes exponential time for some patterns and, because
    it holds the GIL, would block all threads.
    """
    if not pattern:
        return transactions
    ids = pa.array([transaction.transactional_id for transaction in transactions], pa.string())
    matches = pc.match_substring_regex(ids, rf"\A(?:{pattern})\z")
    return [transaction for transaction, is_match in zip(transactions, matches.to_pylist(), strict=True) if is_match]


def _matches_duration_filter(transaction: TransactionMetadata, min_ms: int, now_ms: float) -> bool:
    """Return whether the transaction has been open for more than `min_ms`, or `min_ms` is not positive (no filter)."""
    return min_ms <= 0 or (
        transaction.state is TransactionState.ONGOING and now_ms - transaction.started_at_monotonic_ms > min_ms
    )
