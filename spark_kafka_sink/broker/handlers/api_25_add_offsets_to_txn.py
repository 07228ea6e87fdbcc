"""AddOffsetsToTxn: add a consumer group to a transaction, so that its offsets can be committed with the transaction."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.handlers.api_22_init_producer_id import translate_error_code_for_version
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

MIN_VERSION_WITH_PRODUCER_FENCED = 2


def handle(context: RequestContext, request: AddOffsetsToTxnRequest) -> HandlerResult:
    """Add the consumer group to the producer's transaction."""
    cluster = context.cluster
    error_code = context.find_coordinator_error_code(request.transactional_id)
    if not error_code:
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        with cluster.lock:
            error_code = cluster.coordinator.add_group(
                request.transactional_id, identity, request.group_id, context.now_ms, cluster.wall_ms()
            )
            cluster.save_transactions()
    return AddOffsetsToTxnResponse(
        error_code=translate_error_code_for_version(
            error_code, context.version, min_version=MIN_VERSION_WITH_PRODUCER_FENCED
        )
    )
