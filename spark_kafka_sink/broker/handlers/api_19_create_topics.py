"""CreateTopics: all that can be are created together, so that the cluster is saved once."""

from __future__ import annotations

from collections import Counter

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.topics import TopicDefinition, log_config
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name


def handle(context: RequestContext, request: CreateTopicsRequest) -> HandlerResult:
    cluster = context.cluster
    requested = Counter(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    wanted: dict[str, TopicDefinition] = {}
    with cluster.lock:
        left = cluster.partitions_left()
        for topic in request.topics:
            new, result = _resolve_defaults(context, topic)
            if requested[topic.name] > 1:
                result.error_code, result.error_message = error_codes.INVALID_REQUEST, "the topic is named twice"
            else:
                result.error_code, result.error_message = _fault(context, topic, new, left)
            if not result.error_code:
                left -= new.partitions
                wanted[new.name] = new
            results.append(result)
        if not request.validate_only:
            _create(context, wanted, {result.name or "": result for result in results})
    return CreateTopicsResponse(topics=results)


def _resolve_defaults(
    context: RequestContext, requested: CreatableTopic
) -> tuple[TopicDefinition, CreatableTopicResult]:
    cluster = context.cluster
    partitions = len(requested.assignments) or (
        cluster.config.default_partitions if requested.num_partitions == -1 else requested.num_partitions
    )
    settings = {each.name: each.value for each in requested.configs if each.value is not None}
    result = CreatableTopicResult(name=requested.name, num_partitions=partitions)
    result.replication_factor = (
        len(cluster.nodes) if requested.replication_factor == -1 else requested.replication_factor
    )
    return TopicDefinition(requested.name, partitions, settings), result


def _create(
    context: RequestContext, wanted: dict[str, TopicDefinition], results: dict[str, CreatableTopicResult]
) -> None:
    try:
        for topic in context.cluster.create_topics(list(wanted.values())):
            results[topic.name].topic_id = topic.id
    except ApiError as refusal:
        for name in wanted:
            results[name].error_code, results[name].error_message = refusal.code, refusal.reason


def _fault(
    context: RequestContext, requested: CreatableTopic, new: TopicDefinition, left: int
) -> tuple[int, str | None]:
    cluster = context.cluster
    injected = context.injected(requested.name)
    if injected:
        return injected, None
    if not is_topic_name(requested.name):
        return error_codes.INVALID_TOPIC_EXCEPTION, f"that is no name for a topic: it takes {TOPIC_NAME_RULE}"
    if requested.name in cluster.topics:
        return error_codes.TOPIC_ALREADY_EXISTS, f"topic {requested.name} exists already"
    if not 1 <= new.partitions <= left:
        return error_codes.INVALID_PARTITIONS, f"{new.partitions} partitions: from 1 to {left} can be had here now"
    if requested.replication_factor not in (-1, *range(1, len(cluster.nodes) + 1)) and not requested.assignments:
        return (
            error_codes.INVALID_REPLICATION_FACTOR,
            f"{requested.replication_factor} replicas cannot be on {len(cluster.nodes)} nodes",
        )
    try:
        log_config(new.config, max_message_bytes=0, check_records=True, discard=False)
    except ConfigurationError as error:
        return error_codes.INVALID_CONFIG, str(error)
    return 0, None
