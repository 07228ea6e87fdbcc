"""CreateTopics."""

from __future__ import annotations

from spark_kafka_sink.broker.context import Handled, RequestContext
from spark_kafka_sink.broker.topics import log_config
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreatableTopicResult
from spark_kafka_sink.protocol.topic_names import is_topic_name


def handle(context: RequestContext, request: CreateTopicsRequest) -> Handled:
    with context.cluster.lock:
        results = [_create(context, topic, request.validate_only) for topic in request.topics]
    return CreateTopicsResponse(topics=results)


def _create(context: RequestContext, asked: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    cluster = context.cluster
    partitions = len(asked.assignments) or (
        cluster.config.default_partitions if asked.num_partitions == -1 else asked.num_partitions
    )
    settings = {each.name: each.value for each in asked.configs if each.value is not None}
    result = CreatableTopicResult(name=asked.name, num_partitions=partitions)
    result.replication_factor = len(cluster.nodes) if asked.replication_factor == -1 else asked.replication_factor
    result.error_code, result.error_message = _fault(context, asked, partitions, settings)
    if not result.error_code and not validate_only:
        result.topic_id = cluster.create_topic(asked.name, partitions, settings).id
    return result


def _fault(
    context: RequestContext, asked: CreatableTopic, partitions: int, settings: dict[str, str]
) -> tuple[int, str | None]:
    cluster = context.cluster
    injected = context.injected(asked.name)
    if injected:
        return injected, None
    if not is_topic_name(asked.name):
        return error_codes.INVALID_TOPIC_EXCEPTION, f"{asked.name!r} is no name for a topic"
    if asked.name in cluster.topics:
        return error_codes.TOPIC_ALREADY_EXISTS, f"topic {asked.name} exists already"
    if partitions < 1:
        return error_codes.INVALID_PARTITIONS, f"a topic cannot have {partitions} partitions"
    if asked.replication_factor not in (-1, *range(1, len(cluster.nodes) + 1)) and not asked.assignments:
        return (
            error_codes.INVALID_REPLICATION_FACTOR,
            f"{asked.replication_factor} replicas cannot be on {len(cluster.nodes)} nodes",
        )
    try:
        log_config(settings, message_bytes_max=0, check_records=True, discard=False)
    except ConfigurationError as error:
        return error_codes.INVALID_CONFIG, str(error)
    return 0, None
