"""DescribeQuorum: look up the controllers of a KRaft cluster and their progress in replicating its metadata.

Timestamps are from the active controller's clock.

v1: adds the time of each replica's last fetch (KIP-836)
v2: adds the directory ids and listeners of the controllers (KIP-853)
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import (
    Struct,
    VersionRange,
    array,
    int16,
    int32,
    int64,
    nullable_string,
    string,
    uint16,
    uuid,
)

METADATA_TOPIC = "__cluster_metadata"
"""The only topic that DescribeQuorum accepts. It has one partition."""


@dataclass(kw_only=True, slots=True)
class DescribeQuorumRequestPartitionData(Struct):
    partition_index: int = int32("0+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumRequestTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[DescribeQuorumRequestPartitionData] = array(DescribeQuorumRequestPartitionData, "0+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumRequest(Message):
    API_KEY = ApiKey.DESCRIBE_QUORUM
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 0

    topics: list[DescribeQuorumRequestTopicData] = array(DescribeQuorumRequestTopicData, "0+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumResponseReplicaState(Struct):
    replica_id: int = int32("0+")
    replica_directory_id: UUID = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


@dataclass(kw_only=True, slots=True)
class DescribeQuorumResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("2+", ignorable=True)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[DescribeQuorumResponseReplicaState] = array(DescribeQuorumResponseReplicaState, "0+")
    observers: list[DescribeQuorumResponseReplicaState] = array(DescribeQuorumResponseReplicaState, "0+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumResponseTopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[DescribeQuorumResponsePartitionData] = array(DescribeQuorumResponsePartitionData, "0+")


@dataclass(kw_only=True, slots=True)
class Listener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumResponseNode(Struct):
    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumResponse(Message):
    API_KEY = ApiKey.DESCRIBE_QUORUM
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 0

    error_code: int = int16("0+")
    error_message: str | None = nullable_string("2+", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = array(DescribeQuorumResponseTopicData, "0+")
    nodes: list[DescribeQuorumResponseNode] = array(DescribeQuorumResponseNode, "2+")
