"""EndTxn: commit or abort a transaction. In transaction version 2 (v5 and later), the response has a new epoch."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.handlers.api_22_init_producer_id import translate_error_code_for_version
from spark_kafka_sink.broker.producer_state import NO_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

MIN_VERSION_WITH_PRODUCER_FENCED = 2
MIN_VERSION_WITH_TRANSACTIONS_V2 = 5


def handle(context: RequestContext, request: EndTxnRequest) -> HandlerResult:
    """Commit or abort the transaction, and return the identity for the producer's next transaction."""
    cluster = context.cluster
    error_code = context.find_coordinator_error_code(request.transactional_id)
    if error_code:
        return EndTxnResponse(error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    with cluster.lock:
        coordinator = cluster.coordinator
        transaction_version = (
            2 if context.version >= MIN_VERSION_WITH_TRANSACTIONS_V2 and coordinator.version >= 2 else 1
        )
        end_result = coordinator.end_transaction(
            request.transactional_id, identity, commit=request.committed, transaction_version=transaction_version
        )
        cluster.save_transactions()
    return EndTxnResponse(
        error_code=translate_error_code_for_version(
            end_result.error_code, context.version, min_version=MIN_VERSION_WITH_PRODUCER_FENCED
        ),
        producer_id=end_result.producer_id,
        producer_epoch=end_result.epoch,
    )
