"""OffsetFetch: look up the committed offsets of consumer groups.

v7: lets the client request only stable offsets (KIP-447)
v8: allows several groups in one request (KIP-709)
v10: replaces topic names with topic ids

The class names come from Kafka's message definitions: a topic in a request is an OffsetFetchRequestTopic up to v7, and
an OffsetFetchRequestTopics from v8 on, although it is still a single topic. The topics and partitions in responses are
named in the same way.
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
    int64,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


@dataclass(kw_only=True, slots=True)
class OffsetFetchRequestTopic(Struct):
    name: str = string("0-7")
    partition_indexes: list[int] = array("int32", "0-7")


@dataclass(kw_only=True, slots=True)
class OffsetFetchRequestTopics(Struct):
    name: str = string("8-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partition_indexes: list[int] = array("int32", "8+")


@dataclass(kw_only=True, slots=True)
class OffsetFetchRequestGroup(Struct):
    group_id: str = string("8+")
    member_id: str | None = nullable_string("9+", default=None, ignorable=True)
    member_epoch: int = int32("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = nullable_array(OffsetFetchRequestTopics, "8+")


@dataclass(kw_only=True, slots=True)
class OffsetFetchRequest(Message):
    API_KEY = ApiKey.OFFSET_FETCH
    VERSIONS = VersionRange(1, 10)
    FIRST_FLEXIBLE_VERSION = 6

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = nullable_array(
        OffsetFetchRequestTopic, "0-7", nullable_versions="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


@dataclass(kw_only=True, slots=True)
class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")
    committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)
    metadata: str | None = nullable_string("0-7")
    error_code: int = int16("0-7")


@dataclass(kw_only=True, slots=True)
class OffsetFetchResponseTopic(Struct):
    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@dataclass(kw_only=True, slots=True)
class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32("8+")
    committed_offset: int = int64("8+")
    committed_leader_epoch: int = int32("8+", default=-1, ignorable=True)
    metadata: str | None = nullable_string("8+")
    error_code: int = int16("8+")


@dataclass(kw_only=True, slots=True)
class OffsetFetchResponseTopics(Struct):
    name: str = string("8-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


@dataclass(kw_only=True, slots=True)
class OffsetFetchResponseGroup(Struct):
    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


@dataclass(kw_only=True, slots=True)
class OffsetFetchResponse(Message):
    API_KEY = ApiKey.OFFSET_FETCH
    VERSIONS = VersionRange(1, 10)
    FIRST_FLEXIBLE_VERSION = 6

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")
