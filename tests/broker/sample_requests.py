"""Sample requests: for each API, a request whose response has values in as many fields as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from spark_kafka_sink.broker.supported_versions import SUPPORTED_VERSIONS
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import load_request_type
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from spark_kafka_sink.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.wire_client import WireClient, batch
from tests.simulated_cluster import SimulatedCluster


def sample_request(api: ApiKey, version: int, topic_id: UUID) -> Message:
    """Return a sample request in a version of an API.

    The request is about the topic "t" with the id `topic_id`, and about things that do not exist: its partition 5, and
    the topics "u" and "unknown".
    """
    build = _BUILDERS.get(api)
    return load_request_type(api)() if build is None else build(version, topic_id)


def _produce(version: int, topic_id: UUID) -> Message:
    partitions = [PartitionProduceData(index=index, records=batch(b"a")) for index in (0, 5)]
    topic = TopicProduceData(name="t" if version < 13 else "", partition_data=partitions)
    topic.topic_id = topic_id
    return ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic])


def _describe_configs(version: int, topic_id: UUID) -> Message:
    resources = [(2, "t"), (2, "unknown"), (4, "0"), (8, "")]
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=resource_type, resource_name=name)
            for resource_type, name in resources
        ]
    )


def _fetch(version: int, topic_id: UUID) -> Message:
    partitions = [FetchPartition(partition=index, partition_max_bytes=1000) for index in (0, 5)]
    topic = FetchTopic(topic="t", topic_id=topic_id, partitions=partitions)
    return FetchRequest(isolation_level=1, min_bytes=1, topics=[topic])


def _list_offsets(version: int, topic_id: UUID) -> Message:
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in (-1, -2, 0)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)])


def _metadata(version: int, topic_id: UUID) -> Message:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("t", "unknown")])


def _offset_commit(version: int, topic_id: UUID) -> Message:
    commit = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = OffsetCommitRequestTopic(name="t", partitions=[commit])
    return OffsetCommitRequest(group_id="g", topics=[topic], retention_time_ms=-1)


def _offset_fetch(version: int, topic_id: UUID) -> Message:
    if version < 8:
        return OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])


def _find_coordinator(version: int, topic_id: UUID) -> Message:
    return FindCoordinatorRequest(coordinator_keys=["x"]) if version >= 4 else FindCoordinatorRequest(key="x")


def _create_topics(version: int, topic_id: UUID) -> Message:
    return CreateTopicsRequest(topics=[CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in "tu"])


def _init_producer_id(version: int, topic_id: UUID) -> Message:
    return InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)


def _describe_transactions(version: int, topic_id: UUID) -> Message:
    return DescribeTransactionsRequest(transactional_ids=["x"])


_BUILDERS: dict[ApiKey, Callable[[int, UUID], Message]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
}


every_api = pytest.mark.parametrize("api", [*map(ApiKey, SUPPORTED_VERSIONS)], ids=lambda api: api.name)


def request_each_version(client: WireClient, cluster: SimulatedCluster, api: ApiKey) -> Iterator[tuple[int, Message]]:
    """Send a request in each supported version. Yield the version and the response before the next request is sent."""
    versions = SUPPORTED_VERSIONS[api]
    for version in range(versions.min, versions.max + 1):
        response = client.request(sample_request(api, version, cluster.core.topic("t").id), version)
        assert response is not None, f"version {version}"
        yield version, response
