"""TxnOffsetCommit: commit the offsets of a consumer group within a transaction.

v3: adds the group's generation and member ids (KIP-447)
v5: supports transactions v2 (KIP-890)

Version 6 (KIP-1319) replaces topic names with topic ids. It is not declared here: a producer has no metadata of the
topics that its consumer group reads, and Kafka 4.4 brokers still accept version 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, int16, int32, int64, nullable_string, string


@dataclass(kw_only=True, slots=True)
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = nullable_string("0+")


@dataclass(kw_only=True, slots=True)
class TxnOffsetCommitRequestTopic(Struct):
    name: str = string("0+")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


@dataclass(kw_only=True, slots=True)
class TxnOffsetCommitRequest(Message):
    API_KEY = ApiKey.TXN_OFFSET_COMMIT
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = nullable_string("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


@dataclass(kw_only=True, slots=True)
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


@dataclass(kw_only=True, slots=True)
class TxnOffsetCommitResponseTopic(Struct):
    name: str = string("0+")
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition, "0+")


@dataclass(kw_only=True, slots=True)
class TxnOffsetCommitResponse(Message):
    API_KEY = ApiKey.TXN_OFFSET_COMMIT
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")
