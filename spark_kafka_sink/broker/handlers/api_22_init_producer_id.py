"""InitProducerId: assign a producer id and epoch. For a transactional id, the epoch fences previous producers."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.producer_state import NO_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

MIN_VERSION_WITH_PRODUCER_FENCED = 4


def handle(context: RequestContext, request: InitProducerIdRequest) -> HandlerResult:
    """Assign a producer id and epoch. A request without a transactional id may go to any node."""
    cluster = context.cluster
    transactional_id = request.transactional_id
    error_code = (
        context.find_injected_error_code()
        if transactional_id is None
        else context.find_coordinator_error_code(transactional_id)
    )
    if error_code:
        return _reject(error_code)
    has_producer_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_EPOCH
    if has_producer_id != has_epoch:  # an identity needs both
        return _reject(error_codes.INVALID_REQUEST)
    expected_identity = None
    if has_producer_id:
        expected_identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    with cluster.lock:
        init_result = cluster.coordinator.init_producer_id(
            transactional_id, request.transaction_timeout_ms, expected_identity
        )
        cluster.save_transactions()
    return InitProducerIdResponse(
        error_code=translate_error_code_for_version(
            init_result.error_code, context.version, min_version=MIN_VERSION_WITH_PRODUCER_FENCED
        ),
        producer_id=init_result.producer_id,
        producer_epoch=init_result.epoch,
    )


def _reject(error_code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


def translate_error_code_for_version(error_code: int, version: int, *, min_version: int) -> int:
    """Replace PRODUCER_FENCED with INVALID_PRODUCER_EPOCH for clients that do not know the newer code.

    `min_version`: the first version of the API in which clients know PRODUCER_FENCED.
    """
    if error_code == error_codes.PRODUCER_FENCED and version < min_version:
        return error_codes.INVALID_PRODUCER_EPOCH
    return error_code
