"""FindCoordinator: the node that answers for a transactional id or a group; one key up to v3, several from v4 on."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

KEYS_VERSION = 4


def handle(context: RequestContext, request: FindCoordinatorRequest) -> HandlerResult:
    if context.version >= KEYS_VERSION:
        return FindCoordinatorResponse(coordinators=[_find(context, key) for key in request.coordinator_keys])
    found = _find(context, request.key)
    return FindCoordinatorResponse(error_code=found.error_code, node_id=found.node_id, host=found.host, port=found.port)


def _find(context: RequestContext, key: str) -> Coordinator:
    injected = context.injected()
    node = context.cluster.coordinator_for(key)
    if injected or node is None:
        code = injected or error_codes.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)
    return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port)
