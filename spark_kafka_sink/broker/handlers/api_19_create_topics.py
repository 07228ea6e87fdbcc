"""CreateTopics: create all valid topics of a request together, so that the cluster is saved only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.log import LogConfig
from spark_kafka_sink.broker.topics import TopicDefinition, build_log_config
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE, is_topic_name, normalize_topic_name


def handle(context: RequestContext, request: CreateTopicsRequest) -> HandlerResult:
    """Validate each topic, and create the valid ones unless the request has `validate_only`."""
    cluster = context.cluster
    name_counts = Counter(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    valid_definitions: dict[str, TopicDefinition] = {}
    valid_results: dict[str, CreatableTopicResult] = {}
    with cluster.lock:
        remaining_partition_count = cluster.count_available_partitions()
        names_by_normalized_name = cluster.index_normalized_names()
        for topic in request.topics:
            definition = _build_definition(context, topic)
            result = _build_result(context, topic, definition.partition_count)
            if name_counts[topic.name] > 1:
                result.error_code = error_codes.INVALID_REQUEST
                result.error_message = "The request contains the topic more than once."
            else:
                result.error_code, result.error_message = _validate_new_topic(
                    context, topic, definition, remaining_partition_count, names_by_normalized_name
                )
            if not result.error_code:
                names_by_normalized_name[normalize_topic_name(topic.name)] = topic.name
                remaining_partition_count -= definition.partition_count
                valid_definitions[definition.name] = definition
                valid_results[definition.name] = result
            results.append(result)
        if not request.validate_only:
            _create(context, valid_definitions, valid_results)
    return CreateTopicsResponse(topics=results)


def _build_definition(context: RequestContext, requested_topic: CreatableTopic) -> TopicDefinition:
    """Build the definition of the topic to create. The partition count -1 stands for the cluster's default."""
    if requested_topic.assignments:
        partition_count = len(requested_topic.assignments)  # the request assigns each partition to nodes
    elif requested_topic.num_partitions == -1:
        partition_count = context.cluster.config.default_partitions
    else:
        partition_count = requested_topic.num_partitions
    settings = {config.name: config.value for config in requested_topic.configs if config.value is not None}
    return TopicDefinition(requested_topic.name, partition_count, settings)


def _build_result(
    context: RequestContext, requested_topic: CreatableTopic, partition_count: int
) -> CreatableTopicResult:
    """Build the result of a successful creation, but without the topic id, which is still unknown."""
    result = CreatableTopicResult(name=requested_topic.name, num_partitions=partition_count)
    result.replication_factor = (
        len(context.cluster.nodes) if requested_topic.replication_factor == -1 else requested_topic.replication_factor
    )
    return result


def _create(
    context: RequestContext, definitions: dict[str, TopicDefinition], results: dict[str, CreatableTopicResult]
) -> None:
    """Create the topics, and set the topic id or the error in their results."""
    try:
        for topic in context.cluster.create_topics(list(definitions.values())):
            results[topic.name].topic_id = topic.id
    except ApiError as error:
        for name in definitions:
            results[name].error_code, results[name].error_message = error.code, error.message


def _validate_new_topic(
    context: RequestContext,
    requested_topic: CreatableTopic,
    definition: TopicDefinition,
    remaining_partition_count: int,
    names_by_normalized_name: Mapping[str, str],
) -> tuple[int, str | None]:
    """Return (0, None) if the topic can be created, else an error code and its message (None if it was injected)."""
    cluster, partition_count = context.cluster, definition.partition_count
    injected_code = context.find_injected_error_code(requested_topic.name)
    if injected_code:
        return injected_code, None
    if not is_topic_name(requested_topic.name):
        return (
            error_codes.INVALID_TOPIC_EXCEPTION,
            f"The topic name is not valid. A topic name consists of {TOPIC_NAME_RULE}.",
        )
    if requested_topic.name in cluster.topics:
        return error_codes.TOPIC_ALREADY_EXISTS, f"Topic {requested_topic.name} already exists."
    colliding_name = names_by_normalized_name.get(normalize_topic_name(requested_topic.name))
    if colliding_name is not None:
        message = f"Topic '{requested_topic.name}' collides with existing topic: {colliding_name}"
        return error_codes.INVALID_TOPIC_EXCEPTION, message
    if partition_count < 1:
        return error_codes.INVALID_PARTITIONS, "A topic must have at least one partition."
    if partition_count > remaining_partition_count:
        message = f"Cannot create {partition_count} partitions: only {remaining_partition_count} more can be created."
        return error_codes.INVALID_PARTITIONS, message
    replication_factor, node_count = requested_topic.replication_factor, len(cluster.nodes)
    is_factor_valid = replication_factor == -1 or 1 <= replication_factor <= node_count
    # Assignments to nodes replace the replication factor.
    if not is_factor_valid and not requested_topic.assignments:
        nodes = format_count(node_count, "node")
        message = f"Replication factor {replication_factor} is invalid in a cluster of {nodes}."
        return error_codes.INVALID_REPLICATION_FACTOR, message
    try:
        build_log_config(definition.config, LogConfig())
    except ConfigurationError as error:
        return error_codes.INVALID_CONFIG, str(error)
    return 0, None
