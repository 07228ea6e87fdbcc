"""EndTxn: commit or abort. From v5 on, in a cluster of transaction version 2, the answer has a new epoch."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.handlers.api_22_init_producer_id import client_error
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

FENCED_ERROR_VERSION = 2
TRANSACTIONS_V2_VERSION = 5


def handle(context: RequestContext, request: EndTxnRequest) -> HandlerResult:
    cluster = context.cluster
    error = context.coordinator_error(request.transactional_id)
    if error:
        return EndTxnResponse(error_code=error, producer_id=-1, producer_epoch=-1)
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    with cluster.lock:
        version = 2 if context.version >= TRANSACTIONS_V2_VERSION and cluster.coordinator.version >= 2 else 1
        ended = cluster.coordinator.end(request.transactional_id, identity, commit=request.committed, version=version)
        cluster.save_transactions()
    return EndTxnResponse(
        error_code=client_error(ended.error, context.version, FENCED_ERROR_VERSION),
        producer_id=ended.producer_id,
        producer_epoch=ended.epoch,
    )
