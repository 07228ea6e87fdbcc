"""OffsetCommit: commit the offsets of a consumer group.

v5: removes the retention time
v7: adds static members (KIP-345)
v10: replaces topic names with topic ids
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
    uuid,
)


@dataclass(kw_only=True, slots=True)
class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
    commit_timestamp: int = int64("1", default=-1)  # version 1 is not supported; declared to match Kafka's definition
    committed_metadata: str | None = nullable_string("0+")


@dataclass(kw_only=True, slots=True)
class OffsetCommitRequestTopic(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


@dataclass(kw_only=True, slots=True)
class OffsetCommitRequest(Message):
    API_KEY = ApiKey.OFFSET_COMMIT
    VERSIONS = VersionRange(2, 10)
    FIRST_FLEXIBLE_VERSION = 8

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = nullable_string("7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")


@dataclass(kw_only=True, slots=True)
class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@dataclass(kw_only=True, slots=True)
class OffsetCommitResponseTopic(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, "0+")


@dataclass(kw_only=True, slots=True)
class OffsetCommitResponse(Message):
    API_KEY = ApiKey.OFFSET_COMMIT
    VERSIONS = VersionRange(2, 10)
    FIRST_FLEXIBLE_VERSION = 8

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")
