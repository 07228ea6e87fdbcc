"""FindCoordinator: return the coordinators of transactional ids or groups, for one key (up to v3) or several."""

from __future__ import annotations

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

MIN_VERSION_WITH_SEVERAL_KEYS = 4


def handle(context: RequestContext, request: FindCoordinatorRequest) -> HandlerResult:
    """Return the coordinator of each requested key. Older versions request only one."""
    if context.version >= MIN_VERSION_WITH_SEVERAL_KEYS:
        coordinators = [_find_coordinator(context, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=coordinators)
    coordinator = _find_coordinator(context, request.key)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _find_coordinator(context: RequestContext, key: str) -> Coordinator:
    injected_code = context.find_injected_error_code()
    node = context.cluster.find_coordinator(key)
    if injected_code or node is None:
        code = injected_code or error_codes.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)
    return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port)
