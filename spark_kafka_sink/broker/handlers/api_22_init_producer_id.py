"""InitProducerId: an identity for a producer; with a transactional id, one that fences all earlier holders."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.transaction_coordinator import NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FENCED_ERROR_VERSION = 4


def handle(context: RequestContext, request: InitProducerIdRequest) -> HandlerResult:
    cluster = context.cluster
    name = request.transactional_id
    error = context.injected() if name is None else context.coordinator_error(name)
    if error:
        return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
    expected = None
    if (request.producer_id == NO_PRODUCER) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=error_codes.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    if request.producer_id != NO_PRODUCER:
        expected = ProducerIdentity(request.producer_id, request.producer_epoch)
    with cluster.lock:
        identity = cluster.coordinator.init_producer_id(name, request.transaction_timeout_ms, expected)
        cluster.save_transactions()
    return InitProducerIdResponse(
        error_code=client_error(identity.error, context.version, FENCED_ERROR_VERSION),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


def client_error(error: int, version: int, fenced_error_version: int) -> int:
    """Clients older than PRODUCER_FENCED know the case as INVALID_PRODUCER_EPOCH."""
    if error == error_codes.PRODUCER_FENCED and version < fenced_error_version:
        return error_codes.INVALID_PRODUCER_EPOCH
    return error
