"""DescribeConfigs: the settings that are acted on here, of topics and of nodes, and what a topic was created with."""

from __future__ import annotations

from spark_kafka_sink.broker.context import Handled, RequestContext
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.describe_configs import (
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)


def handle(context: RequestContext, request: DescribeConfigsRequest) -> Handled:
    return DescribeConfigsResponse(results=[_described(context, resource) for resource in request.resources])


def _described(context: RequestContext, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    code, settings = _settings(context, resource)
    result.error_code = code
    wanted = resource.configuration_keys
    result.configs = [
        DescribeConfigsResourceResult(name=name, value=value)
        for name, value in settings.items()
        if wanted is None or name in wanted
    ]
    return result


def _settings(context: RequestContext, resource: DescribeConfigsResource) -> tuple[int, dict[str, str]]:
    cluster, name = context.cluster, resource.resource_name
    largest = str(cluster.config.message_bytes_max)
    if resource.resource_type == BROKER:
        return context.injected(), {"message.max.bytes": largest}
    if resource.resource_type != TOPIC:
        return error_codes.INVALID_REQUEST, {}
    injected = context.injected(name)
    if injected:
        return injected, {}
    with cluster.lock:
        topic = cluster.topics.get(name)
        if topic is None or topic.hidden:
            return error_codes.UNKNOWN_TOPIC_OR_PARTITION, {}
        settings = {"max.message.bytes": largest, "min.insync.replicas": str(topic.min_in_sync)}
        return 0, {"cleanup.policy": "delete", **settings, **topic.config}
