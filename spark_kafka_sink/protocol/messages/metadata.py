"""Metadata: look up brokers, topics and the leaders of their partitions.

v4: lets the client disable automatic topic creation
v10: adds topic ids (KIP-516)
v12: lets the client look up topics by id
v13: adds a top-level error code (KIP-1102)
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import (
    Struct,
    VersionRange,
    array,
    boolean,
    int16,
    int32,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


@dataclass(kw_only=True, slots=True)
class MetadataRequestTopic(Struct):
    topic_id: UUID = uuid("10+", ignorable=True)
    name: str | None = nullable_string("0+", nullable_versions="10+")


@dataclass(kw_only=True, slots=True)
class MetadataRequest(Message):
    API_KEY = ApiKey.METADATA
    VERSIONS = VersionRange(0, 13)
    FIRST_FLEXIBLE_VERSION = 9

    topics: list[MetadataRequestTopic] | None = nullable_array(MetadataRequestTopic, "0+", nullable_versions="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


@dataclass(kw_only=True, slots=True)
class MetadataResponseBroker(Struct):
    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = nullable_string("1+", default=None, ignorable=True)


@dataclass(kw_only=True, slots=True)
class MetadataResponsePartition(Struct):
    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array("int32", "0+")
    isr_nodes: list[int] = array("int32", "0+")
    offline_replicas: list[int] = array("int32", "5+", ignorable=True)


@dataclass(kw_only=True, slots=True)
class MetadataResponseTopic(Struct):
    error_code: int = int16("0+")
    name: str | None = nullable_string("0+", nullable_versions="12+")
    topic_id: UUID = uuid("10+", ignorable=True)
    is_internal: bool = boolean("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=-0x80000000)


@dataclass(kw_only=True, slots=True)
class MetadataResponse(Message):
    API_KEY = ApiKey.METADATA
    VERSIONS = VersionRange(0, 13)
    FIRST_FLEXIBLE_VERSION = 9

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = nullable_string("2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=-0x80000000)
    error_code: int = int16("13+", ignorable=True)
