"""Metadata: who runs, which topics there are, and who leads their partitions."""

from __future__ import annotations

from spark_kafka_sink.broker.context import Handled, RequestContext
from spark_kafka_sink.broker.topics import Partition, Topic
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.codecs import ZERO_UUID
from spark_kafka_sink.protocol.messages import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequestTopic,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.topic_names import is_topic_name

AUTO_CREATION_FLAG_VERSION = 4
ERROR_CODE_VERSION = 13
NO_LEADER = -1


def handle(context: RequestContext, request: MetadataRequest) -> Handled:
    cluster = context.cluster
    with cluster.lock:
        running = cluster.running_nodes()
        asks_for_all = request.topics is None or (context.version == 0 and not request.topics)
        if asks_for_all:
            topics = [_described(context, topic) for topic in cluster.topics.values() if not topic.hidden]
        else:
            may_create = request.allow_auto_topic_creation or context.version < AUTO_CREATION_FLAG_VERSION
            topics = [_asked_for(context, topic, may_create) for topic in request.topics or ()]
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=n.id, host=n.host, port=n.port) for n in running],
            cluster_id=cluster.cluster_id,
            controller_id=running[0].id if running else -1,
            topics=topics,
        )
    injected = context.injected()
    if injected and context.version >= ERROR_CODE_VERSION and not any(topic.error_code for topic in topics):
        response.error_code = injected
    return response


def _asked_for(context: RequestContext, asked: MetadataRequestTopic, may_create: bool) -> MetadataResponseTopic:
    cluster = context.cluster
    if asked.topic_id != ZERO_UUID:
        found = cluster.topic_by_id(asked.topic_id)
        if found is None or found.hidden:
            return MetadataResponseTopic(name=None, topic_id=asked.topic_id, error_code=error_codes.UNKNOWN_TOPIC_ID)
        return _described(context, found)
    name = asked.name or ""
    if not is_topic_name(name):
        return MetadataResponseTopic(name=name, error_code=error_codes.INVALID_TOPIC_EXCEPTION)
    topic = cluster.topics.get(name)
    if topic is not None and not topic.hidden:
        return _described(context, topic)
    injected = context.injected(name)
    if injected:
        return MetadataResponseTopic(name=name, error_code=injected)
    if topic is None and may_create and cluster.config.auto_create_topics:
        return _described(context, cluster.create_topic(name, cluster.config.default_partitions))
    return MetadataResponseTopic(name=name, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)


def _described(context: RequestContext, topic: Topic) -> MetadataResponseTopic:
    injected = context.injected(topic.name)
    if injected:
        return MetadataResponseTopic(name=topic.name, topic_id=topic.id, error_code=injected)
    partitions = [_partition(context, topic, partition) for partition in topic.partitions]
    return MetadataResponseTopic(name=topic.name, topic_id=topic.id, partitions=partitions)


def _partition(context: RequestContext, topic: Topic, partition: Partition) -> MetadataResponsePartition:
    nodes = context.cluster.nodes
    return MetadataResponsePartition(
        error_code=error_codes.LEADER_NOT_AVAILABLE if partition.leader is None else 0,
        partition_index=partition.index,
        leader_id=NO_LEADER if partition.leader is None else partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(context.cluster.in_sync(topic, partition)),
        offline_replicas=[node for node in partition.replicas if not nodes[node].up],
    )
