"""ApiVersions: what is spoken here, and the finalized features."""

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

TRANSACTION_VERSION = "transaction.version"


def handle(context: RequestContext, request: ApiVersionsRequest) -> HandlerResult:
    response = describe(context.cluster)
    response.error_code = context.injected()
    return response


def describe(cluster: EmbeddedCluster) -> ApiVersionsResponse:
    with cluster.lock:
        level = cluster.coordinator.version
    response = ApiVersionsResponse(
        api_keys=_api_keys(cluster),
        supported_features=[SupportedFeatureKey(name=TRANSACTION_VERSION, min_version=0, max_version=2)],
        finalized_features_epoch=level + 1,  # grows when the level is raised
    )
    if level > 0:
        response.finalized_features = [
            FinalizedFeatureKey(name=TRANSACTION_VERSION, max_version_level=level, min_version_level=level)
        ]
    return response


def unsupported_version(cluster: EmbeddedCluster) -> ApiVersionsResponse:
    """The answer to a version that is not spoken, in version 0: a client tries again with one that is."""
    return ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION, api_keys=_api_keys(cluster))


def _api_keys(cluster: EmbeddedCluster) -> list[ApiVersion]:
    spoken = supported_versions(cluster.config.version_limits)
    return [ApiVersion(api_key=key, min_version=v.min, max_version=v.max) for key, v in sorted(spoken.items())]
