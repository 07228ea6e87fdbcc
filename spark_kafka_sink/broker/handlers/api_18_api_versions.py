"""ApiVersions: returns the supported versions of all APIs, and the finalized features."""

from __future__ import annotations

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.supported_versions import supported_versions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

TRANSACTION_VERSION_FEATURE = "transaction.version"


def handle(context: RequestContext, request: ApiVersionsRequest) -> HandlerResult:
    response = build_api_versions_response(context.cluster)
    response.error_code = context.injected_error()
    return response


def build_api_versions_response(cluster: EmbeddedCluster) -> ApiVersionsResponse:
    with cluster.lock:
        level = cluster.coordinator.version
    response = ApiVersionsResponse(
        api_keys=_list_api_versions(cluster),
        supported_features=[SupportedFeatureKey(name=TRANSACTION_VERSION_FEATURE, min_version=0, max_version=2)],
        finalized_features_epoch=level + 1,  # must increase when a test raises the level
    )
    if level > 0:
        response.finalized_features = [
            FinalizedFeatureKey(name=TRANSACTION_VERSION_FEATURE, max_version_level=level, min_version_level=level)
        ]
    return response


def build_unsupported_version_response(cluster: EmbeddedCluster) -> ApiVersionsResponse:
    """Build the response to an unsupported version of ApiVersions.

    It must be encoded in version 0, which every client can decode. The client retries with a supported version.
    """
    return ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION, api_keys=_list_api_versions(cluster))


def _list_api_versions(cluster: EmbeddedCluster) -> list[ApiVersion]:
    versions = supported_versions(cluster.config.version_limits)
    return [
        ApiVersion(api_key=key, min_version=supported.min, max_version=supported.max)
        for key, supported in sorted(versions.items())
    ]
