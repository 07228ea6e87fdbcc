"""DescribeConfigs: the settings that are acted on here, of topics and of nodes, and what a topic was created with."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.topics import TOPIC_SETTINGS, SettingType
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.describe_configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

_TOPIC_SOURCE = 1
"""The topic was created with the setting (DYNAMIC_TOPIC_CONFIG)."""
_DEFAULT_SOURCE = 5


def handle(context: RequestContext, request: DescribeConfigsRequest) -> HandlerResult:
    return DescribeConfigsResponse(results=[_described(context, resource) for resource in request.resources])


def _described(context: RequestContext, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    code, defaults, topic_config = _settings(context, resource)
    result.error_code = code
    wanted = resource.configuration_keys
    result.configs = [
        DescribeConfigsResourceResult(
            name=name,
            value=value,
            config_source=_TOPIC_SOURCE if name in topic_config else _DEFAULT_SOURCE,
            config_type=TOPIC_SETTINGS[name].type if name in TOPIC_SETTINGS else SettingType.INT,
        )
        for name, value in {**defaults, **topic_config}.items()
        if wanted is None or name in wanted
    ]
    return result


def _settings(
    context: RequestContext, resource: DescribeConfigsResource
) -> tuple[int, Mapping[str, str], Mapping[str, str]]:
    """Return an error code, the default settings, and those that the topic was created with."""
    cluster, name = context.cluster, resource.resource_name
    largest = str(cluster.config.max_message_bytes)
    if resource.resource_type == BROKER_RESOURCE:
        return context.injected(), {"message.max.bytes": largest}, {}
    if resource.resource_type != TOPIC_RESOURCE:
        return error_codes.INVALID_REQUEST, {}, {}
    injected = context.injected(name)
    if injected:
        return injected, {}, {}
    with cluster.lock:
        topic = cluster.topics.get(name)
        if topic is None or topic.hidden:
            return error_codes.UNKNOWN_TOPIC_OR_PARTITION, {}, {}
        defaults = {
            "cleanup.policy": "delete",
            "max.message.bytes": largest,
            "min.insync.replicas": str(topic.min_in_sync_replicas),
        }
        return 0, defaults, dict(topic.config)
