"""Metadata: return the running nodes and the topics, with their partitions and leaders.

Each topic is returned only once, even if it appears more than once in the request. If missing topics are created
automatically, they are created together, so that the cluster is saved only once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.context import HandlerResult, RequestContext
from spark_kafka_sink.broker.topics import Partition, Topic, TopicDefinition
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.codecs import ZERO_UUID
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.topic_names import is_topic_name, normalize_topic_name

MIN_VERSION_WITH_AUTO_CREATION_FLAG = 4
MIN_VERSION_WITH_TOPIC_ID_LOOKUP = 12
MIN_VERSION_WITH_ERROR_CODE = 13
NO_LEADER = -1

_log = logging.getLogger(__name__)


def handle(context: RequestContext, request: MetadataRequest) -> HandlerResult:
    """Describe the running nodes and the requested topics. The first running node counts as the controller."""
    cluster = context.cluster
    with cluster.lock:
        running_nodes = cluster.list_running_nodes()
        topics = _describe_topics(context, request)
        response = MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in running_nodes
            ],
            cluster_id=cluster.cluster_id,
            controller_id=running_nodes[0].id if running_nodes else -1,
            topics=topics,
        )
    # The error code of the whole response is set only if no topic has an error code of its own.
    has_topic_error = any(topic.error_code for topic in topics)
    if context.version >= MIN_VERSION_WITH_ERROR_CODE and not has_topic_error:
        response.error_code = context.find_injected_error_code()
    return response


def _describe_topics(context: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    """Describe the requested topics, or all topics that are not hidden. The caller holds the cluster's lock."""
    requested_topics = request.topics or ()
    if not _can_look_up_topics(request, context.version):
        return [_reject_topic(topic) for topic in requested_topics]
    # In version 0, an empty list requests all topics. From version 1 on, it requests none.
    requests_all_topics = request.topics is None or (context.version == 0 and not request.topics)
    if requests_all_topics:
        return [_describe_topic(context, topic) for topic in context.cluster.topics.values() if not topic.is_hidden]
    unique_topics = {(topic.topic_id, topic.name): topic for topic in requested_topics}.values()
    may_create = request.allow_auto_topic_creation or context.version < MIN_VERSION_WITH_AUTO_CREATION_FLAG
    creation_error_codes = _create_missing(context, unique_topics) if may_create else {}
    return [_find_and_describe(context, topic, creation_error_codes) for topic in unique_topics]


def _can_look_up_topics(request: MetadataRequest, version: int) -> bool:
    """Return whether the request identifies all topics by name, or the version also supports topic ids."""
    if version >= MIN_VERSION_WITH_TOPIC_ID_LOOKUP:
        return True
    return all(topic.name is not None and topic.topic_id == ZERO_UUID for topic in request.topics or ())


def _reject_topic(topic: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=topic.name or "", topic_id=topic.topic_id, error_code=error_codes.INVALID_REQUEST)


def _create_missing(context: RequestContext, requested_topics: Iterable[MetadataRequestTopic]) -> dict[str, int]:
    """Create the requested topics that do not exist. Return error codes by name for topics that were not created."""
    cluster = context.cluster
    if not cluster.config.auto_create_topics:
        return {}
    names = [topic.name or "" for topic in requested_topics if topic.topic_id == ZERO_UUID]
    missing_topics = [
        name
        for name in names
        if is_topic_name(name) and name not in cluster.topics and not context.find_injected_error_code(name)
    ]
    names_by_normalized_name = cluster.index_normalized_names()
    colliding_topics = {
        name
        for name in missing_topics
        # setdefault also finds collisions between two missing topics: it keeps the first one.
        if names_by_normalized_name.setdefault(normalize_topic_name(name), name) != name
    }
    if colliding_topics:
        _log.warning(
            "Did not create %d topics: their names differ from those of other topics only in '.' and '_'",
            len(colliding_topics),
        )
    missing_topics = [name for name in missing_topics if name not in colliding_topics]
    partition_count = cluster.config.default_partitions
    max_topics = max(0, cluster.count_available_partitions()) // partition_count
    creatable_topics, rejected_topics = missing_topics[:max_topics], missing_topics[max_topics:]
    if rejected_topics:
        _log.warning(
            "Did not create %d topics: the cluster would exceed its maximum number of partitions",
            len(rejected_topics),
        )
    # As with KRaft, only the broker's log tells why a topic with a colliding name stays unknown.
    error_codes_by_topic = dict.fromkeys(rejected_topics, error_codes.POLICY_VIOLATION)
    try:
        cluster.create_topics([TopicDefinition(name, partition_count) for name in creatable_topics])
    except ApiError as error:
        error_codes_by_topic |= dict.fromkeys(creatable_topics, error.code)
    return error_codes_by_topic


def _find_and_describe(
    context: RequestContext, requested_topic: MetadataRequestTopic, creation_error_codes: Mapping[str, int]
) -> MetadataResponseTopic:
    """Describe a topic that is requested by id or by name, or return the error code for it."""
    cluster = context.cluster
    if requested_topic.topic_id != ZERO_UUID:
        topic_by_id = cluster.find_topic_by_id(requested_topic.topic_id)
        if topic_by_id is None or topic_by_id.is_hidden:
            error_code = error_codes.UNKNOWN_TOPIC_ID
            return MetadataResponseTopic(name=None, topic_id=requested_topic.topic_id, error_code=error_code)
        return _describe_topic(context, topic_by_id)
    name = requested_topic.name or ""
    if not is_topic_name(name):
        return MetadataResponseTopic(name=name, error_code=error_codes.INVALID_TOPIC_EXCEPTION)
    topic = cluster.topics.get(name)
    if topic is not None and not topic.is_hidden:
        return _describe_topic(context, topic)
    injected_code = context.find_injected_error_code(name)
    if injected_code:
        return MetadataResponseTopic(name=name, error_code=injected_code)
    error_code = creation_error_codes.get(name, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    return MetadataResponseTopic(name=name, error_code=error_code)


def _describe_topic(context: RequestContext, topic: Topic) -> MetadataResponseTopic:
    injected_code = context.find_injected_error_code(topic.name)
    if injected_code:
        return MetadataResponseTopic(name=topic.name, topic_id=topic.id, error_code=injected_code)
    partitions = [_describe_partition(context, topic, partition) for partition in topic.partitions]
    return MetadataResponseTopic(name=topic.name, topic_id=topic.id, partitions=partitions)


def _describe_partition(context: RequestContext, topic: Topic, partition: Partition) -> MetadataResponsePartition:
    nodes = context.cluster.nodes
    return MetadataResponsePartition(
        error_code=error_codes.LEADER_NOT_AVAILABLE if partition.leader is None else 0,
        partition_index=partition.index,
        leader_id=NO_LEADER if partition.leader is None else partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(context.cluster.find_in_sync_replicas(topic, partition)),
        offline_replicas=[node for node in partition.replicas if not nodes[node].is_running],
    )
