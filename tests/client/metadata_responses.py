"""Builders of metadata responses."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID_1 = UUID(int=0x1111)
ID_2 = UUID(int=0x2222)


def brokers(count: int) -> list[MetadataResponseBroker]:
    return [MetadataResponseBroker(node_id=node, host=f"b{node}", port=9092) for node in range(count)]


def partition(index: int, leader: int = 0, epoch: int = 0, error: int = 0) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        error_code=error,
        replica_nodes=[0, 1],
        isr_nodes=[0],
    )


def topic(
    name: str,
    partitions: int | Sequence[MetadataResponsePartition] = 1,
    *,
    topic_id: UUID = NO_TOPIC_ID,
    error: int = 0,
) -> MetadataResponseTopic:
    if isinstance(partitions, int):
        partitions = [partition(index) for index in range(partitions)]
    return MetadataResponseTopic(name=name, topic_id=topic_id, error_code=error, partitions=list(partitions))


def metadata_response(
    *topics: MetadataResponseTopic,
    nodes: int = 3,
    cluster_id: str | None = "cluster",
) -> MetadataResponse:
    return MetadataResponse(brokers=brokers(nodes), topics=list(topics), cluster_id=cluster_id, controller_id=0)
