"""Fetch: read record batches from partition leaders or followers.

v7: adds incremental fetch sessions (KIP-227)
v11: adds the rack id, to fetch from the closest replica (KIP-392)
v13: replaces topic names with topic ids (KIP-516)
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import (
    Records,
    Struct,
    VersionRange,
    array,
    int8,
    int16,
    int32,
    int64,
    nullable_array,
    nullable_string,
    record_batches,
    string,
    tagged_struct,
    uuid,
)


@dataclass(kw_only=True, slots=True)
class FetchRequestReplicaState(Struct):
    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


@dataclass(kw_only=True, slots=True)
class FetchPartition(Struct):
    partition: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32("0+")
    replica_directory_id: UUID = uuid("17+", tag=0, ignorable=True)
    high_watermark: int = int64("18+", default=0x7FFFFFFFFFFFFFFF, tag=1, ignorable=True)


@dataclass(kw_only=True, slots=True)
class FetchTopic(Struct):
    topic: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


@dataclass(kw_only=True, slots=True)
class ForgottenTopic(Struct):
    topic: str = string("7-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[int] = array("int32", "7+")


@dataclass(kw_only=True, slots=True)
class FetchRequest(Message):
    API_KEY = ApiKey.FETCH
    VERSIONS = VersionRange(4, 18)
    FIRST_FLEXIBLE_VERSION = 12

    cluster_id: str | None = nullable_string("12+", default=None, tag=0, ignorable=True)
    replica_id: int = int32("0-14", default=-1)
    replica_state: FetchRequestReplicaState | None = tagged_struct(FetchRequestReplicaState, "15+", tag=1)
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = int8("4+", ignorable=True)
    session_id: int = int32("7+", ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+", ignorable=True)


@dataclass(kw_only=True, slots=True)
class EpochEndOffset(Struct):
    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


@dataclass(kw_only=True, slots=True)
class FetchResponseLeaderIdAndEpoch(Struct):
    leader_id: int = int32("12+", default=-1)
    leader_epoch: int = int32("12+", default=-1)


@dataclass(kw_only=True, slots=True)
class SnapshotId(Struct):
    end_offset: int = int64("0+", default=-1)
    epoch: int = int32("0+", default=-1)


@dataclass(kw_only=True, slots=True)
class AbortedTransaction(Struct):
    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


@dataclass(kw_only=True, slots=True)
class FetchResponsePartitionData(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    high_watermark: int = int64("0+")
    last_stable_offset: int = int64("4+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset | None = tagged_struct(EpochEndOffset, "12+", tag=0)
    current_leader: FetchResponseLeaderIdAndEpoch | None = tagged_struct(FetchResponseLeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId | None = tagged_struct(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = nullable_array(AbortedTransaction, "4+", ignorable=True)
    preferred_read_replica: int = int32("11+", default=-1)
    records: Records = record_batches("0+")


@dataclass(kw_only=True, slots=True)
class FetchableTopicResponse(Struct):
    topic: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[FetchResponsePartitionData] = array(FetchResponsePartitionData, "0+")


@dataclass(kw_only=True, slots=True)
class FetchResponseNodeEndpoint(Struct):
    node_id: int = int32("16+")
    host: str = string("16+")
    port: int = int32("16+")
    rack: str | None = nullable_string("16+", default=None)


@dataclass(kw_only=True, slots=True)
class FetchResponse(Message):
    API_KEY = ApiKey.FETCH
    VERSIONS = VersionRange(4, 18)
    FIRST_FLEXIBLE_VERSION = 12

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, "0+")
    node_endpoints: list[FetchResponseNodeEndpoint] = array(FetchResponseNodeEndpoint, "16+", tag=0)
