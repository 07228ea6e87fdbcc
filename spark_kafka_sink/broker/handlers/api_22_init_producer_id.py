"""InitProducerId: assign a producer id and epoch. For a transactional id, the epoch fences previous producers."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.transaction_coordinator import NO_PRODUCER_ID, ProducerIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FIRST_FENCED_ERROR_VERSION = 4


def handle(context: RequestContext, request: InitProducerIdRequest) -> HandlerResult:
    cluster = context.cluster
    transactional_id = request.transactional_id
    error = (
        context.find_injected_error() if transactional_id is None else context.find_coordinator_error(transactional_id)
    )
    if error:
        return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=error_codes.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    expected_identity = None
    if request.producer_id != NO_PRODUCER_ID:
        expected_identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    with cluster.lock:
        identity = cluster.coordinator.init_producer_id(
            transactional_id, request.transaction_timeout_ms, expected_identity
        )
        cluster.save_transactions()
    return InitProducerIdResponse(
        error_code=to_known_error(identity.error_code, context.version, FIRST_FENCED_ERROR_VERSION),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


def to_known_error(error: int, version: int, fenced_error_version: int) -> int:
    """Replace PRODUCER_FENCED with INVALID_PRODUCER_EPOCH for versions whose clients do not know the newer code."""
    if error == error_codes.PRODUCER_FENCED and version < fenced_error_version:
        return error_codes.INVALID_PRODUCER_EPOCH
    return error
