"""DescribeConfigs: return the settings that have an effect here, and the settings that a topic was created with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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

_TOPIC_CONFIG_SOURCE = 1
"""DYNAMIC_TOPIC_CONFIG: the topic was created with the setting."""
_DEFAULT_CONFIG_SOURCE = 5


class _ResourceSettings(NamedTuple):
    """The settings of a topic or broker, or the error code if the resource cannot be described."""

    error_code: int = 0
    defaults: Mapping[str, str] = {}
    topic_config: Mapping[str, str] = {}
    """The settings that the topic was created with. They override the defaults."""


def handle(context: RequestContext, request: DescribeConfigsRequest) -> HandlerResult:
    return DescribeConfigsResponse(results=[_describe_resource(context, resource) for resource in request.resources])


def _describe_resource(context: RequestContext, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    """Return the requested settings of a topic or broker; all of them if the request names none."""
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    settings = _find_settings(context, resource)
    result.error_code = settings.error_code
    requested_names = resource.configuration_keys
    result.configs = [
        DescribeConfigsResourceResult(
            name=name,
            value=value,
            config_source=_TOPIC_CONFIG_SOURCE if name in settings.topic_config else _DEFAULT_CONFIG_SOURCE,
            config_type=TOPIC_SETTINGS[name].type if name in TOPIC_SETTINGS else SettingType.INT,
        )
        for name, value in {**settings.defaults, **settings.topic_config}.items()
        if requested_names is None or name in requested_names
    ]
    return result


def _find_settings(context: RequestContext, resource: DescribeConfigsResource) -> _ResourceSettings:
    """Return the settings of a topic or of the brokers, or the error code if there is no such resource."""
    cluster, name = context.cluster, resource.resource_name
    max_message_bytes = str(cluster.config.max_message_bytes)
    if resource.resource_type == BROKER_RESOURCE:
        return _ResourceSettings(context.find_injected_error_code(), {"message.max.bytes": max_message_bytes})
    if resource.resource_type != TOPIC_RESOURCE:
        return _ResourceSettings(error_codes.INVALID_REQUEST)
    injected_code = context.find_injected_error_code(name)
    if injected_code:
        return _ResourceSettings(injected_code)
    with cluster.lock:
        topic = cluster.topics.get(name)
        if topic is None or topic.is_hidden:
            return _ResourceSettings(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        defaults = {
            "cleanup.policy": "delete",
            "max.message.bytes": max_message_bytes,
            "min.insync.replicas": str(topic.min_in_sync_replicas),
        }
        return _ResourceSettings(defaults=defaults, topic_config=dict(topic.config))
