"""ApiVersions: return the supported versions of all APIs, and the supported and finalized features."""

from __future__ import annotations

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.supported_versions import select_supported_versions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

TRANSACTION_VERSION_FEATURE = "transaction.version"
MIN_VERSION_WITH_LEVEL_0_FEATURES = 4
"""The first request version whose response contains supported features with minimum level 0.

Java clients before 3.9 request older versions. Some of these clients cannot connect if a response contains a feature
with minimum level 0 (KAFKA-17011), so brokers omit such features.
"""


def handle(context: RequestContext, request: ApiVersionsRequest) -> HandlerResult:
    """Return the versions, or reject a connection that was meant for another cluster or node (KIP-1242)."""
    error_code = context.find_injected_error_code() or _find_routing_error_code(context, request)
    if error_code in (error_codes.INVALID_REQUEST, error_codes.REBOOTSTRAP_REQUIRED):
        return ApiVersionsResponse(error_code=error_code)
    response = build_api_versions_response(context.cluster, context.version)
    response.error_code = error_code
    return response


def _find_routing_error_code(context: RequestContext, request: ApiVersionsRequest) -> int:
    """Return the error code if the connection was meant for another cluster or node, else 0 (KIP-1242)."""
    if request.cluster_id is None and request.node_id == -1:
        return 0
    if request.cluster_id is None or request.node_id == -1:
        return error_codes.INVALID_REQUEST
    is_for_this_node = (request.cluster_id, request.node_id) == (context.cluster.cluster_id, context.node_id)
    return 0 if is_for_this_node else error_codes.REBOOTSTRAP_REQUIRED


def build_api_versions_response(cluster: EmbeddedCluster, version: int) -> ApiVersionsResponse:
    """Build a successful response to a request of this version."""
    with cluster.lock:
        transaction_version = cluster.coordinator.version
    response = ApiVersionsResponse(
        api_keys=_list_api_versions(cluster),
        finalized_features_epoch=transaction_version + 1,  # must increase when a test raises the version
    )
    if version >= MIN_VERSION_WITH_LEVEL_0_FEATURES:
        response.supported_features = [
            SupportedFeatureKey(name=TRANSACTION_VERSION_FEATURE, min_version=0, max_version=2)
        ]
    if transaction_version > 0:  # a feature of level 0 is not finalized
        response.finalized_features = [
            FinalizedFeatureKey(
                name=TRANSACTION_VERSION_FEATURE,
                max_version_level=transaction_version,
                min_version_level=transaction_version,
            )
        ]
    return response


def build_unsupported_version_response(cluster: EmbeddedCluster) -> ApiVersionsResponse:
    """Build the response to an ApiVersions request of an unsupported version.

    Encode it in version 0, which every client can decode. The client then retries with a supported version.
    """
    return ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION, api_keys=_list_api_versions(cluster))


def _list_api_versions(cluster: EmbeddedCluster) -> list[ApiVersion]:
    versions = select_supported_versions(cluster.config.version_limits)
    return [
        ApiVersion(api_key=key, min_version=supported_range.min, max_version=supported_range.max)
        for key, supported_range in sorted(versions.items())
    ]
