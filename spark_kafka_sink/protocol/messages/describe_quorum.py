"""DescribeQuorum: the controllers of a KRaft cluster, with times by the clock of the active one.

v1 times of the last fetch (KIP-836)
v2 where the controllers listen (KIP-853)
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import describe_quorum_asked as asked
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
"""The one topic that can be asked about; it has one partition."""


@dataclass(kw_only=True, slots=True)
class DescribeQuorumRequest(Message):
    API_KEY = ApiKey.DESCRIBE_QUORUM
    VERSIONS = VersionRange(0, 2)
    FLEXIBLE = 0

    topics: list[asked.TopicData] = array(asked.TopicData, "0+")


@dataclass(kw_only=True, slots=True)
class ReplicaState(Struct):
    replica_id: int = int32("0+")
    replica_directory_id: UUID = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


@dataclass(kw_only=True, slots=True)
class PartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("2+", ignorable=True)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[ReplicaState] = array(ReplicaState, "0+")
    observers: list[ReplicaState] = array(ReplicaState, "0+")


@dataclass(kw_only=True, slots=True)
class TopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


@dataclass(kw_only=True, slots=True)
class Listener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


@dataclass(kw_only=True, slots=True)
class Node(Struct):
    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


@dataclass(kw_only=True, slots=True)
class DescribeQuorumResponse(Message):
    API_KEY = ApiKey.DESCRIBE_QUORUM
    VERSIONS = VersionRange(0, 2)
    FLEXIBLE = 0

    error_code: int = int16("0+")
    error_message: str | None = nullable_string("2+", ignorable=True)
    topics: list[TopicData] = array(TopicData, "0+")
    nodes: list[Node] = array(Node, "2+")
